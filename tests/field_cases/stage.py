"""One test's stage: a store, nodes of this process and of others, and their ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ratchet import Scheduler
from ratchet.engine.node import Node
from ratchet.errors import RatchetError
from ratchet.plugins import open_store
from ratchet.spi.store import JobStore
from tests.conftest import NOT_RUN, STORES, StoreUnavailable
from tests.field_cases.faults import FaultyStore
from tests.field_cases.kit import Gates, Ledger, quick_settings
from tests.field_cases.worker import Worker
from tests.mongo import servers

T = TypeVar("T")


class Stage:
    """A store and whoever works on it.

    Args:
        url: of an empty store.
        folder: for the ledger, the gates, the clock and the workers' logs.
        allow: the module with the jobs.
    """

    def __init__(self, url: str, folder: Path, allow: str) -> None:
        self.url, self.folder, self.allow = url, folder, allow
        self.ledger, self.gates = Ledger(folder), Gates(folder)
        self._stores: list[JobStore] = []
        self._nodes: list[Scheduler] = []
        self._workers: list[Worker] = []

    def open(self, **words: Any) -> JobStore:
        """A further handle on the store, as a node of its own would open it."""
        self._stores.append(open_store(self.url, **words))
        return self._stores[-1]

    def faulty(self, **words: Any) -> FaultyStore:
        """A further handle, which fails on request."""
        return FaultyStore(self.open(**words))

    def node(
        self,
        store: JobStore | None = None,
        *,
        start: bool = True,
        parts: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Scheduler:
        """A scheduler of this process, started unless told otherwise; `settings` are those of `quick_settings`."""
        scheduler = Scheduler(
            self.open() if store is None else store,
            allow=[self.allow],
            settings=quick_settings(**settings),
            **(parts or {}),
        )
        self._nodes.append(scheduler)
        return scheduler.start() if start else scheduler

    def spawn(self, **words: Any) -> Worker:
        """A worker process; see `Worker`."""
        self._workers.append(Worker(self.url, self.folder, allow=self.allow, **words))
        return self._workers[-1]

    def close(self) -> None:
        """End everybody, whatever they are doing."""
        for worker in self._workers:
            worker.close()
        for scheduler in self._nodes:
            if isinstance(scheduler.store, FaultyStore):
                scheduler.store.forgive()
            with suppress(RatchetError):
                scheduler.stop(1.0)
        for store in self._stores:
            store.close()


def running(scheduler: Scheduler) -> Node:
    """The node of a started scheduler."""
    assert scheduler.node is not None
    return scheduler.node


def busy(scheduler: Scheduler) -> int:
    """How many slots of a started scheduler are taken, or about to be."""
    parts = running(scheduler).parts
    return sum(each.busy() + each.waiting() for each in (parts.threads, parts.loop, parts.processes))


def is_at_work(scheduler: Scheduler) -> bool:
    """True if the node runs and every one of its loops does."""
    parts = running(scheduler).parts
    threads = {thread.name for thread in threading.enumerate()}
    return (
        running(scheduler).state == "running"
        and all(loop.alive for loop in parts.loops)
        and {"ratchet-poller", "ratchet-settler"} <= threads
    )


def each_store(*names: str) -> Sequence[Any]:
    """Parameters for a fixture that runs once per store (all, or those named)."""
    return [pytest.param(name, marks=pytest.mark.stores(name)) for name in names or STORES]


def bearable(url: str, jobs: int) -> int:
    """So many of `jobs` as the store at `url` bears; all, but where a slow server stands in for MongoDB."""
    return servers.bearable(jobs) if url.startswith("mongodb") else jobs


def stage_on(name: str, folder: Path, allow: str) -> Stage:
    """A stage on a fresh store of this kind: for fixtures whose story several tests look at."""
    try:
        return Stage(STORES[name](folder), folder, allow)
    except StoreUnavailable as reason:
        pytest.skip(f"{NOT_RUN}{name}: {reason}")


def together(*actions: Callable[[], T]) -> list[T]:
    """Run all at the same time, a thread each, and answer what they returned; the first error is raised."""
    answers: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(place: int, action: Callable[[], T]) -> None:
        try:
            answers[place] = action()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=entry) for entry in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive(), "an action hangs"
    if errors:
        raise errors[0]
    return [answers[place] for place in range(len(actions))]
