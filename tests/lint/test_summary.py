"""What was not run is visible, counted and, where stores are required, a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"

SAMPLE = """
import conftest, pytest

def broken(folder):
    raise conftest.StoreUnavailable("no server answers")

conftest.STORES = {"memory": conftest.STORES["memory"], "broken": broken}

def test_each(store_url): pass

@pytest.mark.stores("memory")
def test_one(store_url): pass

@pytest.mark.stores("memory", "broken")
def test_two(store_url): pass

def test_later(): conftest.not_yet("Batch")
"""


def run(folder: Path, *args: str, **env: str) -> str:
    (folder / "conftest.py").write_text(CONFTEST.read_text(encoding="utf-8"))
    (folder / "test_sample.py").write_text(SAMPLE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = stores(*names): x\n")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("RATCHET_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *args]
    done = subprocess.run(command, cwd=folder, env=clean | env, capture_output=True, text=True, timeout=60)
    return f"{done.stdout}{done.stderr}\nexit {done.returncode}"


def test_a_store_that_cannot_run_is_named_with_its_reason(tmp_path: Path) -> None:
    """Without its server a store is skipped and the summary says NOT RUN, how often and why."""
    out = run(tmp_path)
    assert "NOT RUN: broken: no server answers (2 tests)" in out
    assert "NOT YET: Batch (1 tests)" in out
    assert "3 passed, 3 skipped" in out


def test_a_required_store_that_cannot_run_is_a_failure(tmp_path: Path) -> None:
    """Where every store is required, the missing one fails the run and its reason is told."""
    out = run(tmp_path, RATCHET_REQUIRE_STORES="1")
    assert (
        "every store is required here (RATCHET_REQUIRE_STORES=1): Skipped: NOT RUN: broken: no server" in out
    )
    assert "exit 1" in out


def test_stores_can_be_chosen(tmp_path: Path) -> None:
    """--stores deselects what is bound to other stores, by its parameter too, and keeps what is bound to none."""
    out = run(tmp_path, "--stores=memory")
    assert "broken" not in out
    assert "3 passed, 1 skipped, 2 deselected" in out


@pytest.mark.parametrize("scale", ["0", "-1", "11"])
def test_a_senseless_storm_scale_is_refused(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storm of no size, or of an absurd one, is an error rather than a green run."""
    from tests.conftest import storm_scale

    monkeypatch.setenv("RATCHET_STORM_SCALE", scale)
    with pytest.raises(pytest.UsageError, match="RATCHET_STORM_SCALE"):
        storm_scale()


def test_tests_share_one_conftest() -> None:
    """`tests.conftest` as tests import it is the very module that pytest loaded, not a second copy."""
    loaded = [m for m in sys.modules.values() if getattr(m, "__file__", None) == str(CONFTEST)]
    import tests.conftest

    assert loaded == [tests.conftest]
