"""The jobs of F54, and the program that measures a series (`python -m tests.field_cases.leaking JSON`)."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NoReturn
from uuid import UUID

import psutil  # type: ignore[import-untyped, unused-ignore]

from ratchet import JobOptions, Scheduler, Status, current_job
from tests.field_cases.exact import slots
from tests.field_cases.kit import Gates, wait_until
from tests.field_cases.stage import Stage, busy, running

MODULE: Final = "tests.field_cases.leaking"
MEGABYTE: Final = 1_000_000


class Local:
    """A local object of a body that can be watched."""

    def __init__(self) -> None:
        self.data = bytearray(MEGABYTE)


class Watched(Exception):
    """An error that holds a local object of its body, as frames do."""


last: list[weakref.ref[Any]] = []
"""The last job's local object, argument and error: of this process, or of the child."""


errors: list[weakref.ref[Any]] = []
"""Every error of this process."""


def fail() -> NoReturn:
    """Allocates a megabyte and raises."""
    local = Local()
    error = Watched("failed", len(local.data))
    last[:] = [weakref.ref(local), weakref.ref(error)]
    errors.append(last[1])
    try:
        raise error
    finally:
        del error  # the frame and the error would hold each other: that is the body's own cycle


def succeed() -> int:
    """Allocates a megabyte and returns."""
    local = Local()
    last[:] = [weakref.ref(local)]
    return len(local.data)


def wait_for_cancel() -> None:
    """Allocates a megabyte and waits until it is asked to stop."""
    local = Local()
    last[:] = [weakref.ref(local)]
    context = current_job()
    while not context.is_cancellation_requested():
        threading.Event().wait(0.01)
    context.raise_if_cancellation_requested()


def overrun() -> None:
    """Allocates a megabyte and does not come to an end."""
    local = Local()
    last[:] = [weakref.ref(local)]
    while True:
        threading.Event().wait(0.001)


async def fail_async() -> NoReturn:
    """The same on the loop."""
    fail()


async def succeed_async() -> int:
    """The same on the loop."""
    return succeed()


async def wait_for_cancel_async() -> None:
    """The same on the loop: its task is cancelled."""
    local = Local()
    last[:] = [weakref.ref(local)]
    await asyncio.sleep(3600)


async def overrun_async() -> None:
    """The same on the loop."""
    await wait_for_cancel_async()


def ignore(ctx: Any, error: object) -> None:
    """A callback: it is handed the live error."""


def stand(ctx: Any, error: object) -> None:
    """A callback that waits at the gate."""
    Gates(ctx.params["folder"]).wait("go")


def take(number: int, argument: object = None) -> int:
    """Takes an argument."""
    return number


async def take_async(number: int, argument: object = None) -> int:
    """Takes an argument, on the loop."""
    return number


def leftovers() -> int:
    """How many of the last job's objects are still alive in this process."""
    return sum(each() is not None for each in last)


SERIES: Final[dict[str, tuple[Callable[..., Any], Callable[..., Any], Status]]] = {
    "fails": (fail, fail_async, Status.FAILED),
    "succeeds": (succeed, succeed_async, Status.SUCCEEDED),
    "is cancelled": (wait_for_cancel, wait_for_cancel_async, Status.CANCELED),
    "is timed out": (overrun, overrun_async, Status.FAILED),
}


class Series:
    """One kind of ending on one kind of executor, run by the hundred."""

    def __init__(self, node: Scheduler, name: str, kind: str) -> None:
        self.node, self.name = node, name
        sync, coroutine, self.expected = SERIES[name]
        self.body = coroutine if kind == "async" else sync
        timeout = timedelta(seconds=0.02 if name == "is timed out" else 3600)
        self.options = JobOptions(timeout=timeout, executor=kind, on_failure=ignore)

    def run(self, count: int) -> None:
        """So many jobs to their end."""
        while count > 0:
            self.batch(min(count, 100))
            count -= 100

    def batch(self, count: int) -> None:
        handles = self.node.enqueue_many(self.body, [()] * count, options=self.options)
        if self.name == "is cancelled":
            self.cancel([handle.id for handle in handles])
        for handle in handles:
            assert handle.wait(60).status is self.expected
        wait_until(lambda: not busy(self.node), 30, "all bodies have ended")

    def cancel(self, ids: list[UUID]) -> None:
        """A third at once, most of them before they run; the others while they run."""
        waiting = {job_id for place, job_id in enumerate(ids) if place % 3 or not self.node.cancel(job_id)}

        def all_canceled() -> bool:
            for job_id in [each for each in waiting if self.status(each) is Status.RUNNING]:
                self.node.cancel(job_id)
                waiting.remove(job_id)
            return not waiting

        wait_until(all_canceled, 60, "all were cancelled")

    def status(self, job_id: UUID) -> Status | None:
        job = self.node.get(job_id)
        return None if job is None else job.status

    def settle_down(self) -> None:
        """Nothing is left to be done: no body, no outcome, no callback."""
        node = running(self.node)
        wait_until(lambda: not node.known and not busy(self.node), 30, "nothing is known any more")
        assert node.parts.callbacks.drain(30)


@dataclass(frozen=True)
class Measure:
    """What the process holds, and how many children it has."""

    rss: int
    files: int
    threads: int
    children: int


def measure() -> Measure:
    gc.collect()
    process = psutil.Process()
    children = len(process.children(recursive=True))
    return Measure(process.memory_info().rss, process.num_fds(), threading.active_count(), children)


def main(words: dict[str, Any]) -> None:
    """Two halves of a series; writes what the process held after each."""
    folder, half = Path(words["folder"]), words["half"]
    stage = Stage(words["url"], folder, MODULE)
    series = Series(stage.node(**slots(words["kind"], words["slots"])), words["name"], words["kind"])
    measures = []
    for _ in range(2):
        series.run(half)
        series.settle_down()
        # A thread that was hit by its job's hard stop goes, and another comes, in its own time.
        wait_until(
            lambda: threading.active_count() <= words["slots"] + 14, 30, "threads that were hit have ended"
        )
        measures.append(asdict(measure()))
    (folder / "measures").write_text(json.dumps(measures))
    stage.close()
    os._exit(0)  # no leftover can hold up the test


if __name__ == "__main__":
    from tests.field_cases.leaking import main as importable_main

    importable_main(json.loads(sys.argv[1]))
