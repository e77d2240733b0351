"""The benchmarks of this store run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mongo import servers
from tests.mongo.conftest import needs

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("group", ["mongo-insert", "mongo-claim", "mongo-delay"])
def test_the_programs_run(group: str, mongo_url: str, tmp_path: Path) -> None:
    """The smallest run of a group of lines prints its table and ends with its verdict's code."""
    needs("speed")
    if group == "mongo-delay" and os.environ.get(servers.DEPLOYMENT):
        pytest.skip("the proxy stands before a server of its own")
    assert mongo_url
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--only", group, "--pairs", "1", "--scale", "0.01"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "MongoDB: " in done.stdout
    assert "NOT RUN" not in done.stdout
    assert not list(tmp_path.iterdir())
