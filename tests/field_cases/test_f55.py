"""F55: future work blocks present work; short jobs sit behind a long one while another node idles."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pytest

from ratchet import Job, JobHandle, PollingSettings, Scheduler, Selection, Status
from ratchet.domain.lifecycle import AttemptEnd
from ratchet.spi.store import JobStore
from tests.field_cases.faults import FaultyStore
from tests.field_cases.kit import SCALE, Gates, Ledger, stays, wait_until
from tests.field_cases.stage import Stage, busy, running

pytestmark = [pytest.mark.field_case("F55"), pytest.mark.mongodb_needs("speed")]

POLL: Final = 0.1
"""The poll interval of the nodes here, in seconds."""
FUTURE, SHORT = 500, 20
RUNNING: Final = Selection(statuses=frozenset({Status.RUNNING}))


def far_away(folder: str) -> None:
    """Due in 30 days: must not run."""
    with Ledger(folder).entry():
        pass


def long(folder: str, gate: str = "long") -> None:
    """The job of 60 s: as long as its gate is closed."""
    with Ledger(folder).entry():
        Gates(folder).wait(gate)


def short(folder: str, seconds: float = 0.01) -> None:
    """A job of 10 ms."""
    with Ledger(folder).entry():
        time.sleep(seconds)  # this is the work


async def long_async(folder: str, gate: str = "long") -> None:
    """The long one on the loop."""
    with Ledger(folder).entry():
        await asyncio.to_thread(Gates(folder).wait, gate)


async def short_async(folder: str) -> None:
    """The short one on the loop."""
    with Ledger(folder).entry():
        await asyncio.sleep(0.01)


class Watch:
    """Looks at the store all the time: how long was each claim RUNNING without a row in the ledger."""

    def __init__(self, store: JobStore, ledger: Ledger) -> None:
        self._store, self._ledger = store, ledger
        self._seen: dict[tuple[UUID, int], float] = {}
        self.longest = 0.0

    def look(self) -> None:
        found = {(job.id, job.claim_seq) for job in self._store.find(RUNNING, limit=1000).jobs}
        begun = {(row.job, row.claim_seq) for row in self._ledger.rows()}
        now = time.monotonic()
        self._seen = {key: self._seen.get(key, now) for key in found - begun}
        self.longest = max([self.longest, *(now - since for since in self._seen.values())])

    @contextmanager
    def all_the_time(self) -> Iterator[None]:
        """In the background, for the block."""
        done = threading.Event()

        def run() -> None:
            while not done.wait(0.01):
                self.look()

        self.look()  # before anything can change, however late the thread gets its turn
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def slow_pace(scheduler: Scheduler) -> Scheduler:
    """Start it with a burst interval of `POLL`, and a normal pace that is far slower, as by default."""
    pace = PollingSettings(burst=POLL, fastest=60 * POLL, slowest=120 * POLL, idle=120 * POLL)
    scheduler.settings = replace(scheduler.settings, polling=pace)
    return scheduler.start()


def finish(handles: list[JobHandle[Any]], polls: float) -> None:
    """All of them succeed within so many poll intervals (at ten times the case's value)."""
    began = time.monotonic()
    for handle in handles:
        left = polls * POLL * SCALE - (time.monotonic() - began)
        assert handle.wait(max(left, 0.01)).status is Status.SUCCEEDED


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_f55_short_jobs_finish_while_a_long_one_runs(stage: Stage, kind: str) -> None:
    """2 nodes x 2 slots, 500 jobs due in 30 days, one long job, then 20 short: the 20 finish within 3 polls."""
    first, second = (stage.node(threads=2, async_=2, poll=POLL) for _ in range(2))
    folder = str(stage.folder)
    far = [first.schedule(timedelta(days=30), far_away, folder) for _ in range(FUTURE)]
    first.submit_many(far)
    body: Any = long_async if kind == "async" else long
    small: Any = short_async if kind == "async" else short
    standing = first.enqueue(body, folder).submit()
    wait_until(lambda: stage.ledger.executions(standing.id))
    handles = first.enqueue_many(small, [(folder,)] * SHORT)
    finish(handles, 3)
    assert standing.status is Status.RUNNING
    assert first.query.counts()[Status.PENDING] == FUTURE
    assert all(job.claim_seq == 0 for job in first.query.iterate(Selection(target="far_away")))
    stage.gates.open("long")
    standing.result(10)
    wait_until(lambda: busy(first) + busy(second) == 0)


def test_f55_short_jobs_finish_whoever_submits(stage: Stage) -> None:
    """The same from a client that executes nothing itself: nodes hear of it by polling alone, within 3 polls."""
    nodes = [stage.node(stage.faulty().store, threads=2, poll=POLL) for _ in range(2)]
    client = stage.node(start=False)
    folder = str(stage.folder)
    client.submit_many(client.schedule(timedelta(days=30), far_away, folder) for _ in range(FUTURE))
    client.enqueue(long, folder).submit()
    wait_until(lambda: stage.gates.reached("long"))
    finish(client.enqueue_many(short, [(folder,)] * SHORT), 3)
    assert sum(busy(node) for node in nodes) == 1
    stage.gates.open("long")


def test_f55_no_job_is_running_without_executing(stage: Stage) -> None:
    """While long jobs run, no due job is RUNNING without a ledger row for more than one poll interval."""
    first, second = (stage.node(threads=2, poll=POLL) for _ in range(2))
    folder = str(stage.folder)
    watch = Watch(first.store, stage.ledger)
    for handle in first.enqueue_many(short, [(folder, 0.001)] * 20):  # nodes learn that jobs are short
        handle.wait(10)
    with watch.all_the_time():
        standing = [first.enqueue(long, folder).submit() for _ in range(3)]
        wait_until(lambda: stage.gates.reached("long") == 3)
        finish(first.enqueue_many(short, [(folder,)] * SHORT), 3)
    assert watch.longest <= POLL * SCALE
    assert all(handle.status is Status.RUNNING for handle in standing)
    stage.gates.open("long")
    assert busy(first) + busy(second) <= 3


@dataclass
class Stuck:
    """A node whose slots are all taken by long jobs, and short ones that it has claimed ahead of them."""

    stage: Stage
    threads: int
    node: Scheduler
    watch: Watch
    long: list[JobHandle[Any]]
    short: list[JobHandle[Any]]

    def jobs(self) -> list[Job]:
        """The short ones as they are now."""
        return list(self.node.store.get_many([handle.id for handle in self.short]))

    def wait_returned(self) -> None:
        """They go back within a burst interval (at ten times the case's value)."""
        wait_until(
            lambda: {job.status for job in self.jobs()} == {Status.PENDING},
            POLL * SCALE,
            "what was claimed ahead is released",
        )


def stick(stage: Stage, threads: int, start: Callable[[Scheduler], Scheduler]) -> Stuck:
    """Long and short jobs come in one claim, the long ones first; answers while none has begun."""
    store = stage.faulty()
    node = start(stage.node(store.store, threads=threads, start=False))
    folder = str(stage.folder)
    for handle in node.enqueue_many(short, [(folder, 0.001)] * 20):  # the node learns that jobs are short
        handle.wait(60)
    client = stage.node(start=False)
    stop = store.hold("claim", when="after", matches=lambda arguments: client.query.count(RUNNING) > 0)
    builders = [client.enqueue(long, folder) for _ in range(threads)]
    handles = client.submit_many([*builders, *(client.enqueue(short, folder) for _ in range(10))])
    stuck = Stuck(
        stage, threads, node, Watch(client.store, stage.ledger), handles[:threads], handles[threads:]
    )
    running(node).parts.poller.look()  # a hint without a burst, as one from another process
    assert stop.reached.wait(10)
    assert client.query.count(RUNNING) > threads, "nothing was claimed ahead"
    with stuck.watch.all_the_time():
        stop.release()
        wait_until(lambda: stage.gates.reached("long") == threads)
        stuck.wait_returned()
    return stuck


@pytest.mark.parametrize("threads", [1, 2])
def test_f55_what_was_claimed_ahead_of_a_long_job_goes_back(stage: Stage, threads: int) -> None:
    """Long jobs take every slot of a node that had claimed ahead, at its slow pace: released within a burst interval.

    Nothing wakes the node then: no slot becomes free, nothing is submitted to it.
    """
    stuck = stick(stage, threads, slow_pace)
    assert stuck.watch.longest <= POLL * SCALE
    other = stage.node(threads=1, poll=POLL)
    finish(stuck.short, 3)
    stage.gates.open("long")
    for handle in [*stuck.long, *stuck.short]:
        job = handle.wait(10)
        assert (job.status, job.attempts, job.crash_count) == (Status.SUCCEEDED, 0, 0)
        assert stage.ledger.executions(handle.id) == 1
        ends = {entry.end for entry in other.store.history(handle.id)}
        assert ends <= {AttemptEnd.RELEASED, AttemptEnd.SUCCEEDED}


def test_f55_a_full_node_does_not_take_again_what_it_gave_back(stage: Stage) -> None:
    """While long jobs hold every slot, the jobs that went back are not claimed again and again by the same node."""
    stuck = stick(stage, 2, lambda node: node.start())
    stays(
        lambda: {(job.status, job.claim_seq) for job in stuck.jobs()} == {(Status.PENDING, 1)},
        10 * POLL,
        "PENDING, claimed once",
    )
    stage.gates.open("long")
    for handle in stuck.short:
        assert handle.wait(10).claim_seq == 2


def test_f55_a_slot_that_becomes_free_takes_what_went_back(stage: Stage) -> None:
    """The long jobs end at last: the same node runs what it gave back within 3 polls, not at its slow pace."""
    stuck = stick(stage, 2, slow_pace)
    stage.gates.open("long")
    finish(stuck.short, 3)


@pytest.mark.stores("sqlite")
def test_f55_killing_the_busy_node_delays_only_what_it_executed(
    stage: Stage, spawn: Callable[..., Any]
) -> None:
    """The node with the long job is killed: 20 jobs due then finish within 3 polls, only the long one is redone."""
    folder = str(stage.folder)
    client = stage.node(start=False)
    victim = spawn(threads=2, poll=POLL)
    standing = client.enqueue(long, folder).submit()
    wait_until(lambda: stage.gates.reached("long") == 1)
    survivor = spawn(threads=2, poll=POLL)
    finish(client.enqueue_many(short, [(folder,)] * SHORT), 3)
    victim.kill()
    handles = client.enqueue_many(short, [(folder,)] * SHORT)
    finish(handles, 3)
    assert (standing.status, stage.gates.reached("long")) == (Status.RUNNING, 1)
    stage.gates.open("long")
    job = standing.wait(30)
    assert (job.status, job.crash_count, stage.ledger.executions(standing.id)) == (Status.SUCCEEDED, 1, 2)
    assert {stage.ledger.executions(handle.id) for handle in handles} == {1}
    assert {row.pid for row in stage.ledger.rows() if row.job in {h.id for h in handles}} == {survivor.pid}


def test_f55_cutting_the_busy_node_off_delays_only_what_it_executed(stage: Stage) -> None:
    """The same on every store: the busy node loses the store for ever; 20 further jobs finish within 3 polls."""
    folder = str(stage.folder)
    lost: FaultyStore = stage.faulty()
    victim = stage.node(lost.store, threads=2, poll=POLL)
    client = stage.node(start=False)
    standing = client.enqueue(long, folder).submit()
    wait_until(lambda: stage.gates.reached("long") == 1)
    stage.node(threads=2, poll=POLL)
    finish(client.enqueue_many(short, [(folder,)] * SHORT), 3)
    wait_until(lambda: running(victim).known == 1)
    lost.go_down()
    handles = client.enqueue_many(short, [(folder,)] * SHORT)
    finish(handles, 3)
    assert standing.status is Status.RUNNING
    stage.gates.open("long")
    job = standing.wait(30)
    assert (job.status, job.crash_count, stage.ledger.executions(standing.id)) == (Status.SUCCEEDED, 1, 2)
    assert {stage.ledger.executions(handle.id) for handle in handles} == {1}
