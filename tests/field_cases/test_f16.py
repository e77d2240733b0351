"""F16: a job delayed longer than the lease is handed out again and again.

The clock is the case's: steps of 5 minutes of store time, each as long as it takes every node to poll and to
report itself. A node of this process is killed by cutting it off from the store for ever; processes get SIGKILL.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from ratchet import Job, JobHandle, Status
from tests.field_cases.faults import FaultyStore
from tests.field_cases.kit import START, FileClock, Gates, Ledger, wait_until
from tests.field_cases.stage import Stage, each_store, stage_on
from tests.field_cases.worker import Worker

HOUR = timedelta(hours=1)
STEP = timedelta(minutes=5)
DUE = START + 6 * HOUR
NODES = 8
QUICK: Any = {"threads": 2, "grace": 3600.0, "heartbeat": 0.05, "sweep": 0.05, "poll": 0.02}


def body(folder: str) -> None:
    """What is to happen once, six hours later."""
    with Ledger(folder).entry():
        pass


def standing(folder: str) -> None:
    """A body that waits at the gate `go`."""
    with Ledger(folder).entry():
        Gates(folder).wait("go")


@dataclass
class Story:
    """What was seen: the job before it was due, and at the end."""

    before: list[Job]
    job: Job
    ledger: Ledger


class Here:
    """Nodes of this process."""

    def __init__(self, stage: Stage, clock: FileClock) -> None:
        self.stage, self.clock, self.store = stage, clock, stage.open(clock=clock)
        self.nodes = [self._start() for _ in range(NODES)]

    def _start(self) -> FaultyStore:
        store = self.stage.faulty(clock=self.clock)
        self.stage.node(store.store, **QUICK)
        return store

    def restart_one(self) -> None:
        victim = random.choice(self.nodes)
        victim.go_down()
        self.nodes[self.nodes.index(victim)] = self._start()

    def settle_down(self) -> None:
        """Every node has polled and reported itself at this instant."""
        now = self.clock.now()
        # Two claims more: one may have been under way when the clock moved.
        enough = [(store, store.calls["claim"] + 2) for store in self.nodes]
        wait_until(
            lambda: all(store.calls["claim"] >= calls for store, calls in enough), what="every node polls"
        )
        wait_until(
            lambda: sum(each.last_heartbeat >= now for each in self.store.nodes()) >= NODES,
            what="every node reports itself",
        )


class Processes:
    """Worker processes."""

    def __init__(self, stage: Stage, clock: FileClock) -> None:
        self.stage, self.clock, self.store = stage, clock, stage.open(clock=clock)
        self.nodes = [stage.spawn(wait=False, **QUICK) for _ in range(NODES)]
        for each in self.nodes:
            each.wait_started(60)

    def restart_one(self) -> None:
        victim: Worker = random.choice(self.nodes)
        victim.kill()
        self.nodes[self.nodes.index(victim)] = self.stage.spawn(wait=True, **QUICK)

    def settle_down(self) -> None:
        """Every process has reported itself at this instant; they poll as often."""
        now, pids = self.store.now(), {each.pid for each in self.nodes}
        wait_until(
            lambda: pids <= {each.info.pid for each in self.store.nodes() if each.last_heartbeat >= now},
            what="every process reports itself",
        )


def advance(
    stage: Stage, clock: FileClock, nodes: Here | Processes, step: timedelta, restarts: timedelta
) -> Story:
    """Seven hours in steps, a node killed and replaced again and again."""
    submitter = stage.node(stage.open(clock=clock), start=False)
    handle: JobHandle[None] = submitter.schedule(6 * HOUR, body, str(stage.folder)).submit()
    before: list[Job] = []
    while (now := clock.now()) < START + 7 * HOUR:
        nodes.settle_down()
        job = handle.job()
        assert job is not None
        if now < DUE:
            before.append(job)
        else:
            handle.wait(30)
        if (now - START) % restarts == timedelta():
            nodes.restart_one()
        clock.advance(step)
    job = handle.job()
    assert job is not None
    return Story(before, job, stage.ledger)


@pytest.fixture(
    scope="module",
    params=[*each_store(), pytest.param("sqlite processes", marks=pytest.mark.stores("sqlite"))],
)
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """The case played once per store: on memory as it is; elsewhere, scaled down, in steps of 15 minutes, and
    with processes in steps of 30, a kill every 90.
    """
    name, _, processes = request.param.partition(" ")
    stage = stage_on(name, tmp_path_factory.mktemp("f16"), __name__)
    clock = FileClock(stage.folder / "clock")
    clock.set(START)
    try:
        if processes:
            yield advance(stage, clock, Processes(stage, clock), 6 * STEP, 18 * STEP)
        else:
            step = STEP if name == "memory" else 3 * STEP
            yield advance(stage, clock, Here(stage, clock), step, 6 * STEP)
    finally:
        stage.close()


def test_f16_before_the_due_time_pending_unowned_unclaimed(story: Story) -> None:
    """At every step before it is due the job is PENDING, unowned, and was never claimed."""
    assert len(story.before) in (72, 24, 12)
    assert {(job.status, job.picked_by, job.claim_seq) for job in story.before} == {(Status.PENDING, None, 0)}


def test_f16_then_exactly_one_execution(story: Story) -> None:
    """After it exactly 1 execution."""
    assert len(story.ledger.rows(story.job.id)) == story.job.claim_seq == 1


def test_f16_not_before_the_due_time(story: Story) -> None:
    """Its start is not before the due time."""
    assert min(row.start for row in story.ledger.rows(story.job.id)) >= DUE.timestamp()


def test_f16_succeeded(story: Story) -> None:
    """It is SUCCEEDED."""
    assert story.job.status is Status.SUCCEEDED


def test_f16_a_claim_lasts_longer_than_the_lease_while_its_node_lives(
    stage: Stage, file_clock: FileClock
) -> None:
    """The reservation of a running job is renewed by its node: no second delivery after one lease."""
    nodes = Here(stage, file_clock)
    submitter = stage.node(stage.open(clock=file_clock), start=False)
    handle = submitter.enqueue_now(standing, str(stage.folder))
    wait_until(lambda: stage.gates.reached("go"))
    for _ in range(15):
        file_clock.advance(STEP)
        nodes.settle_down()
    stage.gates.open("go")
    handle.wait(30)
    assert stage.ledger.executions(handle.id) == 1
    job = handle.job()
    assert job is not None
    assert (job.status, job.claim_seq, job.crash_count) == (Status.SUCCEEDED, 1, 0)
