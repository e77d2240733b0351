"""Fixtures of the tests that are SQLite's own: a file, handles on it, and programs that use it too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance_tests.driver import Driver, SettableClock
from ratchet_sql.plugin import sqlite
from ratchet_sql.store import SqliteStore

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the database will be."""
    return tmp_path / "jobs.db"


@pytest.fixture
def open_store(path: Path) -> Iterator[Callable[..., SqliteStore]]:
    """Opens handles on the file: ``open_store("?timeout=1", clock=...)``."""
    handles: list[SqliteStore] = []

    def opened(query: str = "", **options: Any) -> SqliteStore:
        store = sqlite.open(f"sqlite:///{path}{query}", **options)
        assert isinstance(store, SqliteStore)
        handles.append(store)
        return store

    yield opened
    for store in handles:
        store.close()


@pytest.fixture
def store(open_store: Callable[..., SqliteStore]) -> SqliteStore:
    """One handle, on the wall clock."""
    return open_store()


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def driver(open_store: Callable[..., SqliteStore], clock: SettableClock) -> Driver:
    """Moves the jobs of a handle whose clock stands still."""
    return Driver(open_store(clock=clock), clock)


@pytest.fixture
def program(path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts ``python tests/sql/<name>.py <url> <arguments>``; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), f"sqlite:///{path}"]
        process = subprocess.Popen(
            [*command, *map(str, arguments)],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "PATH": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
