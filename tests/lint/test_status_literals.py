"""The literal-status check finds what it is for, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_status_literals import check, literals


@pytest.mark.parametrize(
    "source",
    [
        "x = job.status == 'PENDING'",
        "query = \"update jobs set status = 'RUNNING'\"",
        "query = f\"status in ('FAILED', {other})\"",
        "match status:\n    case 'PAUSED': pass",
    ],
)
def test_a_status_as_a_string_is_found(source: str) -> None:
    """A string that is a status, or quotes one, is reported."""
    assert len(list(literals(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "'''The job is 'PENDING' until claimed.'''",
        "x = job.status is Status.PENDING",
        "raise ValueError('only a job that is FAILED can be requeued')",
        "x = 'PENDING_COUNT'",
    ],
)
def test_prose_and_members_are_not_found(source: str) -> None:
    """Docstrings, messages in words and enum members are allowed."""
    assert list(literals(source)) == []


def test_the_table_and_migrations_are_exempt(tmp_path: Path) -> None:
    """Only the lifecycle table and migrations may spell a status; a store may not."""
    for name in ("ratchet/domain/lifecycle.py", "ratchet_sql/migrations/v1.py", "ratchet_sql/claim.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("X = 'PENDING'\n")
    assert [line.partition(":")[0] for line in check(tmp_path)] == ["ratchet_sql/claim.py"]


def test_the_packages_are_clean() -> None:
    """No package of this repository writes a status as a string."""
    assert check() == []
