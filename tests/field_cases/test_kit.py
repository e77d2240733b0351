"""The field cases' own tools tell the truth: ledger, gates, clock, faults and worker processes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ratchet import Status
from ratchet.errors import StoreTransientError
from tests.field_cases.faults import FaultyStore
from tests.field_cases.kit import START, FileClock, Gates, Ledger, wait_until
from tests.field_cases.worker import Worker


def standing(folder: str) -> None:
    """A body that waits at the gate `go`."""
    with Ledger(folder).entry():
        Gates(folder).wait("go")


def test_ledger_has_one_row_per_execution(make_node: Any, ledger: Ledger, gates: Gates) -> None:
    """A row is there when the body begins and has its end when the body has ended."""
    node = make_node()
    handle = node.enqueue_now(standing, str(ledger))
    wait_until(lambda: gates.reached("go"))
    (row,) = ledger.rows(handle.id)
    assert (row.end, row.claim_seq, row.attempt) == (None, 1, 1)
    gates.open("go")
    handle.result(10)
    (row,) = ledger.rows(handle.id)
    assert row.end is not None
    assert row.end >= row.start
    assert not ledger.overlapping(handle.id)


@pytest.mark.stores("sqlite")
def test_worker_runs_and_dies(
    spawn: Callable[..., Worker], make_node: Any, ledger: Ledger, gates: Gates
) -> None:
    """A spawned worker executes a job of this process, and SIGTERM ends it with 0."""
    worker = spawn()
    handle = make_node(start=False).enqueue_now(standing, str(ledger))
    wait_until(lambda: gates.reached("go"))
    gates.open("go")
    handle.result(10)
    assert ledger.rows(handle.id)[0].pid == worker.pid
    assert worker.terminate() == 0


def test_faulty_store_fails_before_and_after(faulty: FaultyStore, make_node: Any, ledger: Ledger) -> None:
    """A call failed before it was applied leaves no trace, one failed after it was applied does."""
    submitter = make_node(faulty.store, start=False)
    faulty.fail("insert")
    with pytest.raises(StoreTransientError):
        submitter.enqueue_now(standing, str(ledger))
    assert faulty.real.counts()[Status.PENDING] == 0
    faulty.fail("insert", when="after")
    with pytest.raises(StoreTransientError):
        submitter.enqueue_now(standing, str(ledger))
    assert faulty.real.counts()[Status.PENDING] == 1
    with faulty.outage(), pytest.raises(StoreTransientError):
        faulty.store.counts()
    assert faulty.store.counts()[Status.PENDING] == 1


def test_file_clock_is_store_time(
    file_clock: FileClock, open_here: Callable[..., Any], tmp_path: Path
) -> None:
    """A store opened with the clock has its time, and it moves only when told to."""
    store = open_here(clock=file_clock)
    assert store.now() == START
    file_clock.advance(timedelta(hours=1))
    assert store.now() == START + timedelta(hours=1)
    assert FileClock(tmp_path / "clock").now() == store.now()
