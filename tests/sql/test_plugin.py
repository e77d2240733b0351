"""The URL: what it may say, and that nothing happens before the first use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conformance_tests.driver import new_job
from ratchet.errors import ConfigurationError, StoreClosed
from ratchet.spi.capabilities import PROTOCOLS, Capability
from ratchet.spi.plugin import SchemaStore, StorePlugin
from ratchet.spi.store import JobStore
from ratchet_sql.plugin import sqlite
from ratchet_sql.store import SqliteStore
from tests.sql.conftest import ROOT


def test_protocols() -> None:
    """Plugin and store satisfy the protocols, those of the declared capabilities included."""
    assert isinstance(sqlite, StorePlugin)
    store = sqlite.open("sqlite:///unused.db")
    assert isinstance(store, JobStore)
    assert isinstance(store, SchemaStore)
    for name in store.capabilities:
        assert isinstance(store, PROTOCOLS.get(Capability(name), object))


def test_relative_and_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes are relative to the working directory at opening, four absolute; %xx is decoded."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for url, expected in {
        "sqlite:///a.db": "a.db",
        "sqlite:///sub/b.db": "sub/b.db",
        f"sqlite:///{tmp_path}/c.db": "c.db",
        "sqlite:///with%20space%23%3F.db": "with space#?.db",
    }.items():
        store = sqlite.open(url)
        assert not (tmp_path / expected).exists(), "opened before it was used"
        store.insert([new_job()])
        assert (tmp_path / expected).is_file()
        store.close()


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("sqlite://", "memory://"),
        ("sqlite:///", "memory://"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:jobs.db", "slashes"),
        ("sqlite://jobs.db", "slashes"),
        ("sqlite://host/jobs.db", "slashes"),
        ("sqlite:///folder/", "file name"),
        ("sqlite:///jobs.db#part", "%23"),
        ("sqlite:///jobs.db?synchronus=FULL", "'synchronous'"),
        ("sqlite:///jobs.db?colour=red", "synchronous, mode, timeout"),
        ("sqlite:///jobs.db?synchronous=OFF", "FULL, NORMAL"),
        ("sqlite:///jobs.db?mode=memory", "ro, rw"),
        ("sqlite:///jobs.db?timeout=soon", "seconds"),
        ("sqlite:///jobs.db?timeout=-1", "seconds"),
        ("sqlite:///jobs.db?timeout=nan", "seconds"),
        ("sqlite:///jobs.db?timeout", "?timeout=10"),
        ("sqlite:///jobs.db?timeout=1&timeout=2", "twice"),
        ("sqlite://[jobs.db", "not a URL"),
        ("postgresql:///jobs", "sqlite:///"),
    ],
)
def test_malformed(url: str, remedy: str) -> None:
    """A malformed URL is a configuration error of one line that says what to write."""
    with pytest.raises(ConfigurationError) as caught:
        sqlite.open(url)
    message = str(caught.value)
    assert remedy in message
    assert "\n" not in message


@pytest.mark.parametrize(("choice", "value"), [("", 2), ("?synchronous=FULL", 2), ("?synchronous=normal", 1)])
def test_synchronous(path: Path, choice: str, value: int) -> None:
    """What was acknowledged survives a power cut unless the URL says NORMAL."""
    store = sqlite.open(f"sqlite:///{path}{choice}")
    assert isinstance(store, SqliteStore)
    store.insert([new_job()])
    assert store.database.write(lambda execute, _: execute("PRAGMA synchronous").fetchone()[0]) == value
    assert store.database.write(lambda execute, _: execute("PRAGMA journal_mode").fetchone()[0]) == "wal"
    store.close()


def test_closed(store: SqliteStore) -> None:
    """After close, which may be repeated, every call raises StoreClosed, opened before or not."""
    job = new_job()
    store.insert([job])
    store.close()
    store.close()
    for call in (
        lambda: store.insert([new_job()]),
        lambda: store.get(job.id),
        store.counts,
        store.nodes,
        store.database.data_version,
    ):
        with pytest.raises(StoreClosed):
            call()


def test_sqlalchemy_stays_out() -> None:
    """Neither importing the plugin nor submitting, claiming and settling imports SQLAlchemy."""
    program = """
import sys, tempfile
from datetime import timedelta
from ratchet_sql.plugin import sqlite
assert "sqlite3" not in sys.modules and "ratchet_sql.store" not in sys.modules
from ratchet.domain.lifecycle import Trigger
from ratchet.domain.settlement import Change, Settlement
from conformance_tests.driver import new_job, request
with tempfile.TemporaryDirectory() as folder:
    store = sqlite.open(f"sqlite:///{folder}/jobs.db")
    store.insert([new_job(), new_job(tags=frozenset({"a"}), idempotency_key="k")])
    claims = store.claim(request()).claims
    store.settle_many([Settlement(Change(Trigger.SUCCEED, c.job_id, c.claim_seq, result="1")) for c in claims])
    assert len(claims) == 2 and store.counts() and store.history(claims[0].job_id)
    store.close()
print([name for name in sys.modules if name.startswith("sqlalchemy")])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
