"""``ratchet conformance URL`` on stores that are installed: it works beside what is there, and leaves nothing."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Runs the command in an empty folder."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        given = [sys.executable, "-m", "ratchet", "conformance", *words]
        return subprocess.run(given, cwd=tmp_path, capture_output=True, text=True, timeout=110)

    return run


@pytest.mark.parametrize("url", ["memory://", "sqlite:///new.db"])
def test_an_installed_store(command: Command, tmp_path: Path, url: str) -> None:
    """The store of the URL's scheme is tested in databases that are gone afterwards, and reported."""
    ended = command(url, "--contracts", "COUNT-01,CELL-01", "--json", "r.json", "--markdown", "r.md")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.json", "r.md"]
    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    passed = {each["id"] for each in report["contracts"] if each["verdict"] == "PASSED"}
    assert passed == {"COUNT-01", "CELL-01"}
    assert {"store", "database", "harness"} <= report["facts"].keys()
    assert report["suite"] in (tmp_path / "r.md").read_text(encoding="utf-8").splitlines()[0]


def test_a_database_that_is_not_empty(command: Command, tmp_path: Path) -> None:
    """It is refused with a sentence and not touched."""
    path = tmp_path / "mine.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine (x)")
        connection.commit()
    before = path.read_bytes()
    ended = command("sqlite:///mine.db")
    assert ended.returncode == 2
    assert "is not empty" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("nosuch://x", "no conformance harness is installed for nosuch://"),
        ("new.db", "not a store URL"),
        ("sqlite://new.db", "too few slashes"),
        ("memory://mine", "tested as memory://"),
    ],
)
def test_wrong_urls(command: Command, url: str, told: str) -> None:
    """What is wrong with a URL is one sentence, and wrong usage."""
    ended = command(url)
    assert ended.returncode == 2
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr
