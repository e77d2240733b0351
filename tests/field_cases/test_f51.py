"""F51: a parent that has the store open, and works on it, forks; every child works, and so does the parent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from ratchet import Scheduler, Status
from ratchet.spi.store import Selection
from tests.field_cases.exact import Once
from tests.field_cases.kit import Ledger, Row
from tests.field_cases.worker import ROOT

# The memory store is one process's own.
pytestmark = [pytest.mark.field_case("F51"), pytest.mark.stores("sqlite")]

CHILDREN: Final = 20
JOBS: Final = 5


class Played:
    """What a parent and its children left behind."""

    def __init__(self, folder: Path, *, started: bool) -> None:
        self.folder, self.url = folder, f"sqlite:///{folder / 'ratchet.db'}"
        words = {
            "url": self.url,
            "folder": str(folder),
            "children": CHILDREN,
            "jobs": JOBS,
            "started": started,
        }
        self.process = subprocess.run(
            [sys.executable, "-m", "tests.field_cases.forking", json.dumps(words)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=110,
        )
        self.ledger = Ledger(folder)

    def report(self, name: str) -> dict[str, Any]:
        """What one of them said of itself."""
        path = self.folder / f"report-{name}"
        assert path.exists(), f"{name} said nothing; {self.errors()}; stderr: {self.process.stderr[-2000:]}"
        answer: dict[str, Any] = json.loads(path.read_text())
        return answer

    def errors(self) -> list[str]:
        return [path.read_text() for path in self.folder.glob("report-error-*")]

    @property
    def parent(self) -> dict[str, Any]:
        return self.report("parent")

    @property
    def children(self) -> list[dict[str, Any]]:
        return [self.report(f"child-{number}") for number in range(CHILDREN)]


once: Final[Once[Played]] = Once()


@pytest.fixture(params=[False, True], ids=["opened", "working"])
def played(request: pytest.FixtureRequest, store_url: str, tmp_path: Path) -> Played:
    """A parent that only has the store open and submits, or one whose own node works, when it forks."""
    return once((request.param, store_url.partition(":")[0]), lambda: Played(tmp_path, started=request.param))


@pytest.fixture
def reader(played: Played) -> Iterator[Scheduler]:
    """Reads the store afterwards."""
    scheduler = Scheduler.from_url(played.url, allow=["tests.field_cases.forking"])
    yield scheduler
    scheduler.close()


def test_f51_all_jobs_of_the_children_succeed(played: Played, reader: Scheduler) -> None:
    """20 children submit and run 5 jobs each: 100 are SUCCEEDED, each executed as often as it was claimed."""
    ids = [each for child in played.children for each in child["ids"]]
    assert len(ids) == CHILDREN * JOBS
    wanted = frozenset(job.id for job in reader.query.iterate() if str(job.id) in set(ids))
    assert (
        reader.query.count(Selection(ids=wanted, statuses=frozenset({Status.SUCCEEDED}))) == CHILDREN * JOBS
    )
    executions: dict[UUID, list[Row]] = {}
    for row in played.ledger.rows():
        executions.setdefault(row.job, []).append(row)
    for job in reader.query.iterate():
        rows = executions[job.id]
        assert len(rows) == len({row.claim_seq for row in rows}) <= job.claim_seq
        assert job.status is Status.SUCCEEDED
        assert job.crash_count == 0


def test_f51_nobody_hangs(played: Played) -> None:
    """Every child ends by itself within its 60 s, and so does the parent, without a word on standard error."""
    assert played.parent["codes"] == [0] * CHILDREN, (played.errors(), played.process.stderr[-2000:])
    assert played.process.returncode == 0
    assert "Traceback" not in played.process.stderr
    assert "Warning" not in played.process.stderr


def test_f51_ids_are_unique_across_children(played: Played) -> None:
    """No two of them, nor the parent's thread, ever made the same id."""
    ids = [each for child in played.children for each in child["ids"]]
    assert len(set(ids)) == CHILDREN * JOBS


def test_f51_each_child_has_its_own_identity(played: Played) -> None:
    """Each child's node has its own incarnation, its own name and its own process id."""
    children = played.children
    for key in ("incarnation", "node", "pid"):
        assert len({child[key] for child in children}) == CHILDREN, key
    assert all(child["node_pid"] == child["pid"] for child in children)
    assert all(str(child["pid"]) in child["node"] for child in children)
    assert played.parent["pid"] not in {child["pid"] for child in children}


def test_f51_the_parent_still_works(played: Played) -> None:
    """The parent's looping thread lost nothing, and its node runs jobs and tells of them after all forks."""
    parent = played.parent
    assert parent["looped"] == parent["submitted"] > 0
    assert parent["ran_by"] == parent["pid"]
    assert parent["told"]
    assert parent["drained"]


def test_f51_jitter_differs_between_children(played: Played) -> None:
    """Random numbers, and the delays made with them, are not the same in every child."""
    assert len({child["draw"] for child in played.children}) == CHILDREN
    jitter = [each for one in (played.parent, *played.children) for each in one["jitter"]]
    assert len(jitter) >= CHILDREN / 2, "retries were told where they were decided"
    assert len(set(jitter)) > len(jitter) / 2


def test_f51_listeners_are_inherited(played: Played) -> None:
    """A listener that was added before the fork hears, in each child, what that child's node does."""
    heard = [set(child["heard"]) for child in played.children]
    assert sum(map(len, heard)) == len(set().union(*heard)), "no event was told twice"
    ran = {
        str(row.job) for child in played.children for row in played.ledger.rows() if row.pid == child["pid"]
    }
    assert set().union(*heard) <= ran
    assert len(ran - set().union(*heard)) <= CHILDREN, "but for what failed once, and ran elsewhere then"
