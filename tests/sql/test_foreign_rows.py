"""Rows that another program has spoiled: none of them keeps a node from the other jobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from ratchet import Scheduler, Status

WAIT = 20.0
ran: list[int] = []


def work(number: int) -> int:
    """A harmless job."""
    ran.append(number)
    return number


@pytest.fixture
def scheduler(path: Path) -> Iterator[Scheduler]:
    scheduler = Scheduler.from_url(f"sqlite:///{path}", allow=[__name__])
    yield scheduler
    scheduler.close()


def spoil(path: Path, column: str, value: object, job_id: UUID) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA ignore_check_constraints = 1")
    connection.execute(f"UPDATE ratchet_job SET {column} = ? WHERE id = ?", (value, str(job_id)))
    connection.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("payload", b"\xff\x00"),
        ("payload", 7),
        ("tags", b"\xff"),
        ("tags", "no json"),
        ("params", "[1]"),
        ("backoff", "sometimes"),
        ("backoff", b"\xff"),
        ("timeout", "soon"),
        ("timeout", 2**63 - 1),
        ("type", b"\xff"),
        ("metadata", "no json"),
        ("target", b"\xff"),
        ("id", b"\xff"),
        ("id", "x"),
        ("scheduled_time", "soon"),
        ("scheduled_time", b"\xff"),
        ("scheduled_time", -(2**62)),
        ("attempts", b"\xff"),
        ("max_retries", "many"),
        ("priority", "high"),
    ],
)
def test_a_spoiled_row_stops_nobody(scheduler: Scheduler, path: Path, column: str, value: object) -> None:
    """Whatever stands in one row, first in the queue, the five jobs behind it run; it is claimed once at most."""
    bad = scheduler.enqueue(work, 0).submit()
    good = scheduler.enqueue_many(work, [(number,) for number in range(1, 6)])
    spoil(path, column, value, bad.id)
    with scheduler:
        assert [handle.result(WAIT) for handle in good] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("column", "value"),
    [("payload", b"\xff\x00"), ("tags", "no json"), ("backoff", b"\xff")],
)
def test_a_spoiled_job_fails(scheduler: Scheduler, path: Path, column: str, value: object) -> None:
    """A job that cannot be read lands in the DLQ, where somebody sees it; nothing is charged."""
    bad = scheduler.enqueue(work, 0).submit()
    spoil(path, column, value, bad.id)
    with scheduler:
        scheduler.enqueue(work, 1).submit().result(WAIT)
    spoil(path, "tags", "", bad.id)
    spoil(path, "backoff", "", bad.id)
    job = bad.job()
    assert job is not None
    assert (job.status, job.attempts) == (Status.FAILED, 0)
    assert "the payload is corrupt" in str(job.last_error)


def test_an_unknown_job_is_unknown(scheduler: Scheduler) -> None:
    """Reading beside spoiled rows is not disturbed by them."""
    assert scheduler.get(uuid4()) is None
