"""A claim that is cancelled here before its body has begun never begins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from uuid import uuid4

from ratchet import ExecutionSettings, JobCanceled, PollingSettings, Scheduler, Settings, Status

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
