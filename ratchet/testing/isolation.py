"""Points an application's own scheduler at an empty store for the length of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ratchet.errors import NotRunning
from ratchet.plugins import open_store
from ratchet.testing.clock import VirtualClock
from ratchet.testing.runner import InlineRunner

if TYPE_CHECKING:
    from ratchet.scheduler import Scheduler


@contextmanager
def isolated(
    scheduler: Scheduler, *, url: str = "memory://", clock: VirtualClock | None = None
) -> Iterator[InlineRunner]:
    """Within the block `scheduler` submits to a fresh store, and the runner executes what was submitted.

    For an application that has one scheduler in a module of its own, with the jobs that it registered:

        with isolated(shop.jobs.scheduler) as runner:
            shop.orders.place(42)
            runner.run_pending()

    Args:
        scheduler: it must not be running.
        url: of the store (default: in memory).
        clock: the store's (default: a new `VirtualClock`), also `runner.clock`.

    Raises:
        NotRunning: the scheduler is running.
    """
    if scheduler.node is not None:
        raise NotRunning("stop this scheduler first: a running node keeps its store")
    clock = clock or VirtualClock()
    store, speaker = scheduler.store, scheduler._speaker
    scheduler.store, scheduler._speaker = open_store(url, clock=clock, auto_upgrade=True), None
    try:
        with InlineRunner(scheduler, clock=clock) as runner:
            yield runner
    finally:
        scheduler.store.close()
        scheduler.store, scheduler._speaker = store, speaker
