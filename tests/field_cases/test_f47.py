"""F47: a body that swallows its timeout is timed out all the same. A case's second is 0.2 s here.

In a child process it is a whole one: starting the child takes its share of the attempt's time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import pytest

from ratchet import (
    AttemptEnd,
    Backoff,
    Execution,
    Job,
    JobCompleted,
    JobDlq,
    JobFailed,
    JobRetrying,
    JobTimedOut,
    Status,
)
from tests.field_cases.exact import KINDS, Once, Recorder, slots, submitter
from tests.field_cases.kit import SCALE, Gates, Ledger, Row, stays, wait_until

# What is shown is the engine's: the embedded stores are enough.
pytestmark = [pytest.mark.field_case("F47"), pytest.mark.stores("memory", "sqlite")]

SECOND: Final = 0.2
TIMEOUT: Final = timedelta(seconds=SECOND)
LOOPS: Final = 3 * SECOND
STEP: Final = 0.01
MS: Final = timedelta(milliseconds=2)  # two instants, each cut to a millisecond


def swallow(folder: str, catches: str, seconds: float = LOOPS) -> str:
    """Loops three times its timeout with a catch-all around each step, then returns "ok"."""
    kinds = {"Exception": Exception, "BaseException": BaseException}
    with Ledger(folder).entry():
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                time.sleep(STEP)
            except kinds[catches]:
                pass
        return "ok"


async def swallow_async(folder: str, catches: str, seconds: float = LOOPS) -> str:
    """The same on the loop."""
    kinds = {"Exception": Exception, "BaseException": BaseException}
    with Ledger(folder).entry():
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                await asyncio.sleep(STEP)
            except kinds[catches]:
                pass
        return "ok"


def fine() -> str:
    """A normal job."""
    return "fine"


async def fine_async() -> str:
    """A normal job on the loop."""
    return "fine"


@dataclass(frozen=True)
class Seen:
    """What was seen of one job that swallowed its timeouts, after its bodies had ended."""

    job: Job
    history: Sequence[Execution]
    rows: list[Row]
    events: list[Any]
    timeout: timedelta
    delay: timedelta


once: Final[Once[list[Seen]]] = Once()


@pytest.fixture(params=KINDS)
def swallowed(request: pytest.FixtureRequest, store_url: str, make_node: Any, ledger: Ledger) -> list[Seen]:
    """Two jobs with one retry each: one has a catch-all of Exception, one of BaseException."""
    return once((request.param, store_url.partition(":")[0]), lambda: play(request.param, make_node, ledger))


def play(kind: str, make_node: Any, ledger: Ledger) -> list[Seen]:
    timeout = timedelta(seconds=1) if kind == "processes" else TIMEOUT
    delay = 0.75 * timeout
    node = make_node(**slots(kind, 4))
    recorder = Recorder(node)
    handles = [
        submitter(node, kind)(swallow, swallow_async, str(ledger), catches, 3 * timeout.total_seconds())
        .with_timeout(timeout).with_max_retries(1).with_backoff(Backoff.fixed(delay)).submit()
        for catches in ("Exception", "BaseException")
    ]  # fmt: skip
    for handle in handles:
        handle.wait(30 * SCALE * SECOND)
    parts = node.node.parts
    wait_until(
        lambda: not (parts.threads.busy() or parts.loop.busy() or parts.processes.busy()), what="bodies end"
    )
    wait_until(lambda: recorder.count(JobDlq) == len(handles))
    stays(lambda: [ledger.executions(handle.id) for handle in handles] == [2, 2], 0.3, "two executions each")
    return [
        Seen(
            handle.job(),
            node.query.detail(handle.id).history,
            ledger.rows(handle.id),
            [event for event in recorder.events if event.job_id == handle.id],
            timeout,
            delay,
        )
        for handle in handles
    ]


def test_f47_each_attempt_is_recorded_as_timed_out(swallowed: list[Seen]) -> None:
    """The history has two attempts, both TIMED_OUT at their deadline and not when the body gave in."""
    told = JobTimedOut | JobRetrying | JobFailed
    for seen in swallowed:
        assert [entry.end for entry in seen.history] == [AttemptEnd.TIMED_OUT] * 2
        for entry in seen.history:
            assert seen.timeout <= entry.duration + MS < 3 * seen.timeout
            assert "JobTimeout" in str(entry.error)
        events = [type(event) for event in seen.events if isinstance(event, told)]
        assert events == [JobTimedOut, JobRetrying, JobTimedOut, JobFailed]


def test_f47_there_are_two_executions(swallowed: list[Seen]) -> None:
    """The timeout is charged: with one retry the body runs twice."""
    for seen in swallowed:
        assert seen.job.attempts == 2
        assert len(seen.rows) == 2


def test_f47_it_ends_failed_with_a_timeout_reason_and_its_late_value_is_discarded(
    swallowed: list[Seen],
) -> None:
    """The job is FAILED because of its timeout, also after both bodies have returned "ok"; it never was SUCCEEDED."""
    for seen in swallowed:
        assert seen.job.status is Status.FAILED
        assert "JobTimeout" in str(seen.job.last_error)
        assert seen.job.result is None
        assert not any(isinstance(event, JobCompleted) for event in seen.events)


def test_f47_the_retry_delay_is_honoured(swallowed: list[Seen]) -> None:
    """The second attempt starts no sooner than the delay after the first one's deadline."""
    for seen in swallowed:
        first, second = seen.rows
        assert second.start - first.start >= seen.delay.total_seconds()
        one, two = seen.history
        (retrying,) = [event for event in seen.events if isinstance(event, JobRetrying)]
        assert retrying.scheduled_time - one.ended_at >= seen.delay - MS
        assert two.picked_at is not None
        assert two.picked_at >= retrying.scheduled_time


