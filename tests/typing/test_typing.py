"""Type checkers infer and refuse what the front door promises (pyright checks the same file in the lint session)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = "tests/typing/front_door.py"
WRONG = """
from typing import assert_type
from ratchet import Scheduler

def charge(invoice_id: int) -> str:
    return str(invoice_id)

handle = Scheduler.from_url("memory://").enqueue(charge, 1).submit()
assert_type(handle.result(), int)
handle.wait(timeout=1)  # type: ignore[call-overload]
Scheduler.from_url("memory://").enqueue(charge, "1")
"""


def mypy(path: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_mypy_infers_results_and_refuses_wrong_calls() -> None:
    """Every `assert_type` holds, and every marked call is an error, under mypy's strict mode."""
    assert mypy(CASES) == (0, "")


@pytest.mark.timeout(600)
def test_the_check_can_fail(tmp_path: Path) -> None:
    """A wrong inference, an unneeded mark and an unmarked wrong call are each reported."""
    path = tmp_path / "wrong.py"
    path.write_text(WRONG)
    code, out = mypy(str(path))
    assert code == 1
    assert [line.rpartition("[")[2] for line in out.splitlines() if ": error: " in line] == [
        "assert-type]",
        "unused-ignore]",
        "call-overload]",
    ]
