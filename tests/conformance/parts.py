"""The shipped coordinators, policies, codec and executors, as the suites for other parts take them."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

from conformance_tests.spi import CoordinatorHarness, ExecutorHarness
from ratchet.defaults.codec import JsonCodec
from ratchet.defaults.coordinator import LocalCoordinator
from ratchet.domain.ids import new_id
from ratchet.domain.job import Claim, NewJob
from ratchet.engine.attempt import Attempt
from ratchet.engine.slots import LoopSlots, ProcessSlots, ThreadSlots
from ratchet.spi.coordinator import ClusterCoordinator, Hint
from ratchet.spi.executor import Executor
from ratchet_sql.coordinator import SqliteCoordinator
from ratchet_sql.plugin import sqlite
from ratchet_sql.store import SqliteStore


class Local(CoordinatorHarness):
    """Has no channel to other nodes."""

    channel: ClassVar[bool] = False
    carries: ClassVar[frozenset[str]] = frozenset()

    def open(self) -> ClusterCoordinator:
        return LocalCoordinator()


class Sqlite(CoordinatorHarness):
    """Coordinators of stores on one file: a commit is the hint, and carries nothing."""

    carries: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._stores: dict[int, SqliteStore] = {}

    def open(self) -> ClusterCoordinator:
        store = sqlite.open(f"sqlite:///{Path(self._folder.name) / 'jobs.db'}")
        assert isinstance(store, SqliteStore)
        store.counts()
        coordinator = store.coordinator()
        self._stores[id(coordinator)] = store
        return coordinator

    def ready(self, coordinator: ClusterCoordinator) -> None:
        """It compares with what it saw at its last look; wait for two."""
        database = self._stores[id(coordinator)].database
        looked, original, looks = threading.Event(), database.data_version, []

        def counted() -> int | None:
            answer = original()
            if answer is not None:
                looks.append(answer)
            if len(looks) >= 3:  # the second look has been compared once the third begins
                looked.set()
            return answer

        database.data_version = counted  # type: ignore[method-assign]
        assert looked.wait(10)
        database.data_version = original  # type: ignore[method-assign]

    def announce(self, coordinator: ClusterCoordinator, hint: Hint) -> None:
        """Work is committed; this is all that happens."""
        self._stores[id(coordinator)].insert([NewJob(id=new_id(), target="m:f", payload="[]")])
        coordinator.notify(hint)

    def counters(self, coordinator: ClusterCoordinator) -> Mapping[str, int] | None:
        assert isinstance(coordinator, SqliteCoordinator)
        return {"received": coordinator.received, "listener_failures": coordinator.listener_failures}

    def close(self) -> None:
        for store in self._stores.values():
            store.close()
        self._folder.cleanup()


class _Attempt(Attempt):
    """An attempt of no claim, with its body at hand."""

    def __init__(self, body: Callable[[], None]) -> None:
        super().__init__(cast("Claim", None), 0.0)
        self.body = body


class Threads(ExecutorHarness):
    """Sync bodies on our own threads."""

    slots: ClassVar[type[ThreadSlots]] = ThreadSlots

    def open(self, slots: int, freed: Callable[[Any], None]) -> Executor[Any]:
        return self.slots("threads", slots, lambda attempt: attempt.body(), freed)  # type: ignore[attr-defined]

    def attempt(self, body: Callable[[], None]) -> Any:
        return _Attempt(body)


class Processes(Threads):
    """The proxies of child processes."""

    slots: ClassVar[type[ThreadSlots]] = ProcessSlots


class Loop(ExecutorHarness):
    """Async bodies on one event loop."""

    def open(self, slots: int, freed: Callable[[Any], None]) -> Executor[Any]:
        def gate(attempt: Any) -> Callable[[], Awaitable[Any]]:
            async def call() -> None:
                # What a test lets wait must not block the loop; what raises does so in the task itself.
                raised = await asyncio.to_thread(_caught, attempt.body)
                if raised is not None:
                    raise raised

            return call

        return LoopSlots(slots, gate, lambda attempt, *_: setattr(attempt, "ended", True), freed)

    def attempt(self, body: Callable[[], None]) -> Any:
        return _Attempt(body)


def _caught(body: Callable[[], None]) -> BaseException | None:
    try:
        body()
    except BaseException as error:
        return error
    return None


def codec() -> JsonCodec:
    """The shipped codec, with the suite's own classes allowed."""
    return JsonCodec(allows=lambda module: module.startswith("conformance_tests"))