def stand(folder: str) -> str:
    """Stands at the gate and lets nothing through but its opening."""
    gates = Gates(folder)
    with Ledger(folder).entry():
        while not gates.is_open("go"):
            with suppress(BaseException):
                gates.wait("go", 0.05)
        return "ok"


async def stand_async(folder: str) -> str:
    """The same on the loop."""
    gates = Gates(folder)
    with Ledger(folder).entry():
        while not gates.is_open("go"):
            with suppress(BaseException):
                await asyncio.sleep(STEP)
        return "ok"


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_f47_the_slot_of_an_ignored_attempt_stays_busy(
    make_node: Any, kind: str, gates: Gates, ledger: Ledger
) -> None:
    """A body that goes on after its timeout holds its slot: with one slot neither its retry nor another job starts."""
    node = make_node(**slots(kind, 1) | {"batch_size": 1})
    submit = submitter(node, kind)
    recorder = Recorder(node)
    ignored = submit(stand, stand_async, str(gates.folder)).with_timeout(TIMEOUT).with_max_retries(1).submit()
    wait_until(lambda: recorder.count(JobRetrying, ignored.id))
    other = submit(fine, fine_async).submit()
    executor = node.node.parts.threads if kind == "threads" else node.node.parts.loop
    stays(lambda: executor.busy() == 1, 0.5, "the slot is busy")
    assert other.status is not Status.SUCCEEDED
    assert ledger.executions(ignored.id) == 1
    gates.open("go")
    assert other.result(30) == "fine"
    assert ignored.wait(30).status is Status.SUCCEEDED, "the retry found the gate open"
    assert not ledger.overlapping(ignored.id)


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_f47_the_busy_slot_is_shown(make_node: Any, kind: str, gates: Gates) -> None:
    """What still runs after its timeout is shown with its job's id by the node, for people, in the store."""
    node = make_node(**slots(kind, 4))
    ignored = submitter(node, kind)(stand, stand_async, str(gates.folder)).with_timeout(TIMEOUT).submit()
    assert ignored.wait(30).status is Status.FAILED

    def is_shown() -> bool:
        (info,) = [each.info for each in node.query.nodes()]
        return str(ignored.id) in info.detail.get("stuck", "")

    wait_until(is_shown, 10, "the stuck body is shown")
    gates.open("go")
    wait_until(lambda: not is_shown(), 10, "the stuck body is no longer shown")


def test_f47_attempts_in_a_process_never_overlap(make_node: Any, ledger: Ledger) -> None:
    """A body in a child process is killed at its deadline: its retry never overlaps it, and the child is replaced."""
    node = make_node(**slots("processes", 2))
    handle = (
        node.enqueue(swallow, str(ledger), "BaseException", 10.0).with_executor("processes")
        .with_timeout(timedelta(seconds=1)).with_max_retries(1).submit()
    )  # fmt: skip
    assert handle.wait(30).status is Status.FAILED
    rows = ledger.rows(handle.id)
    assert len(rows) == 2
    assert len({row.pid for row in rows}) == 2, "each attempt had a child of its own"
    assert all(row.end is None for row in rows), "no body came to its end"
    assert node.enqueue(fine).with_executor("processes").submit().result(30) == "fine"


def overrun_quietly(folder: str) -> str:
    """Swallows everything, then goes on for a while after the deadline, then raises."""
    with Ledger(folder).entry():
        end = time.monotonic() + LOOPS
        while time.monotonic() < end:
            with suppress(BaseException):
                time.sleep(STEP)
        raise ValueError("too late")


def test_f47_a_late_error_is_discarded_too(make_node: Any, ledger: Ledger) -> None:
    """A body that raises after its timeout changes nothing: the stored reason stays the timeout."""
    node = make_node()
    handle = node.enqueue(overrun_quietly, str(ledger)).with_timeout(TIMEOUT).submit()
    assert handle.wait(30).status is Status.FAILED
    version = handle.job().version
    wait_until(lambda: ledger.rows(handle.id)[0].end is not None)
    wait_until(lambda: node.node.known == 0)
    job = handle.job()
    assert "JobTimeout" in job.last_error
    assert job.version == version
