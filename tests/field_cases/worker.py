"""A node in a process of its own, run by ``ratchet worker``, and the test's grip on it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

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
        words = json.dumps({"url": url, "allow": allow, **settings})
        command = "-m", "ratchet", "worker", "tests.field_cases.worker:application"
        self.process = subprocess.Popen(
            [sys.executable, *command, "--app-dir", str(ROOT), "--stop-timeout", str(stop_timeout)],
            cwd=ROOT,
            env={**os.environ, "FIELD_CASE": words, "FIELD_CASE_FOLDER": str(folder)},
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


class _Told(Scheduler):
    """Says in a file that it claims."""

    def start(self, *, loop: asyncio.AbstractEventLoop | None = None) -> Self:
        super().start(loop=loop)
        append(Path(os.environ["FIELD_CASE_FOLDER"]) / f"started-{os.getpid()}", "started\n")
        return self


def application() -> Scheduler:
    """The scheduler of the worker process, made from its environment."""
    folder, words = Path(os.environ["FIELD_CASE_FOLDER"]), json.loads(os.environ["FIELD_CASE"])
    logging.basicConfig(
        filename=folder / f"log-{os.getpid()}",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(threadName)s %(message)s",
    )
    clock = FileClock(folder / "clock") if (folder / "clock").exists() else None
    url, allow = words.pop("url"), words.pop("allow")
    return _Told.from_url(url, allow=[allow], settings=quick_settings(**words), clock=clock)
