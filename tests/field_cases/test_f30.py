"""F30: a version conflict stops the node.

Nodes are of this process on the memory store, processes on SQLite. The jobs take 50 ms each, so that a client has the
time to cancel some while they run.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import pytest

from ratchet import JobHandle, Scheduler, Selection, Status
from ratchet.domain.lifecycle import Trigger
from tests.field_cases.kit import START, FileClock, Ledger, wait_until
from tests.field_cases.stage import Stage, each_store, is_at_work, stage_on

NODES = 4
JOBS = 300
CANCELED = 50
SECONDS = 0.05


def work(folder: str) -> None:
    """One of the 300."""
    with Ledger(folder).entry():
        time.sleep(SECONDS)


@dataclass
class Story:
    """Four nodes, 300 jobs due at one instant, 50 of them canceled while they ran; everything has settled."""

    stage: Stage
    client: Scheduler
    alive: Callable[[], list[bool]]
    handles: list[JobHandle[None]]
    canceled: list[UUID]


@pytest.fixture(scope="module", params=each_store())
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """The case played once per store."""
    stage = stage_on(request.param, tmp_path_factory.mktemp("f30"), __name__)
    clock = FileClock(stage.folder / "clock")
    clock.set(START)
    client = stage.node(stage.open(clock=clock), start=False)
    alive: Callable[[], list[bool]]
    if request.param == "memory":
        nodes = [stage.node(stage.open(clock=clock), name=f"n{number}") for number in range(NODES)]
        alive = lambda: [is_at_work(node) for node in nodes]
    else:
        workers = [stage.spawn(wait=False, name=f"n{number}") for number in range(NODES)]
        for worker in workers:
            worker.wait_started()
        alive = lambda: [worker.alive for worker in workers]
    due = START + timedelta(hours=1)
    try:
        handles = [client.schedule(due, work, str(stage.folder)).submit() for _ in range(JOBS)]
        clock.set(due)
        canceled = [
            job for number in range(CANCELED) if client.cancel(job := victim(stage, client, handles, number))
        ]
        for handle in handles:
            handle.wait(60)
        # A canceled job has settled before its body ends.
        wait_until(lambda: all(row.end for row in stage.ledger.rows()), 30, "all bodies end")
        yield Story(stage, client, alive, handles, canceled)
    finally:
        stage.close()


def victim(stage: Stage, client: Scheduler, handles: list[JobHandle[None]], number: int) -> UUID:
    """One to cancel, after every fifth job that has begun: at random, every second one of those that run now."""
    wait_until(lambda: len(stage.ledger.rows()) > 5 * number, 30, "more jobs begin")
    running = client.query.find(Selection(statuses=frozenset({Status.RUNNING}))).jobs
    return random.choice(running).id if running and number % 2 else random.choice(handles).id


def test_f30_no_node_stops(story: Story) -> None:
    """No node stops: all four are alive, with all their loops, and registered."""
    assert story.alive() == [True] * NODES
    assert {node.info.state for node in story.client.query.nodes()} == {"running"}
    assert len(story.client.query.nodes()) == NODES


def test_f30_each_job_is_executed_at_most_once(story: Story) -> None:
    """250 to 300 jobs have a ledger row, and each has at most one."""
    executions = Counter(row.job for row in story.stage.ledger.rows())
    assert JOBS - CANCELED <= len(executions) <= JOBS
    assert set(executions.values()) == {1}


def test_f30_final_states(story: Story) -> None:
    """Final states are only SUCCEEDED or CANCELED, and CANCELED exactly those whose cancel said so."""
    states = {handle.id: handle.status for handle in story.handles}
    assert set(states.values()) <= {Status.SUCCEEDED, Status.CANCELED}
    assert {job for job, status in states.items() if status is Status.CANCELED} == set(story.canceled)
    assert story.canceled, "nothing was canceled: the jobs were too quick"


def test_f30_no_write_after_the_cancel(story: Story) -> None:
    """A job canceled while it ran has that in its history, and nothing after it."""
    ran = {row.job for row in story.stage.ledger.rows()} & set(story.canceled)
    assert ran, "no job was canceled while it ran"
    for job in ran:
        *before, last = [each.trigger for each in story.client.store.history(job)]
        assert last is Trigger.CANCEL_RUNNING
        assert set(before) <= {Trigger.RELEASE}


def test_f30_a_later_job_runs(story: Story) -> None:
    """A job submitted afterwards runs."""
    assert story.client.enqueue_now(work, str(story.stage.folder)).wait(30).status is Status.SUCCEEDED
