"""A claim that is cancelled, or whose time is over, before its body has begun never begins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import pytest

from ratchet import AttemptEnd, ExecutionSettings, JobCanceled, PollingSettings, Scheduler, Settings, Status
from ratchet.engine.attempt import Attempt, Pipeline

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
