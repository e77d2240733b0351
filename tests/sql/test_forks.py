"""Forks (F51): a child uses nothing of its parent's, and neither harms the other."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.domain.lifecycle import Status
from ratchet_sql.store import SqliteStore


@pytest.mark.field_case("F51")
def test_children_of_a_busy_parent(
    path: Path, store: SqliteStore, program: Callable[..., subprocess.Popen[str]]
) -> None:
    """Twenty children of a parent whose thread submits each run five jobs; the parent goes on; no job is lost."""
    output, _ = program("fork_children").communicate(timeout=60)
    failed, submitted, _ = output.split()
    assert failed == "0"
    counts = store.counts()
    assert counts[Status.SUCCEEDED] == 100
    assert counts[Status.PENDING] == int(submitted)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        rows = connection.execute("SELECT picked_by, count(DISTINCT id) FROM ratchet_job GROUP BY 1")
        held = {owner: jobs for owner, jobs in rows if owner is not None}
    connection.close()
    assert held == {f"child-{number}": 5 for number in range(20)}
