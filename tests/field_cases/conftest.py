"""Fixtures of the field cases: a stage per test, and its parts by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.spi.store import JobStore
from tests.field_cases.faults import FaultyStore
from tests.field_cases.kit import START, FileClock, Gates, Ledger
from tests.field_cases.stage import Stage
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
    clock = FileClock(tmp_path / "clock")
    clock.set(START)
    return clock


@pytest.fixture
def stage(store_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """This test's store and whoever works on it; all are ended at the end."""
    stage = Stage(store_url, tmp_path, request.module.__name__)
    yield stage
    stage.close()


@pytest.fixture
def open_here(stage: Stage) -> Callable[..., JobStore]:
    """Opens handles on this test's store, as a node of its own would."""
    return stage.open


@pytest.fixture
def faulty(stage: Stage) -> FaultyStore:
    """A store that fails on request, in front of this test's store."""
    return stage.faulty()


@pytest.fixture
def make_node(stage: Stage) -> Callable[..., Any]:
    """Makes schedulers in this process: ``make_node(store=None, start=True, **quick_settings)``."""
    return stage.node


@pytest.fixture
def spawn(stage: Stage) -> Callable[..., Worker]:
    """Starts worker processes on this test's store: ``spawn(wait=True, **quick_settings)``."""
    return stage.spawn
