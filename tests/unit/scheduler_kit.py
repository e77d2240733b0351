"""Job functions and listeners that the tests of the front door share."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ratchet import JobContext, RetryAfter, Scheduler, current_job
from ratchet.domain.events import JobEvent, JobsBulkRetried

WAIT = 20.0

# -- job functions: what they did is kept under the name that a test gives ---------------------------------------

runs: Counter[str] = Counter()
said: list[object] = []


@dataclass
class Gate:
    """A body that says it has begun, and stays until it is let go."""

    entered: threading.Event = field(default_factory=threading.Event)
    leave: threading.Event = field(default_factory=threading.Event)


gates: dict[str, Gate] = {}


def count(name: str) -> int:
    runs[name] += 1
    return runs[name]


def add(a: int, b: int = 1, *, scale: int = 1) -> int:
    return (a + b) * scale


async def add_later(a: int, b: int = 1) -> int:
    return a + b


def say(what: object) -> None:
    said.append(what)


def fail(name: str = "", message: str = "no luck") -> None:
    runs[name] += 1
    raise RuntimeError(message)


def fail_times(name: str, times: int) -> int:
    runs[name] += 1
    if runs[name] <= times:
        raise RuntimeError(f"attempt {runs[name]}")
    return runs[name]


def stay(name: str) -> str:
    runs[name] += 1
    gate = gates[name]
    gate.entered.set()
    if not gate.leave.wait(WAIT):
        raise TimeoutError("the test did not let this body go")
    return name


async def stay_async(name: str) -> str:
    import asyncio

    runs[name] += 1
    gates[name].entered.set()
    await asyncio.to_thread(gates[name].leave.wait, WAIT)
    return name


def context_of() -> dict[str, Any]:
    job = current_job()
    return {"id": str(job.id), "attempt": job.attempt, "params": dict(job.params), "node": job.node}


def wait_a_while(seconds: float) -> None:
    from datetime import timedelta

    raise RetryAfter(timedelta(seconds=seconds))


def after_success(ctx: JobContext, result: object) -> None:
    said.append(("success", ctx.id, result))


def after_failure(ctx: JobContext, error: BaseException) -> None:
    said.append(("failure", ctx.id, f"{error}"))


def broken_callback(ctx: JobContext, result: object) -> None:
    raise LookupError("the callback is broken")


class Service:
    """A service whose method is a job."""

    def __init__(self, name: str) -> None:
        self.name = name

    def greet(self, whom: str) -> str:
        return f"{self.name} greets {whom}"

    @staticmethod
    def double(x: int) -> int:
        return 2 * x

    @classmethod
    def named(cls) -> str:
        return cls.__name__


def generate(n: int) -> Iterator[int]:
    yield from range(n)


# -- listening ---------------------------------------------------------------------------------------------------


class Heard:
    """Every event of a scheduler, and a way to wait for one."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.events: list[JobEvent | JobsBulkRetried] = []
        self._changed = threading.Condition()
        self.subscription = scheduler.add_listener(self._hear)

    def _hear(self, event: JobEvent | JobsBulkRetried) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def names(self, job_id: UUID | None = None) -> list[str]:
        return [
            type(event).__name__
            for event in self.events
            if job_id is None or getattr(event, "job_id", None) == job_id
        ]

    def until(self, reached: Callable[[], object], timeout: float = WAIT) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: bool(reached()), timeout), self.names()

    def until_told(self, name: str, job_id: UUID | None = None) -> None:
        self.until(lambda: name in self.names(job_id))
