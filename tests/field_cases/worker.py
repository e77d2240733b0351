"""A node in a process of its own (`python -m tests.field_cases.worker JSON`), and the test's grip on it."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ratchet import Scheduler
from tests.field_cases.kit import FileClock, append, quick_settings, wait_until

ROOT = Path(__file__).parents[2]


class Worker:
    """A worker process.

    Args:
        url: the store.
        folder: where its log, its signs of life, and (if there is one) the clock are.
        allow: modules whose functions it runs.
        stop_timeout: seconds that it gives itself after SIGTERM.
        wait: return only once it claims.
        settings: keywords of `quick_settings`.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        allow: str,
        stop_timeout: float = 10.0,
        wait: bool = True,
        **settings: Any,
    ) -> None:
        self.folder = folder
        words = {"url": url, "folder": str(folder), "allow": allow, "stop_timeout": stop_timeout, **settings}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.field_cases.worker", json.dumps(words)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        if wait:
            self.wait_started()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def started(self) -> bool:
        """True once it claims."""
        return (self.folder / f"started-{self.pid}").exists()

    def wait_started(self, seconds: float = 30.0) -> None:
        wait_until(lambda: self.started or not self.alive, seconds, "the worker starts")
        assert self.alive, self.log

    @property
    def log(self) -> str:
        """What it has logged so far."""
        path = self.folder / f"log-{self.pid}"
        return path.read_text() if path.exists() else ""

    def kill(self) -> None:
        """SIGKILL, and reap it."""
        self.process.kill()
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def terminate(self, seconds: float = 30.0) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.process.wait(seconds)

    def close(self) -> None:
        """End it, whatever it is doing."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


def main() -> None:
    """Work until SIGTERM; a second one skips the wait."""
    from ratchet.cli.signals import Signals

    words = json.loads(sys.argv[1])
    folder, stop_timeout = Path(words.pop("folder")), words.pop("stop_timeout")
    url, allow = words.pop("url"), words.pop("allow")
    logging.basicConfig(
        filename=folder / f"log-{os.getpid()}",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(threadName)s %(message)s",
    )
    clock = FileClock(folder / "clock") if (folder / "clock").exists() else None
    scheduler = Scheduler.from_url(url, allow=[allow], settings=quick_settings(**words), clock=clock)
    signals = Signals(signal.SIGTERM)
    scheduler.start()
    append(folder / f"started-{os.getpid()}", "started\n")
    select.select([signals], [], [])
    signals.take()
    scheduler.stop(stop_timeout)
    append(folder / f"stopped-{os.getpid()}", "stopped\n")
    logging.shutdown()
    os._exit(0)  # a body that never returns must not keep the process


if __name__ == "__main__":
    from tests.field_cases.worker import main as importable_main

    importable_main()
