"""One start wins, stop waits for it, nobody waits for himself, and `drained` says what it says."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from ratchet import (
    AsyncScheduler,
    JobContext,
    NodeSettings,
    Scheduler,
    Settings,
    Status,
)
from ratchet.errors import NotRunning, ResultNotStored, StoreTransientError, UsageError

WAIT = 20.0
inside: list[Scheduler] = []
told: list[object] = []
begun, leave = threading.Event(), threading.Event()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    inside.clear()
    told.clear()
    begun.clear()
    leave.clear()


def make(**parts: Any) -> Scheduler:
    return Scheduler.from_url(f"memory://{uuid4()}", allow=[__name__], **parts)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.002)


def pollers() -> int:
    return sum(thread.name == "ratchet-poller" for thread in threading.enumerate())


def nothing() -> None:
    """A harmless job."""


def stops() -> None:
    inside[0].stop(5)


async def stops_async() -> None:
    inside[0].stop(5)


async def awaits_stop() -> None:
    await AsyncScheduler(inside[0]).stop(5)


def stops_after(ctx: JobContext, result: object) -> None:
    try:
        inside[0].stop(5)
    except UsageError as error:
        told.append(error)


def tells(ctx: JobContext, result: object) -> None:
    told.append(result)


def large() -> str:
    return "x" * 1_000_000


def stays() -> None:
    begun.set()
    leave.wait(WAIT)


# -- starting ---------------------------------------------------------------------------------------------------


def test_of_several_starts_at_once_exactly_one_wins() -> None:
    """Eight threads start a scheduler: one does, seven are refused, and stop leaves no poller behind."""
    before, scheduler, barrier = pollers(), make(), threading.Barrier(8)
    answers: list[str] = []

    def start() -> None:
        barrier.wait(WAIT)
        try:
            scheduler.start()
        except NotRunning:
            answers.append("refused")
        else:
            answers.append("started")

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert sorted(answers) == ["refused"] * 7 + ["started"]
    assert pollers() == before + 1
    scheduler.stop(5)
    until(lambda: pollers() == before)


def test_stop_during_start_stops_what_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that comes in the middle of a start waits for it, and nothing runs afterwards."""
    scheduler = make()
    nodes = scheduler.store.nodes

    def slow_heartbeat(info: Any) -> object:
        begun.set()
        leave.wait(WAIT)
        return heartbeat(info)

    heartbeat = scheduler.store.heartbeat
    monkeypatch.setattr(scheduler.store, "heartbeat", slow_heartbeat)
    starter = threading.Thread(target=scheduler.start)
    starter.start()
    assert begun.wait(WAIT)
    stopper = threading.Thread(target=lambda: told.append(scheduler.stop(5)))
    stopper.start()
    leave.set()
    starter.join(WAIT)
    stopper.join(WAIT)
    assert told
    assert scheduler.node is None
    assert nodes() == []


# -- stopping from inside ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [stops, stops_async, awaits_stop])
def test_a_job_cannot_stop_its_own_scheduler(job: Callable[[], None]) -> None:
    """A body that calls stop gets a sentence at once, and the node goes on."""
    scheduler = make()
    inside.append(scheduler)
    with scheduler:
        ended = scheduler.enqueue(job).submit().wait(WAIT)
        assert ended.status is Status.FAILED
        assert "from another thread" in str(ended.last_error)
        scheduler.enqueue(nothing).submit().result(WAIT)


def test_a_callback_cannot_stop_its_own_scheduler() -> None:
    """A callback that calls stop gets the same sentence."""
    scheduler = make()
    inside.append(scheduler)
    with scheduler:
        scheduler.enqueue(nothing).on_success(stops_after).submit().result(WAIT)
        until(lambda: told)
    assert "from another thread" in str(told[0])


def test_stop_on_the_loop_of_the_async_bodies_is_refused() -> None:
    """A blocking stop on the application's own loop, which its bodies need to end, is refused; awaiting is not."""

    async def main() -> None:
        scheduler = make()
        scheduler.start(loop=asyncio.get_running_loop())
        with pytest.raises(UsageError, match="from another thread"):
            scheduler.stop()
        assert (await AsyncScheduler(scheduler).stop(5)).drained

    asyncio.run(main())


