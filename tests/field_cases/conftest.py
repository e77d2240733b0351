"""Fixtures of the field cases: the ledger, the gates, nodes in this process and in others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ratchet import Scheduler
from ratchet.errors import RatchetError
from ratchet.plugins import open_store
from ratchet.spi.store import JobStore
from tests.field_cases.faults import FaultyStore
from tests.field_cases.kit import FileClock, Gates, Ledger, quick_settings
from tests.field_cases.worker import Worker


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """The side table of executions of this test."""
    return Ledger(tmp_path)


@pytest.fixture
def gates(tmp_path: Path) -> Gates:
    """The gates of this test."""
    return Gates(tmp_path)


@pytest.fixture
def file_clock(tmp_path: Path) -> FileClock:
    """Store time of this test, for stores of all its processes that open it; starts at `kit.START`."""
    from tests.field_cases.kit import START

    clock = FileClock(tmp_path / "clock")
    clock.set(START)
    return clock


@pytest.fixture
def open_here(store_url: str) -> Iterator[Callable[..., JobStore]]:
    """Opens handles on this test's store, as a node of its own would; closed at the end."""
    opened: list[JobStore] = []

    def open_another(**words: Any) -> JobStore:
        opened.append(open_store(store_url, **words))
        return opened[-1]

    yield open_another
    for store in opened:
        store.close()


@pytest.fixture
def faulty(open_here: Callable[..., JobStore]) -> FaultyStore:
    """A store that fails on request, in front of this test's store."""
    return FaultyStore(open_here())


@pytest.fixture
def make_node(open_here: Callable[..., JobStore], request: pytest.FixtureRequest) -> Iterator[Any]:
    """Makes schedulers in this process: ``make_node(store=None, allow=..., start=True, **quick_settings)``.

    `allow` is this test's module unless given. All are stopped at the end, whatever state they are in.
    """
    made: list[Scheduler] = []

    def make(
        store: JobStore | None = None,
        *,
        allow: str | None = None,
        start: bool = True,
        parts: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Scheduler:
        scheduler = Scheduler(
            open_here() if store is None else store,
            allow=[allow or request.module.__name__],
            settings=quick_settings(**settings),
            **(parts or {}),
        )
        made.append(scheduler)
        return scheduler.start() if start else scheduler

    yield make
    for scheduler in made:
        with suppress(RatchetError):
            scheduler.stop(2.0)


@pytest.fixture
def spawn(store_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Worker]]:
    """Starts worker processes on this test's store: ``spawn(wait=True, **quick_settings)``; ended at the end."""
    workers: list[Worker] = []

    def start(*, allow: str | None = None, **words: Any) -> Worker:
        workers.append(Worker(store_url, tmp_path, allow=allow or request.module.__name__, **words))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()
