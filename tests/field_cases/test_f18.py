"""F18: a blocked event loop loses its own lease.

Real time. The lease is the shortest allowed, 3 s instead of 2 s, and the jobs last 7 s instead of 6 s, so that they
outlast it more than twice, as in the case. All stories run at the same time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from ratchet import Job, JobHandle, Scheduler, Status
from ratchet.domain.lifecycle import Trigger
from tests.field_cases.kit import Gates, Ledger, holds, wait_until
from tests.field_cases.stage import Stage, busy, each_store, is_at_work, running, stage_on, together

SECONDS = 7.0
LEASE: Any = {"grace": 3.0, "heartbeat": 1.0, "sweep": 0.5, "poll": 0.1}


async def awaits(folder: str) -> None:
    """J1: awaits, and so depends on a loop that J2 blocks."""
    with Ledger(folder).entry():
        Gates(folder).open("j1")
        await asyncio.sleep(SECONDS)


async def blocks(folder: str) -> None:
    """J2: blocks the loop with a plain sleep."""
    with Ledger(folder).entry():
        time.sleep(SECONDS)  # noqa: ASYNC251 - this is the fault


async def quick(folder: str) -> None:
    """One of the jobs that arrive while the loop is blocked."""
    with Ledger(folder).entry():
        pass


async def together_or_never(folder: str) -> None:
    """Waits until four of it stand at the gate."""
    with Ledger(folder).entry():
        await Gates(folder).wait_async("four")


@dataclass
class Story:
    """What became of J1, J2 and eight quick jobs."""

    stage: Stage
    node: Scheduler
    alone: bool
    j1: JobHandle[None]
    j2: JobHandle[None]
    quick: list[JobHandle[None]] = field(default_factory=list)

    def job(self, handle: JobHandle[None]) -> Job:
        job = handle.job()
        assert job is not None
        return job


def play(stage: Stage, alone: bool) -> Story:
    """J1 awaits, J2 blocks the loop, eight quick jobs arrive; with or without a second healthy node."""
    node = stage.node(threads=0, async_=4, **LEASE)
    j1 = node.enqueue_now(awaits, str(stage.folder))
    wait_until(lambda: stage.gates.is_open("j1"))
    story = Story(stage, node, alone, j1, node.enqueue_now(blocks, str(stage.folder)))
    wait_until(lambda: stage.ledger.rows(story.j2.id))
    if not alone:
        stage.node(name="second", threads=0, async_=4, **LEASE)
    time.sleep(LEASE["grace"] / 2)  # the quick jobs arrive in the middle of it, by the case
    story.quick = node.enqueue_many(quick, [(str(stage.folder),)] * 8)
    for handle in (j1, story.j2, *story.quick):
        handle.wait(40)
    wait_until(lambda: busy(node) == 0 and running(node).known == 0, what="all slots are free")
    return story


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, bool], Story]]:
    """All stories, played at the same time: they mostly wait."""
    keys = [(each.values[0], alone) for each in each_store() for alone in (True, False)]
    stages = {key: stage_on(key[0], tmp_path_factory.mktemp("f18"), __name__) for key in keys}
    try:
        played = together(*(lambda key=key: play(stages[key], key[1]) for key in keys))
        yield dict(zip(keys, played, strict=True))
    finally:
        for stage in stages.values():
            stage.close()


@pytest.fixture(params=each_store())
def alone(request: pytest.FixtureRequest, stories: dict[tuple[str, bool], Story]) -> Story:
    """The story of the node alone."""
    return stories[request.param, True]


@pytest.fixture(params=each_store())
def in_company(request: pytest.FixtureRequest, stories: dict[tuple[str, bool], Story]) -> Story:
    """The story with a second healthy node."""
    return stories[request.param, False]


def test_f18_node_is_alive(alone: Story) -> None:
    """After all that the node is alive: every loop of it, and it still says so in the store."""
    assert is_at_work(alone.node)
    (node,) = alone.node.query.nodes()
    assert node.age.total_seconds() < LEASE["grace"]
    assert node.info.state == "running"


def test_f18_j1_never_overlaps_itself(alone: Story) -> None:
    """J1's ledger shows no two overlapping rows in this process."""
    assert alone.stage.ledger.overlapping(alone.j1.id) == []
    assert alone.stage.ledger.executions(alone.j1.id) == 1


def test_f18_j1_and_j2_succeeded(alone: Story) -> None:
    """J1 and J2 SUCCEEDED, with nothing charged."""
    jobs = [alone.job(alone.j1), alone.job(alone.j2)]
    assert [(job.status, job.crash_count, job.attempts) for job in jobs] == [(Status.SUCCEEDED, 0, 0)] * 2


def test_f18_quick_jobs_all_succeeded(alone: Story) -> None:
    """All 8 quick jobs SUCCEEDED, each executed once."""
    assert [handle.status for handle in alone.quick] == [Status.SUCCEEDED] * 8
    assert [alone.stage.ledger.executions(handle.id) for handle in alone.quick] == [1] * 8


def test_f18_four_slots_are_free(alone: Story) -> None:
    """Free slots = 4: four more jobs run at the same time, a fifth does not."""
    gates, node = alone.stage.gates, alone.node
    assert (busy(node), running(node).parts.loop.slots) == (0, 4)
    handles = node.enqueue_many(together_or_never, [(str(alone.stage.folder),)] * 5)
    wait_until(lambda: gates.reached("four") == 4, what="four run at once")
    assert not holds(lambda: gates.reached("four") > 4, 0.3)
    gates.open("four")
    for handle in handles:
        handle.wait(30)


def test_f18_with_a_second_node_at_most_two_executions(in_company: Story) -> None:
    """With a second healthy node present J1 has at most 2 executions."""
    assert in_company.stage.ledger.executions(in_company.j1.id) <= 2


def test_f18_with_a_second_node_one_accepted_result(in_company: Story) -> None:
    """... and exactly 1 accepted result."""
    history = in_company.node.store.history(in_company.j1.id)
    assert [each.trigger for each in history].count(Trigger.SUCCEED) == 1
    assert in_company.j1.status is Status.SUCCEEDED
    assert [handle.status for handle in in_company.quick] == [Status.SUCCEEDED] * 8
