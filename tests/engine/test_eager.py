"""A job that is submitted where a slot is free for it begins with its claim, and nothing else does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ratchet import ExecutionSettings, JobHandle, NodeSettings, Scheduler, Settings, Status
from ratchet.domain.job import NewJob
from ratchet.errors import StoreTransientError
from ratchet.plugins import open_store
from ratchet.spi.store import ClaimRequest, Inserted
from tests.field_cases.faults import FaultyStore
from tests.field_cases.kit import wait_until

WAIT = 20.0
begun, leave = threading.Event(), threading.Event()
ran: list[str] = []


def stays(name: str = "") -> None:
    ran.append(name)
    begun.set()
    assert leave.wait(WAIT)


def nothing(name: str = "") -> None:
    ran.append(name)


async def later(name: str = "") -> None:
    ran.append(name)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    begun.clear()
    leave.clear()
    ran.clear()
    yield
    leave.set()


@pytest.fixture
def faulty(store_url: str) -> Iterator[FaultyStore]:
    store = FaultyStore(open_store(store_url))
    yield store
    leave.set()
    store.forgive()
    store.close()


def idle(faulty: FaultyStore, **execution: Any) -> Scheduler:
    """A node that has looked once and found nothing."""
    settings = Settings(execution=ExecutionSettings(**{"threads": 2, **execution}))
    scheduler = Scheduler(faulty.store, allow=[__name__], settings=settings).start()
    wait_until(lambda: faulty.calls["claim"], WAIT, "the first look")
    assert scheduler.node is not None
    poller = scheduler.node.parts.poller
    wait_until(lambda: poller.has_room_for(_plain()), WAIT, "the node is idle")
    return scheduler


def _plain() -> NewJob:
    from ratchet.domain.ids import new_id

    return NewJob(id=new_id(), target=f"{__name__}:nothing", payload="[]")


def status(handle: JobHandle[Any]) -> tuple[Status, int]:
    job = handle.job()
    assert job is not None
    return job.status, job.claim_seq


@pytest.mark.parametrize("body", [nothing, later])
def test_an_idle_node_gets_the_claim_with_the_insert(
    faulty: FaultyStore, body: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job runs by its first claim, which no claim call has brought."""
    scheduler = idle(faulty)
    brought: list[int] = []
    claim = faulty.real.claim

    def watched(request: ClaimRequest) -> Any:
        answer = claim(request)
        brought.append(len(answer.claims))
        return answer

    monkeypatch.setattr(faulty.real, "claim", watched)
    handle = scheduler.enqueue(body, "a").submit()
    assert status(handle)[0] is not Status.PENDING
    handle.result(timeout=WAIT)
    assert (ran, sum(brought), status(handle)) == (["a"], 0, (Status.SUCCEEDED, 1))
    assert [each.claim_seq for each in faulty.real.history(handle.id)] == [1]
    scheduler.stop(5)


def test_when_every_slot_is_taken_a_job_waits(faulty: FaultyStore) -> None:
    """With no free slot a job is inserted as PENDING, where any node finds it."""
    scheduler = idle(faulty, threads=1)
    first = scheduler.enqueue(stays, "first").submit()
    assert status(first) == (Status.RUNNING, 1)
    assert begun.wait(WAIT)
    second = scheduler.enqueue(nothing, "second").submit()
    assert status(second) == (Status.PENDING, 0)
    leave.set()
    second.result(timeout=WAIT)
    assert ran == ["first", "second"]
    scheduler.stop(5)


