"""Our own stores are complete: the whole suite, as an author would run it, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900)
@pytest.mark.stores("memory", "sqlite")
def test_complete(store_url: str, tmp_path: Path) -> None:
    """Every contract that the suite lists is shown by this store, and its committed report says what the run says."""
    scheme = store_url.partition(":")[0]
    if scheme == "memory":
        store_url = "memory://"  # the harness names its own
    report = tmp_path / f"{scheme}.json"
    words = [
        "--pyargs",
        "conformance_tests",
        "--ratchet-url",
        store_url,
        "--ratchet-report-json",
        str(report),
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-6000:]
    told = json.loads(report.read_text())
    print(run.stdout[-400:])
    assert "complete" in str(told["verdict"]), told["verdict"]
    assert "incomplete" not in str(told["verdict"])
    page = [sys.executable, "scripts/render_conformance.py", "--check", str(report)]
    current = subprocess.run(page, cwd=ROOT, capture_output=True, text=True, check=False)
    assert current.returncode == 0, current.stdout + current.stderr
