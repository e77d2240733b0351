"""F21: one bad job (or one dropped connection) ends the recovery pass.

The dead node is an incarnation that claimed five jobs and whose last heartbeat is long ago (store time).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from ratchet import Job, JobDlq, JobHandle, Scheduler, Status
from ratchet.domain.lifecycle import Trigger
from ratchet.spi.store import ClaimRequest, JobStore, NodeInfo, RecoverRequest
from ratchet_sql.store import SqliteStore
from tests.field_cases.faults import FaultyStore
from tests.field_cases.kit import SCALE, START, FileClock, Ledger, wait_until
from tests.field_cases.stage import Stage, each_store, stage_on

BUDGET = 1
SWEEP = 0.2
GHOST = "dead-node"


def work(folder: str) -> None:
    """One of the five jobs."""
    with Ledger(folder).entry():
        pass


def claim(store: JobStore, owner: str) -> list[UUID]:
    """Have a node that is no more claim everything that is due."""
    store.heartbeat(NodeInfo(incarnation=owner, name=owner))
    return [
        each.job_id for each in store.claim(ClaimRequest(incarnation=owner, limits={"threads": 50})).claims
    ]


@dataclass
class Story:
    """Five orphans, #3 of them without budget; what a sweep under a fault has made of them."""

    stage: Stage
    node: Scheduler
    handles: list[JobHandle[None]]
    before: list[int]
    events: list[Any]
    took: float

    def jobs(self) -> list[Job]:
        return [job for handle in self.handles if (job := handle.job()) is not None]


def drop_in_transaction(faulty: FaultyStore) -> None:
    """SQLite: the connection is closed under the sweep: in the group's transaction, and in that of the second job."""
    assert isinstance(faulty.real, SqliteStore)
    database = faulty.real.database
    recovering = [0]

    def step(name: str) -> None:
        if name == "orphans selected":
            recovering[0] = 1
        elif name == "updated" and recovering[0]:
            if recovering[0] in (1, 3):  # the group, then #1, then #2
                connection = database._writer
                assert isinstance(connection, sqlite3.Connection)
                connection.close()
            recovering[0] += 1
            if recovering[0] > 3:
                database.step = lambda name: None

    database.step = step


def drop_before(faulty: FaultyStore) -> None:
    """The call that recovers is lost on its way."""
    faulty.fail("recover")


def drop_after(faulty: FaultyStore) -> None:
    """The call that recovers is applied; its answer is lost."""
    faulty.fail("recover", when="after")


def drop_at_settle(faulty: FaultyStore) -> None:
    """#3 cannot be failed at the first try."""
    faulty.fail("settle", matches=is_crash_fail)


def drop_after_settle(faulty: FaultyStore) -> None:
    """#3 is failed; the answer is lost."""
    faulty.fail("settle", when="after", matches=is_crash_fail)


def drop_at_read(faulty: FaultyStore) -> None:
    """#3 cannot be read at the first try, with an error that no store should raise."""
    faulty.fail("get", error=lambda: RuntimeError("a bad row"), times=1)


def is_crash_fail(arguments: tuple[Any, ...]) -> bool:
    return bool(arguments[0].change.trigger is Trigger.CRASH_FAIL)


FAULTS = [drop_in_transaction, drop_before, drop_after, drop_at_settle, drop_after_settle, drop_at_read]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((each.values[0], fault), marks=each.marks, id=f"{each.values[0]}-{fault.__name__}")
        for each in each_store()
        for fault in FAULTS
        if fault is not drop_in_transaction or each.values[0] == "sqlite"
    ],
)
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """The case under one of the faults, played once per store."""
    name, fault = request.param
    stage = stage_on(name, tmp_path_factory.mktemp("f21"), __name__)
    file_clock = FileClock(stage.folder / "clock")
    file_clock.set(START)
    try:
        yield play(stage, file_clock, fault)
    finally:
        stage.close()


def play(stage: Stage, file_clock: FileClock, fault: Callable[[FaultyStore], None]) -> Story:
    """Five orphans, a fault, and a node that starts."""
    faulty = stage.faulty(clock=file_clock)
    store = faulty.real
    node = stage.node(
        faulty.store, start=False, heartbeat=0.05, sweep=SWEEP, grace=3.0, crashes=BUDGET, poll=0.05
    )
    folder = str(stage.folder)
    third = node.enqueue(work, folder).submit()
    assert claim(store, "first-ghost") == [third.id]
    gone = RecoverRequest(
        grace=timedelta(minutes=1), crash_budget=BUDGET, known_gone=frozenset({"first-ghost"})
    )
    assert [orphan.job_id for orphan in store.recover(gone).recovered] == [third.id]
    others = node.enqueue_many(work, [(folder,)] * 4)
    handles = [*others[:2], third, *others[2:]]
    assert set(claim(store, GHOST)) == {handle.id for handle in handles}
    before = [job.crash_count for handle in handles if (job := handle.job()) is not None]
    file_clock.advance(timedelta(minutes=10))
    events: list[Any] = []
    node.add_listener(events.append, JobDlq)
    fault(faulty)
    node.start()
    wait_until(lambda: faulty.calls["recover"], what="the first sweep")
    start = time.monotonic()
    wait_until(
        lambda: all(job.is_settled for handle in handles if (job := store.get(handle.id))), 30, "all settle"
    )
    return Story(stage, node, handles, before, events, time.monotonic() - start)


def test_f21_within_two_sweep_intervals(story: Story) -> None:
    """All five are settled within two sweep intervals of the first sweep (0.4 s; asserted: ten times that)."""
    assert story.took <= 2 * SWEEP * SCALE


def test_f21_exhausted_job_is_in_the_dlq(story: Story) -> None:
    """#3, whose crash budget was used, is FAILED, with no attempt charged, and was published to the DLQ once."""
    job = story.jobs()[2]
    assert (job.status, job.crash_count, job.attempts) == (Status.FAILED, BUDGET, 0)
    assert "NodeCrashed" in (job.last_error or "")
    assert story.stage.ledger.executions(job.id) == 0
    wait_until(lambda: story.events, 5, "the DLQ event")
    assert [event.job_id for event in story.events] == [job.id]


def test_f21_the_others_are_recovered_and_succeeded(story: Story) -> None:
    """#1, #2, #4 and #5 are recovered and SUCCEEDED, one execution each."""
    others = [job for place, job in enumerate(story.jobs()) if place != 2]
    assert [job.status for job in others] == [Status.SUCCEEDED] * 4
    assert [story.stage.ledger.executions(job.id) for job in others] == [1] * 4


def test_f21_nothing_is_left_with_the_dead_owner(story: Story) -> None:
    """Nothing is RUNNING with the dead owner, and the dead owner is registered no more."""
    assert story.node.store.held(GHOST) == []
    wait_until(lambda: GHOST not in {node.info.incarnation for node in story.node.query.nodes()})


def test_f21_crash_counts_rose_by_one(story: Story) -> None:
    """The crash count of each of the four rose by exactly 1, and the history says so."""
    for place, (was, job) in enumerate(zip(story.before, story.jobs(), strict=True)):
        history = [each.trigger for each in story.node.store.history(job.id)]
        if place == 2:
            assert history == [Trigger.RECOVER, Trigger.CRASH_FAIL]
        else:
            assert job.crash_count == was + 1
            assert history == [Trigger.RECOVER, Trigger.SUCCEED]
