"""A claim that is cancelled, or whose time is over, before its body has begun never begins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import pytest

from ratchet import (
    AttemptEnd,
    ExecutionSettings,
    JobCanceled,
    PollingSettings,
    Scheduler,
    Settings,
    Status,
    current_job,
)
from ratchet.defaults.codec import JsonCodec
from ratchet.engine.attempt import Attempt, Pipeline
from ratchet.engine.child_process import BodyRequest, ChildProcess, Died, Returned

ran: list[int] = []
begun, gate = threading.Event(), threading.Event()


def note(number: int) -> None:
    """A short job."""
    ran.append(number)


def stand() -> None:
    """Holds the only slot until the gate opens."""
    begun.set()
    gate.wait(30)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.002)


def test_a_claim_cancelled_before_its_start_never_starts() -> None:
    """Of jobs claimed ahead behind a long one, the one that is cancelled does not run when the slot becomes free."""
    settings = Settings(
        execution=ExecutionSettings(threads=1, async_=0),
        polling=PollingSettings(burst=20.0),  # so long is kept what was claimed ahead
    )
    scheduler = Scheduler.from_url(f"memory://{uuid4()}", allow=[__name__], settings=settings)
    events: list[JobCanceled] = []
    scheduler.add_listener(events.append, JobCanceled)
    with scheduler:
        for number in range(5):
            scheduler.enqueue_now(note, number).result(20)  # measured: short
        first = scheduler.enqueue_many(note, [(5,)])[0]
        handles = scheduler.submit_many(
            [scheduler.enqueue(stand), *(scheduler.enqueue(note, number) for number in range(6, 9))]
        )
        first.result(20)
        assert begun.wait(20)
        until(lambda: handles[2].status is Status.RUNNING)
        assert scheduler.cancel(handles[2].id)
        gate.set()
        for each in (handles[0], handles[1], handles[3]):
            each.wait(20)
        until(lambda: events)
    assert ran == [0, 1, 2, 3, 4, 5, 6, 8]
    assert [event.job_id for event in events] == [handles[2].id]


async def note_async(number: int) -> None:
    """A short job on the loop."""
    ran.append(number)


@pytest.mark.parametrize("executor", ["threads", "async", "processes"])
def test_an_attempt_whose_time_is_over_before_its_body_never_begins(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt whose deadline passes between its gates and its body is timed out, not begun, and its slot is free."""
    announce = Pipeline.announce

    def late(self: Pipeline, attempt: Attempt) -> None:
        if attempt.claim.max_retries:
            until(lambda: attempt.is_decided)
        announce(self, attempt)

    monkeypatch.setattr(Pipeline, "announce", late)
    settings = Settings(execution=ExecutionSettings(threads=1, async_=1, processes=1))
    scheduler = Scheduler.from_url(f"memory://{uuid4()}", allow=[__name__], settings=settings)
    ran.clear()
    body = note_async if executor == "async" else note
    with scheduler:
        job = (
            scheduler.enqueue(body, 1)
            .with_executor(executor)
            .with_timeout(timedelta(seconds=0.05))
            .with_max_retries(1)
            .submit()
            .wait(20)
        )
        assert job.status is Status.FAILED
        assert [entry.end for entry in scheduler.store.history(job.id)] == [AttemptEnd.TIMED_OUT] * 2
        scheduler.enqueue(body, 2).with_executor(executor).submit().result(20)
    assert ran == ([] if executor == "processes" else [2])


def stop_when_asked() -> str:
    """Waits until it is asked to stop, and tells why."""
    context = current_job()
    until(context.is_cancellation_requested)
    return str(context.cancellation_reason)


def request_for(function: Callable[[], object]) -> BodyRequest:
    codec = JsonCodec()
    return BodyRequest(
        job_id=str(uuid4()),
        claim_seq=1,
        attempt=1,
        target=f"{__name__}:{function.__name__}",
        payload=codec.encode_arguments((), {}),
        format=codec.format,
        node="node-1",
    )


def test_what_is_asked_of_a_request_before_a_child_has_it_is_not_lost() -> None:
    """A cancellation reaches the body that is handed over after it; a body that was to be killed is not begun."""
    child = ChildProcess(allow=[__name__])
    try:
        canceled, killed, other = (
            request_for(stop_when_asked),
            request_for(stop_when_asked),
            request_for(stand),
        )
        child.request_cancellation("canceled", request=canceled)
        reply = child.run(canceled, on_log=lambda record: None)
        assert isinstance(reply, Returned)
        assert reply.result == '"canceled"'
        child.kill(request=killed)
        answer = child.run(killed, on_log=lambda record: None)
        assert isinstance(answer, Died)
        assert (answer.started, answer.killed) == (False, True)
        child.kill(request=other)  # never handed over: nobody else is hit
        last = request_for(stop_when_asked)
        child.request_cancellation("shutdown", request=last)
        assert isinstance(child.run(last, on_log=lambda record: None), Returned)
    finally:
        child.close()
