"""Killed in the middle: every unit is there as a whole or not at all."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from conformance_tests.driver import new_job, request
from ratchet.domain.lifecycle import Status
from ratchet.spi.store import Selection
from ratchet_sql.store import SqliteStore

Program = Callable[..., subprocess.Popen[str]]
STEPS = {
    "insert": ("begun", "before commit", "committed"),
    "claim": ("begun", "claimed", "before commit", "committed"),
    "settle": ("begun", "updated", "effects written", "before commit", "committed"),
    "recover": ("orphans selected", "begun", "updated", "effects written", "before commit", "committed"),
}


@pytest.mark.parametrize(("what", "where"), [(what, step) for what, steps in STEPS.items() for step in steps])
def test_all_or_nothing(path: Path, store: SqliteStore, program: Program, what: str, where: str) -> None:
    """A process killed at any step of a unit leaves all of it (after the commit) or none of it."""
    jobs = [new_job() for _ in range(3)]
    if what != "insert":
        store.insert(jobs)
    if what in ("settle", "recover"):
        assert len(store.claim(request("victim")).claims) == 3
    process = program("crashing", what, where)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (-signal.SIGKILL, "")

    done = where == "committed"
    counts = store.counts()
    if what == "settle":
        assert counts[Status.SUCCEEDED] == (3 if done else 0)
        assert len(store.take_callbacks("heir", grace=timedelta(), limit=9)) == (1 if done else 0)
        assert sum(len(store.history(job.id)) for job in jobs) == (3 if done else 0)
    else:
        reached = {"insert": Status.PENDING, "claim": Status.RUNNING, "recover": Status.PENDING}[what]
        assert counts[reached] == (3 if done else 0)
    if what == "insert":
        taken = [store.find_by_key(idempotency=f"key-{n}") is not None for n in range(3)]
        held = [store.find_by_key(business=f"key-{n}") is not None for n in range(3)]
        assert taken == held == [done] * 3
    if what in ("insert", "settle"):
        expected = {"insert": 3, "settle": 1}[what] if done else 0
        assert store.count(Selection(tags=frozenset({"crash"}))) == expected
    if what == "recover":
        jobs_now = store.get_many([job.id for job in jobs])
        assert [job.crash_count for job in jobs_now] == [1 if done else 0] * 3
        assert [len(store.history(job.id)) for job in jobs] == [1 if done else 0] * 3
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
