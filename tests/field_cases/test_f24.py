"""F24: claimed in the store, refused by the executor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import UUID

import pytest

from ratchet import Job, JobHandle, Scheduler, Selection, Status
from ratchet.domain.lifecycle import Trigger
from ratchet.engine.attempt import Attempt
from ratchet.errors import StoreError
from ratchet.spi.executor import ExecutorRefused
from tests.field_cases.kit import SCALE, Gates, Ledger, holds, wait_until
from tests.field_cases.stage import Stage, busy, each_store, running, stage_on

POLL = 0.1


def quick(folder: str) -> None:
    """A job."""
    with Ledger(folder).entry():
        pass


def pair(folder: str) -> None:
    """A job that is one of two at once, or waits for ever."""
    with Ledger(folder).entry():
        Gates(folder).wait("both")


def refuse(scheduler: Scheduler, times: int, error: Callable[[], Exception]) -> list[int]:
    """Have the executor reject the next submissions; answers a list that grows with each."""
    threads = running(scheduler).parts.threads
    real, refused = threads.submit, [0]

    def submit(attempt: Attempt) -> None:
        if len(refused) <= times:
            refused.append(1)
            raise error()
        real(attempt)

    threads.submit = submit  # type: ignore[method-assign]
    return refused


@dataclass
class Story:
    """Six jobs, the first three submissions refused."""

    stage: Stage
    node: Scheduler
    handles: list[JobHandle[None]]
    ghosts: dict[UUID, float]

    def jobs(self) -> list[Job]:
        return list(self.node.query.iterate())


def watch(story: Story, stop: threading.Event) -> None:
    """Measure how long each claim is RUNNING without a row in the ledger; `ghosts` has the longest per job."""
    since: dict[tuple[UUID, int], float] = {}
    running_only = Selection(statuses=frozenset({Status.RUNNING}))
    while not stop.wait(0.005):
        try:
            held = {(job.id, job.claim_seq) for job in story.node.store.find(running_only).jobs}
        except StoreError:
            continue
        held -= {(row.job, row.claim_seq) for row in story.stage.ledger.rows()}
        now = time.monotonic()
        since = {key: since.get(key, now) for key in held}
        for (job, _), began in since.items():
            story.ghosts[job] = max(story.ghosts.get(job, 0.0), now - began)


def closed() -> Exception:
    return RuntimeError("cannot schedule new futures after shutdown")


def full() -> Exception:
    return ExecutorRefused("no room")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((each.values[0], error), marks=each.marks, id=f"{each.values[0]}-{error.__name__}")
        for each, error in zip(each_store(), (full, closed, full, full), strict=False)
    ],
)
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """The first part of the case played once per store: 2 slots, the executor rejects 3 submissions, 6 jobs."""
    name, error = request.param
    stage = stage_on(name, tmp_path_factory.mktemp("f24"), __name__)
    node = stage.node(threads=2, poll=POLL)
    refused = refuse(node, 3, error)
    stop = threading.Event()
    story = Story(stage, node, [], {})
    watcher = threading.Thread(target=watch, args=(story, stop))
    watcher.start()
    try:
        story.handles = node.enqueue_many(quick, [(str(stage.folder),)] * 6)
        for handle in story.handles:
            handle.wait(60)
        assert sum(refused) == 3
        wait_until(lambda: busy(node) == 0 and running(node).known == 0)
        yield story
    finally:
        stop.set()
        watcher.join()
        stage.close()


def test_f24_all_six_succeeded(story: Story) -> None:
    """All 6 SUCCEEDED."""
    assert [handle.status for handle in story.handles] == [Status.SUCCEEDED] * 6


def test_f24_one_execution_each(story: Story) -> None:
    """1 execution each."""
    assert [story.stage.ledger.executions(handle.id) for handle in story.handles] == [1] * 6


def test_f24_rejections_consume_no_attempt(story: Story) -> None:
    """No attempt and no crash is charged for a rejection: it ends its claim as a release."""
    assert {(job.attempts, job.crash_count) for job in story.jobs()} == {(0, 0)}
    ends = [each.trigger for job in story.jobs() for each in story.node.store.history(job.id)]
    assert sorted(ends) == sorted([Trigger.SUCCEED] * 6 + [Trigger.RELEASE] * 3)


def test_f24_two_slots_are_free_at_the_end(story: Story) -> None:
    """Free slots 2 at the end: two more jobs run at the same time, a third does not."""
    handles = story.node.enqueue_many(pair, [(str(story.stage.folder),)] * 3)
    wait_until(lambda: story.stage.gates.reached("both") == 2, what="two run at once")
    assert running(story.node).parts.threads.busy() == 2
    assert not holds(lambda: story.stage.gates.reached("both") > 2, 3 * POLL)
    story.stage.gates.open("both")
    for handle in handles:
        handle.wait(30)


def test_f24_no_ghost_claim(story: Story) -> None:
    """At no time a job is RUNNING for longer than one poll interval (0.1 s; asserted: 1 s) without a ledger row."""
    assert max(story.ghosts.values(), default=0.0) <= POLL * SCALE, story.ghosts


@pytest.mark.parametrize("closed_already", [False, True])
def test_f24_rejected_by_shutdown_is_pending_and_unowned(stage: Stage, closed_already: bool) -> None:
    """What a claim brings while the node stops, its executors closed or not, is given back before `stop` returns."""
    faulty = stage.faulty()
    client = stage.node(start=False)
    handles = client.enqueue_many(quick, [(str(stage.folder),)] * 2)
    barrier = faulty.hold("claim", when="after")
    scheduler = stage.node(faulty.store, threads=2, poll=POLL)
    node = running(scheduler)
    assert barrier.reached.wait(30)
    assert {handle.status for handle in handles} == {Status.RUNNING}
    if closed_already:
        node.parts.threads.close()
    stopping = threading.Thread(target=scheduler.stop, args=(5.0,))
    stopping.start()
    wait_until(lambda: node.state == "stopping")
    barrier.release()
    stopping.join(30)
    assert not stopping.is_alive()
    jobs = list(client.query.iterate())
    assert {(job.status, job.picked_by, job.attempts, job.crash_count) for job in jobs} == {
        (Status.PENDING, None, 0, 0)
    }
    assert stage.ledger.rows() == []


def test_f24_a_claim_that_hangs_does_not_hold_up_the_shutdown(stage: Stage) -> None:
    """A claim call that hangs for longer than the shutdown: `stop` keeps its time, and recovery finds the jobs."""
    faulty = stage.faulty()
    client = stage.node(start=False)
    (handle,) = client.enqueue_many(quick, [(str(stage.folder),)])
    stop = faulty.hold("claim", when="after")
    node = stage.node(faulty.store, threads=2, poll=POLL)
    assert stop.reached.wait(30)
    start = time.monotonic()
    node.stop(1.0)
    took = time.monotonic() - start
    stop.release()
    assert took < 3.0
    assert handle.status is Status.RUNNING
    stage.node(stage.open(), name="another")
    assert handle.wait(30).status is Status.SUCCEEDED
