"""Worker processes of a storm, and the ledger that their bodies write."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
THREADS: Final = 4
GRACE: Final = 3.0
"""Seconds of silence after which the workers of a storm take each other for dead."""


class Cluster:
    """Worker processes of this storm, kept at their number.

    Args:
        url: of the store.
        folder: where they write.
        size: their number.
        threads: of each.
        grace: seconds of silence after which they take each other for dead.
    """

    def __init__(
        self, url: str, folder: Path, size: int, *, threads: int = THREADS, grace: float = GRACE
    ) -> None:
        self.url, self.folder, self.threads = url, folder, threads
        self.environment = {
            **os.environ,
            "STORM_FOLDER": str(folder),
            "STORM_GRACE": str(grace),
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
        }
        self.processes = [self.spawn() for _ in range(size)]

    def spawn(self) -> subprocess.Popen[bytes]:
        """One more worker."""
        return subprocess.Popen(
            [sys.executable, "-c", "import storm_jobs; storm_jobs.main()", self.url, str(self.threads)],
            env=self.environment,
        )

    def has_started(self, process: subprocess.Popen[bytes]) -> bool:
        """True once the worker claims."""
        with suppress(FileNotFoundError):
            return str(process.pid) in (self.folder / "started").read_text().split()
        return False

    def kill_one(self) -> None:
        """SIGKILL a worker that is at work, and replace it."""
        ready = [each for each in self.processes if self.has_started(each)]
        if ready:
            victim = random.choice(ready)
            victim.kill()
            victim.wait()
            self.processes[self.processes.index(victim)] = self.spawn()

    def freeze_one(self) -> bool:
        """SIGSTOP a worker with bodies at the barrier, past the grace, then SIGCONT; True if it was done."""
        ready = [each for each in self.processes if self.has_started(each)]
        if len(ready) < 2:
            return False
        victim = random.choice(ready)
        barrier, reached = self.folder / f"barrier-{victim.pid}", self.folder / f"reached-{victim.pid}"
        barrier.touch()
        try:
            if not wait_for(reached.exists, 5.0):
                return False  # no work was left for it
            os.kill(victim.pid, signal.SIGSTOP)
            end = time.monotonic() + GRACE + 2.5  # until a sweep of another node has taken its claims
            while time.monotonic() < end:
                time.sleep(0.1)
        finally:
            barrier.unlink()
            reached.unlink(missing_ok=True)
            os.kill(victim.pid, signal.SIGCONT)
        return True

    def close(self) -> None:
        """End them all: first politely."""
        for each in self.processes:
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGCONT)
            each.terminate()
        for each in self.processes:
            try:
                each.wait(15)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Look until it holds or the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def ledger(folder: Path) -> Iterator[tuple[str, int]]:
    """(job, claim) of every body that began."""
    for line in (folder / "ledger").read_text().splitlines():
        job, claim, _pid, _number = line.split()
        yield job, int(claim)
