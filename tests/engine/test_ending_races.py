"""Deadlines and cancels that come just as bodies begin and end: every job settles and every slot is free again."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from datetime import timedelta
from uuid import uuid4

import pytest

from ratchet import ExecutionSettings, PollingSettings, Scheduler, Settings

LENGTHS = (0.0, 0.01, 0.03)
TIMEOUTS = (0.005, 0.02, 0.03, 0.04, 0.05, 30.0)


def spin(seconds: float, fails: bool) -> int:
    """Takes its time where a hard stop can reach it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.001)
    if fails:
        raise ValueError("as asked")
    return 1


async def spin_async(seconds: float, fails: bool) -> int:
    """The same on the loop."""
    await asyncio.sleep(seconds)
    if fails:
        raise ValueError("as asked")
    return 1


@pytest.mark.parametrize("executor", ["threads", "async", "processes"])
def test_no_slot_and_no_job_is_lost_between_deadline_cancel_and_end(executor: str) -> None:
    """Random timeouts near the bodies' lengths, failures and cancels: all settle, nothing is held, work goes on."""
    settings = Settings(
        execution=ExecutionSettings(threads=4, async_=8, processes=3),
        polling=PollingSettings(burst=0.1, fastest=0.1, slowest=0.2),
    )
    scheduler = Scheduler.from_url(f"memory://{uuid4()}", allow=[__name__], settings=settings)
    body = spin_async if executor == "async" else spin
    draw = random.Random(20261201)
    timers: list[threading.Timer] = []
    with scheduler:
        handles = []
        for _ in range(40 if executor == "processes" else 200):
            builder = scheduler.enqueue(body, draw.choice(LENGTHS), draw.random() < 0.3)
            builder = builder.with_executor(executor).with_max_retries(2)
            handles.append(builder.with_timeout(timedelta(seconds=draw.choice(TIMEOUTS))).submit())
            if draw.random() < 0.3:
                timers.append(threading.Timer(draw.random() * 0.2, scheduler.cancel, (handles[-1].id,)))
                timers[-1].start()
        for timer in timers:
            timer.join()
        for handle in handles:
            handle.wait(60)
        node = scheduler.node
        assert node is not None
        parts = node.parts
        end = time.monotonic() + 20
        while node.known or parts.threads.busy() or parts.loop.busy() or parts.processes.busy():
            assert time.monotonic() < end, "a slot or a claim is held though every job has settled"
            time.sleep(0.005)
        after = [scheduler.enqueue(body, 0.0, False).with_executor(executor).submit() for _ in range(8)]
        assert [handle.result(20) for handle in after] == [1] * 8
