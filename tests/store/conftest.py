"""Fixtures of the store suite: one store under test, its clock, and further handles on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ratchet.spi.store import JobStore
from tests.store.harness import Driver, SettableClock, StoreHarness


@pytest.fixture
def harness(store_url: str) -> Iterator[StoreHarness]:
    """The store under test; skipped with its name while it is not installed."""
    try:
        harness = StoreHarness(store_url)
    except ModuleNotFoundError as missing:
        if not str(missing.name).startswith("ratchet"):
            raise
        pytest.skip(f"NOT RUN: {store_url.partition(':')[0]}: there is no module {missing.name}")
    yield harness
    harness.close()


@pytest.fixture
def store(harness: StoreHarness) -> JobStore:
    """An empty store."""
    return harness.open()


@pytest.fixture
def clock(harness: StoreHarness) -> SettableClock:
    """The clock of `store`."""
    return harness.clock


@pytest.fixture
def open_another(harness: StoreHarness, store: JobStore) -> Callable[[], JobStore]:
    """Opens a further handle on the jobs of `store`."""
    return harness.open


@pytest.fixture
def driver(store: JobStore, clock: SettableClock) -> Driver:
    """Moves the jobs of `store`."""
    return Driver(store, clock)