@pytest.mark.parametrize(
    "submit",
    [
        lambda s: s.schedule(timedelta(hours=1), nothing).submit(),
        lambda s: s.enqueue_many(nothing, [(), ()])[0],
    ],
)
def test_what_is_not_one_job_due_now_is_inserted_as_before(
    faulty: FaultyStore, submit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later job and a list of jobs ask for no claim."""
    scheduler = idle(faulty)
    asked: list[str | None] = []
    insert = faulty.real.insert

    def watched(jobs: Sequence[NewJob], **more: Any) -> Sequence[Inserted]:
        asked.extend(job.claim_for for job in jobs)
        return insert(jobs, **more)

    monkeypatch.setattr(faulty.real, "insert", watched)
    submit(scheduler)
    assert set(asked) == {None}
    scheduler.stop(5)


@pytest.mark.parametrize("words", [{"require_tags": {"gpu"}}, {"exclude_tags": {"cpu"}}])
def test_a_node_gets_nothing_that_its_filters_leave_to_others(faulty: FaultyStore, words: Any) -> None:
    """A job whose tags this node does not take is PENDING for the others."""
    settings = Settings(execution=ExecutionSettings(**words))
    with Scheduler(faulty.store, allow=[__name__], settings=settings) as scheduler:
        wait_until(lambda: faulty.calls["claim"], WAIT, "the first look")
        assert status(scheduler.enqueue(nothing).with_tags("cpu").submit()) == (Status.PENDING, 0)


def test_a_store_that_ignores_the_wish_is_asked_by_a_claim(
    faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the store grants nothing, the job is claimed as ever, and as soon."""
    scheduler = idle(faulty)
    insert = faulty.real.insert
    monkeypatch.setattr(
        faulty.real,
        "insert",
        lambda jobs, **more: insert([replace(job, claim_for=None) for job in jobs], **more),
    )
    handle = scheduler.enqueue(nothing, "a").submit()
    handle.result(timeout=WAIT)
    assert (ran, status(handle)) == (["a"], (Status.SUCCEEDED, 1))
    scheduler.stop(5)


def test_a_claim_whose_answer_was_lost_goes_back_at_once(faulty: FaultyStore) -> None:
    """An insert that was applied and raised leaves a claim that nobody knows: the node gives it back, uncharged."""
    scheduler = idle(faulty)
    faulty.fail("insert", when="after")
    builder = scheduler.enqueue(nothing, "a")
    with pytest.raises(StoreTransientError):
        builder.submit()
    handle = builder.submit()  # told that it is stored already
    ended = handle.wait(WAIT)
    assert (ran, ended.status, ended.claim_seq, ended.crash_count) == (["a"], Status.SUCCEEDED, 2, 0)
    scheduler.stop(5)


def test_a_node_that_stops_gives_back_the_claim_that_still_comes(faulty: FaultyStore) -> None:
    """Stop waits for an insert under way; its job is PENDING again, uncharged, before the node is gone."""
    scheduler = idle(faulty)
    barrier = faulty.hold("insert", when="after")
    handles: list[JobHandle[Any]] = []
    submitter = threading.Thread(target=lambda: handles.append(scheduler.enqueue(nothing, "a").submit()))
    submitter.start()
    assert barrier.reached.wait(WAIT)
    node = scheduler.node
    assert node is not None
    stopper = threading.Thread(target=scheduler.stop, args=(10,))
    stopper.start()
    wait_until(lambda: node.state == "stopping", WAIT, "the node stops")
    barrier.release()
    stopper.join(WAIT)
    submitter.join(WAIT)
    job = handles[0].job()
    assert job is not None
    assert (job.status, job.claim_seq, job.crash_count, job.attempts) == (Status.PENDING, 1, 0, 0)
    assert (ran, list(faulty.real.nodes())) == ([], [])


def test_a_node_without_heartbeat_gets_no_claim(faulty: FaultyStore) -> None:
    """A node whose claims count as lost takes no new one with an insert either."""
    settings = Settings(
        node=NodeSettings(heartbeat=timedelta(seconds=0.2), orphan_grace=timedelta(seconds=3))
    )
    scheduler = Scheduler(faulty.store, allow=[__name__], settings=settings).start()
    faulty.fail("heartbeat", times=10**6)
    node = scheduler.node
    assert node is not None
    wait_until(lambda: node.parts.watchdog.fenced, WAIT, "the node is fenced")
    assert status(scheduler.enqueue(nothing).submit()) == (Status.PENDING, 0)
    faulty.forgive()
    scheduler.stop(5)


def test_our_stores_grant_the_claim(store_url: str, tmp_path: Path) -> None:
    """Each of our stores inserts a due job with the claim that is asked for."""
    store = open_store(store_url)
    (answer,) = store.insert([replace(_plain(), claim_for="n")])
    assert answer.claim is not None
    assert list(store.held("n")) == [(answer.id, 1)]
    store.close()


def test_a_stop_is_not_held_up_by_a_store_that_hangs(faulty: FaultyStore) -> None:
    """Where the store does not answer, stop comes back in about its time."""
    scheduler = idle(faulty)
    held = [faulty.hold(name) for name in ("forget_node", "heartbeat", "held", "nodes")]
    begin = time.monotonic()
    scheduler.stop(1)
    assert time.monotonic() - begin < 10  # one second, and one for each goodbye
    assert held[0].reached.is_set()
    faulty.forgive()
