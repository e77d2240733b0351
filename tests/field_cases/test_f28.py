"""F28: the work is done, but the outcome cannot be written.

Scaled: the five failures come as fast as the settler tries again; a lease of 30 s is 3 s, 60 s of failed writes are
the time in which another node, for which the clock is moved on, has taken the job and finished it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pytest

from ratchet import Backoff, JobCompleted, JobContext, JobFailed, JobHandle, JobRetrying, Scheduler, Status
from ratchet.domain.lifecycle import Trigger
from tests.field_cases.faults import FaultyStore
from tests.field_cases.kit import FileClock, Gates, Ledger, append, wait_until
from tests.field_cases.stage import Stage, busy, each_store, running, stage_on, together

When = Literal["before", "after"]


def answer(folder: str) -> int:
    """The work."""
    with Ledger(folder).entry():
        return 42


def who(folder: str) -> str:
    """The work of a job that two nodes get: waits where it is told to, answers who did it."""
    with Ledger(folder).entry() as context:
        Gates(folder).wait(context.node)
        return context.node


def stubborn(folder: str) -> int:
    """Fails once, then works."""
    with Ledger(folder).entry() as context:
        if context.attempt == 1:
            raise ConnectionError("once")
        return 42


def called(context: JobContext, result: object) -> None:
    """The callback: counts its calls."""
    append(Ledger(str(context.params["folder"])).folder / "callbacks", f"{result}\n")


def callbacks(stage: Stage) -> list[str]:
    path = stage.folder / "callbacks"
    return path.read_text().splitlines() if path.exists() else []


def wait_idle(scheduler: Scheduler) -> None:
    wait_until(lambda: busy(scheduler) == 0 and running(scheduler).known == 0, what="no slot is taken")


@dataclass
class Story:
    """J finished; its completion failed 5 times, before or after it was applied, then worked."""

    stage: Stage
    node: Scheduler
    handle: JobHandle[int]
    events: list[object]


STORIES = [
    pytest.param((each.values[0], when), marks=each.marks, id=f"{each.values[0]}-{when}")
    for each in each_store()
    for when in ("before", "after")
]


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Story]]:
    """The first part of the case per store and kind of failure, all at the same time: they mostly wait."""
    keys: list[tuple[str, When]] = [each.values[0] for each in STORIES]  # type: ignore[misc]
    stages = [stage_on(name, tmp_path_factory.mktemp("f28"), __name__) for name, _ in keys]
    try:
        played = together(
            *(
                lambda stage=stage, when=when: play(stage, when)
                for stage, (_, when) in zip(stages, keys, strict=True)
            )
        )
        yield dict(zip(keys, played, strict=True))
    finally:
        for stage in stages:
            stage.close()


def play(stage: Stage, when: When) -> Story:
    """J finishes; its completion fails 5 times, then works."""
    faulty = stage.faulty()
    node = stage.node(faulty.store, start=False)
    events: list[object] = []
    node.add_listener(events.append, JobCompleted, JobFailed, JobRetrying)
    node.start()
    faulty.fail("settle_many", times=5, when=when)
    folder = str(stage.folder)
    handle: JobHandle[int] = (
        node.enqueue(answer, folder).with_param("folder", folder).on_success(called).submit()
    )
    wait_until(lambda: faulty.failed["settle_many"] == 5, 30, "the completion write failed five times")
    handle.wait(30)
    wait_idle(node)
    return Story(stage, node, handle, events)


@pytest.fixture(params=STORIES)
def story(request: pytest.FixtureRequest, stories: dict[tuple[str, str], Story]) -> Story:
    """One of the stories."""
    return stories[request.param]


def test_f28_succeeded_with_its_result(story: Story) -> None:
    """SUCCEEDED with result 42 after five failed writes."""
    assert story.handle.result(10) == 42


def test_f28_one_execution(story: Story) -> None:
    """1 execution, and one accepted outcome in the history."""
    assert story.stage.ledger.executions(story.handle.id) == 1
    assert [each.trigger for each in story.node.store.history(story.handle.id)] == [Trigger.SUCCEED]


def test_f28_callback_once(story: Story) -> None:
    """The callback runs once, also if only the answers to the writes were lost, and is done with."""
    wait_until(lambda: callbacks(story.stage), what="the callback runs")
    running(story.node).parts.callbacks.drain(5)
    assert callbacks(story.stage) == ["42"]
    left = story.node.store.take_callbacks("somebody", grace=timedelta(days=-1), limit=10)
    assert left == [], "it is still recorded as not done"


def test_f28_event_once(story: Story) -> None:
    """The completion is published once, whether the writes failed before or after they were applied."""
    wait_until(lambda: story.events, what="the event arrives")
    assert [type(each) for each in story.events] == [JobCompleted]


@pytest.mark.parametrize("when", ["before", "after"])
def test_f28_a_retry_whose_write_failed_is_one_retry(when: When, stage: Stage) -> None:
    """The same for an outcome that is a retry: charged once, published once, run again on time."""
    faulty = stage.faulty()
    node = stage.node(faulty.store, start=False)
    seen: list[object] = []
    node.add_listener(seen.append, JobRetrying)
    node.start()
    faulty.fail("settle_many", times=3, when=when)
    handle = (
        node.enqueue(stubborn, str(stage.folder))
        .with_max_retries(3)
        .with_backoff(Backoff.fixed(timedelta(milliseconds=200)))
        .submit()
    )
    assert handle.result(30) == 42
    job = handle.job()
    assert job is not None
    assert (job.attempts, stage.ledger.executions(handle.id)) == (1, 2)
    wait_until(lambda: seen, what="the event arrives")
    assert len(seen) == 1


@pytest.fixture
def overtaken(stage: Stage, file_clock: FileClock) -> Any:
    """A's writes fail; B has meanwhile recovered and finished J; then A's writes work again."""
    faulty = stage.faulty(clock=file_clock)
    a = stage.node(faulty.store, name="a", threads=1, heartbeat=0.1)
    seen: list[object] = []
    a.add_listener(seen.append, JobCompleted, JobRetrying, JobFailed)
    client = stage.node(stage.open(clock=file_clock), start=False)
    handle = client.enqueue_now(who, str(stage.folder))
    wait_until(lambda: stage.gates.reached("a"))
    faulty.go_down()
    stage.gates.open("a")
    wait_until(lambda: faulty.failed["settle_many"], what="A has tried to write")
    b = stage.node(stage.open(clock=file_clock), name="b", heartbeat=0.1, sweep=0.1)
    file_clock.advance(timedelta(seconds=30))
    stage.gates.open("b")
    assert handle.wait(30).status is Status.SUCCEEDED
    faulty.come_back()
    wait_until(lambda: running(a).parts.endings.tally.refused, 30, "A's write is answered")
    return a, b, handle, seen


def test_f28_the_late_write_is_refused(overtaken: Any, stage: Stage) -> None:
    """A's late write is refused: the result is B's, J was accepted once, A publishes no outcome."""
    _, _, handle, seen = overtaken
    assert handle.result(10) == "b"
    history = stage.open().history(handle.id)
    assert [each.trigger for each in history] == [Trigger.RECOVER, Trigger.SUCCEED]
    assert seen == []


def test_f28_the_slot_is_free_again(overtaken: Any, stage: Stage) -> None:
    """A's only slot is free: it runs the next job."""
    a, b, _, _ = overtaken
    wait_idle(a)
    b.stop(5)
    wait_until(lambda: running(a).state == "running" and not running(a).parts.watchdog.fenced)
    assert a.enqueue_now(answer, str(stage.folder)).result(30) == 42


