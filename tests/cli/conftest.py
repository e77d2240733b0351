"""Worker processes, their application and its store, for the tests of the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from ratchet import Scheduler
from ratchet.domain.lifecycle import Status
from tests.cli import cli_jobs

ROOT: Final = Path(__file__).resolve().parents[2]
PATIENCE: Final = 30.0


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait for a condition that another process brings about."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)


class Worker:
    """A ``ratchet worker`` and what it wrote."""

    def __init__(self, log: Path, *arguments: str, app: str = cli_jobs.APP) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ratchet", "worker", app, *arguments],
                cwd=ROOT,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for_line(self, text: str) -> None:
        wait_until(lambda: text in self.text, f"{text!r} in the log: {self.text[-2000:]}")

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def end(self, seconds: float = PATIENCE) -> int:
        """Its exit code, once it has ended."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still there after {seconds:g} s: {self.text[-2000:]}")

    def stop(self) -> int:
        self.signal()
        return self.end()


class World:
    """A store in a folder of its own, the scheduler that submits to it, and its workers."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.scheduler: Scheduler = cli_jobs.scheduler()
        self.workers: list[Worker] = []

    def worker(self, *arguments: str, app: str = cli_jobs.APP) -> Worker:
        worker = Worker(self.folder / f"worker{len(self.workers)}.log", *arguments, app=app)
        self.workers.append(worker)
        return worker

    def ledger(self) -> list[list[str]]:
        """(word, job, process) of every execution that has begun."""
        path = Path(os.environ[cli_jobs.LEDGER])
        return (
            [line.split() for line in path.read_text(encoding="ascii").splitlines()] if path.exists() else []
        )

    def wait_for_executions(self, count: int) -> None:
        wait_until(lambda: len(self.ledger()) >= count, f"{count} executions: {self._logs()}")

    def wait_for_nodes(self, count: int) -> None:
        wait_until(lambda: len(self.scheduler.store.nodes()) == count, f"{count} nodes: {self._logs()}")

    def wait_for_status(self, status: Status, count: int) -> None:
        wait_until(
            lambda: self.scheduler.store.counts()[status] == count, f"{count} {status}: {self._logs()}"
        )

    def _logs(self) -> str:
        return "\n".join(worker.text[-2000:] for worker in self.workers)

    def close(self) -> None:
        for worker in self.workers:
            with suppress(ProcessLookupError):
                os.killpg(worker.process.pid, signal.SIGKILL)
            worker.process.wait()
        self.scheduler.close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("RATCHET_URL", url)
    monkeypatch.setenv(cli_jobs.LEDGER, str(tmp_path / "ledger"))
    made = World(tmp_path, url)
    yield made
    made.close()


@pytest.fixture
def run_cli(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command to its end, as a process."""

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ratchet", *words],
            cwd=ROOT,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=240,
        )

    return run
