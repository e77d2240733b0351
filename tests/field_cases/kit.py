"""What the field cases share: a ledger of executions, gates, a clock in a file, and waiting for a condition.

All of it works across processes: everything is a file in one folder, whose path is an argument of the jobs.
Nothing here imports pytest, so that worker processes and bodies can use it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

from ratchet import ExecutionSettings, JobContext, NodeSettings, PollingSettings, Settings, current_job

START: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
SCALE: Final = 10
"""A time in a case is asserted at this multiple of its value; benchmarks show the real figure."""


# -- the ledger -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One execution: written when the body begins, completed when it ends (None: it never did)."""

    job: UUID
    node: str
    pid: int
    claim_seq: int
    attempt: int
    start: float
    end: float | None


class Ledger:
    """The side table of executions: one whole line appended per beginning and per end, whatever kills the writer.

    Times are those of `FileClock` if the folder has one, else of the wall clock.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    @contextmanager
    def entry(self) -> Iterator[JobContext]:
        """Around what a body does: writes its row."""
        context = current_job()
        key = f"{context.id} {context.claim_seq} {os.getpid()}"
        self._append(f"begin {key} {context.attempt} {self._now()} {context.node}\n")
        try:
            yield context
        finally:
            self._append(f"end {key} {context.attempt} {self._now()} {context.node}\n")

    def _append(self, line: str) -> None:
        append(self.folder / "ledger", line)

    def _now(self) -> float:
        clock = self.folder / "clock"
        return FileClock(clock).now().timestamp() if clock.exists() else time.time()

    def rows(self, job: UUID | None = None) -> list[Row]:
        """All rows, or those of one job, in the order in which the bodies began."""
        path = self.folder / "ledger"
        begun: list[list[str]] = []
        ends: dict[tuple[str, ...], float] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            what, *fields = line.split(" ", 6)
            if job is not None and fields[0] != str(job):
                continue
            if what == "begin":
                begun.append(fields)
            else:
                ends[tuple(fields[:3])] = float(fields[4])
        return [
            Row(UUID(job_id), node, int(pid), int(seq), int(attempt), float(at), ends.get((job_id, seq, pid)))
            for job_id, seq, pid, attempt, at, node in begun
        ]

    def executions(self, job: UUID) -> int:
        """How many bodies of this job began."""
        return len(self.rows(job))

    def overlapping(self, job: UUID, *, pid: int | None = None) -> list[tuple[Row, Row]]:
        """Pairs of rows of this job (in this process) that ran at the same time."""
        rows = [row for row in self.rows(job) if pid is None or row.pid == pid]
        return [
            (a, b)
            for place, a in enumerate(rows)
            for b in rows[place + 1 :]
            if b.start < (float("inf") if a.end is None else a.end)
        ]

    def __str__(self) -> str:
        return str(self.folder)


def append(path: Path, line: str) -> None:
    """Append one line, whole or not at all."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


# -- gates and waiting ----------------------------------------------------------------------------


class Gates:
    """Named gates, closed until opened; a body waits at one, and says that it got there."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def open(self, name: str) -> None:
        """Let everybody through, now and later."""
        (self.folder / f"gate-{name}").touch()

    def is_open(self, name: str) -> bool:
        """True once it was opened."""
        return (self.folder / f"gate-{name}").exists()

    def wait(self, name: str, seconds: float = 60.0) -> None:
        """Stand before the gate (a body's call)."""
        append(self.folder / f"reached-{name}", f"{os.getpid()}\n")
        wait_until(lambda: self.is_open(name), seconds, f"gate {name} opens")

    async def wait_async(self, name: str, seconds: float = 60.0) -> None:
        """Stand before the gate without blocking the loop (an async body's call)."""
        append(self.folder / f"reached-{name}", f"{os.getpid()}\n")
        end = time.monotonic() + seconds
        while not self.is_open(name):
            assert time.monotonic() < end, f"not within {seconds:g} s: gate {name} opens"
            await asyncio.sleep(0.005)

    def reached(self, name: str) -> int:
        """How many have come to the gate."""
        path = self.folder / f"reached-{name}"
        return len(path.read_text().splitlines()) if path.exists() else 0


def holds(condition: Callable[[], object], seconds: float) -> bool:
    """Look until the condition holds or the time is over; True if it held."""
    end = time.monotonic() + seconds
    while True:
        if condition():
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(0.005)  # between two looks at the condition


def wait_until(condition: Callable[[], object], seconds: float = 10.0, what: str = "the condition") -> None:
    """Look until the condition holds; an assertion error naming `what` if it does not in time."""
    assert holds(condition, seconds), f"not within {seconds:g} s: {what}"


def stays(condition: Callable[[], object], seconds: float, what: str = "the condition") -> None:
    """The condition holds at every look for so long; an assertion error naming `what` if it once does not."""
    assert not holds(lambda: not condition(), seconds), f"did not stay so for {seconds:g} s: {what}"


# -- time -----------------------------------------------------------------------------------------


class FileClock:
    """Store time under the test's control, one for all processes: whole milliseconds in a file."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def now(self) -> datetime:
        """The instant; moves only when told to."""
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=int(self.path.read_text()))

    def set(self, instant: datetime) -> None:
        """Move to an instant; a reader sees the old or the new one, never half of it."""
        text = str((instant - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1))
        beside = self.path.with_name(f"{self.path.name}-{os.getpid()}")
        beside.write_text(text)
        beside.replace(self.path)

    def advance(self, delta: timedelta) -> datetime:
        """Move on."""
        self.set(self.now() + delta)
        return self.now()


# -- settings -------------------------------------------------------------------------------------


def quick_settings(
    *,
    threads: int = 4,
    async_: int = 4,
    processes: int = 0,
    grace: float = 3.0,
    heartbeat: float = 0.5,
    sweep: float = 1.0,
    poll: float = 0.1,
    name: str | None = None,
    crashes: int = 3,
    batch_size: int = 50,
    ahead: float = 0.1,
) -> Settings:
    """Settings for a test in real time: the intervals in seconds, all of them short by default."""
    return Settings(
        execution=ExecutionSettings(
            threads=threads,
            async_=async_,
            processes=processes,
            batch_size=batch_size,
            ahead=timedelta(seconds=ahead),
        ),
        node=NodeSettings(
            name=name,
            heartbeat=timedelta(seconds=heartbeat),
            orphan_grace=timedelta(seconds=grace),
            sweep=timedelta(seconds=sweep),
            max_crash_redeliveries=crashes,
        ),
        polling=PollingSettings(burst=poll, fastest=poll, slowest=2 * poll, idle=2 * poll, idle_after=300.0),
    )