def test_a_job_may_stop_another_scheduler() -> None:
    """Only its own one is refused, also where both have the same node name."""
    one, other = make(), make()
    inside.append(other)
    with one, other:
        one.enqueue(stops).submit().result(WAIT)
        assert other.node is None


# -- what stop answers -------------------------------------------------------------------------------------------


def test_drained_is_not_said_of_a_stuck_body() -> None:
    """A body that runs on after its outcome was written (its time was up) is stuck, and the node is not drained."""
    scheduler = make()
    scheduler.start()
    handle = scheduler.enqueue(stays).with_timeout(timedelta(milliseconds=200)).submit()
    assert handle.wait(WAIT).status is Status.FAILED
    stopped = scheduler.stop(0.2)
    leave.set()
    assert (stopped.drained, stopped.released, stopped.stuck) == (False, (), (handle.id,))


def test_drained_is_not_said_of_an_unwritten_outcome(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An outcome that the store never answered is left to recovery; it is logged in a line, without a traceback."""

    def away(settlements: object) -> object:
        begun.set()
        raise StoreTransientError("the store is away")

    scheduler = make(settings=Settings(node=NodeSettings()))
    scheduler.start()
    monkeypatch.setattr(scheduler.store, "settle_many", away)
    with caplog.at_level(logging.INFO, "ratchet.engine"):
        scheduler.enqueue(nothing).submit()
        assert begun.wait(WAIT)
        stopped = scheduler.stop(0.5)
    assert (stopped.drained, stopped.unwritten) == (False, 1)
    lines = [record.getMessage() for record in caplog.records if "cannot be written" in record.getMessage()]
    assert lines
    assert "Traceback" not in "".join(lines)


# -- the event loop ----------------------------------------------------------------------------------------------


async def cancels_the_others() -> None:
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()


async def exits() -> None:
    sys.exit(4)


async def blocks_the_loop() -> None:
    begun.set()
    leave.wait(WAIT)


def test_a_body_cancelled_before_its_first_step_ends() -> None:
    """A body that cancels every other task takes their attempts, not their slots: each ends at once."""
    scheduler = make()
    with scheduler:
        first = scheduler.enqueue(blocks_the_loop).submit()  # so that the others' tasks are made, and wait
        assert begun.wait(WAIT)
        handles = scheduler.submit_many(
            [scheduler.enqueue(cancels_the_others), scheduler.enqueue(exits), scheduler.enqueue(exits)]
        )
        until(lambda: all(handle.status is Status.RUNNING for handle in handles))
        node = scheduler.node
        assert node is not None
        until(lambda: len(node.parts.loop.running()) == 4)
        leave.set()
        ended = [handle.wait(WAIT) for handle in (first, *handles)]
        assert [job.status for job in ended[:2]] == [Status.SUCCEEDED] * 2
        assert [job.status for job in ended[2:]] == [Status.FAILED] * 2
        until(lambda: not node.parts.loop.running())
        assert scheduler.stop(5).drained


# -- callbacks ---------------------------------------------------------------------------------------------------


def test_on_success_of_a_result_that_was_not_kept() -> None:
    """The callback of a job whose result was too large is called, with what says so."""
    scheduler = make()
    with scheduler:
        scheduler.enqueue(large).on_success(tells).submit().wait(WAIT)
        until(lambda: told)
    assert isinstance(told[0], ResultNotStored)
    assert "1000002" in str(told[0])


# -- the watchdog ------------------------------------------------------------------------------------------------


class Hangs:
    """A sanitizer that never answers while the test runs."""

    def sanitize(self, error: BaseException) -> str:
        leave.wait(WAIT)
        return "late"


async def fails_async() -> None:
    raise RuntimeError("no luck")


def fails() -> None:
    raise RuntimeError("no luck")


@pytest.mark.parametrize("job", [fails, fails_async])
def test_the_watchdog_waits_for_nothing_of_the_application(job: Callable[[], None]) -> None:
    """A job whose error is never made into text ends with its time limit all the same, and is stuck once."""
    scheduler = make(sanitizer=Hangs())
    with scheduler:
        handle = scheduler.enqueue(job).with_timeout(timedelta(milliseconds=300)).submit()
        ended = handle.wait(10)
        assert (ended.status, str(ended.last_error)[:11]) == (Status.FAILED, "JobTimeout:")
        assert not leave.is_set()
        leave.set()