def test_f28_shutdown_during_the_outage_keeps_the_grace(stage: Stage, file_clock: FileClock) -> None:
    """Asked to stop while its outcome cannot be written, a node stops within its grace time (2 s, at most + 2 s)."""
    faulty, a, _ = cut_off(stage, file_clock)
    start = time.monotonic()
    stopped = a.stop(2.0)
    assert time.monotonic() - start < 4.0
    assert stopped.unwritten == 1
    assert faulty.is_down


def test_f28_then_recovered_not_lost(stage: Stage, file_clock: FileClock) -> None:
    """J, whose outcome died with its node, is recovered later and SUCCEEDED."""
    faulty, a, handle = cut_off(stage, file_clock)
    a.stop(1.0)
    faulty.come_back()
    assert handle.status is Status.RUNNING
    b = stage.node(stage.open(clock=file_clock), name="b", heartbeat=0.1, sweep=0.1)
    file_clock.advance(timedelta(seconds=30))
    stage.gates.open("b")
    assert handle.result(30) == "b"
    job = b.get(handle.id)
    assert job is not None
    assert (job.crash_count, job.attempts) == (1, 0)


def cut_off(stage: Stage, clock: FileClock) -> tuple[FaultyStore, Scheduler, JobHandle[str]]:
    """A has finished J and cannot write it."""
    faulty = stage.faulty(clock=clock)
    a = stage.node(faulty.store, name="a", heartbeat=0.1)
    client = stage.node(stage.open(clock=clock), start=False)
    handle = client.enqueue_now(who, str(stage.folder))
    wait_until(lambda: stage.gates.reached("a"))
    faulty.go_down()
    stage.gates.open("a")
    wait_until(lambda: faulty.failed["settle_many"], what="A has tried to write")
    return faulty, a, handle
