"""The schema: rendered text is current, versions are a ledger, racing starts make one database."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance_tests.driver import new_job
from ratchet.domain.job import Job, NewJob
from ratchet.domain.lifecycle import Status
from ratchet.errors import SchemaMissing, SchemaTooNew
from ratchet_sql import migrations, render, rows
from ratchet_sql.schema import job
from ratchet_sql.store import SqliteStore


def _catalogue(connection: sqlite3.Connection) -> set[str]:
    return {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}


def test_rendered_text_is_current() -> None:
    """The committed statements are what the Core statements render to."""
    assert render.TARGET.read_text(encoding="utf-8") == render.render(), "run: python -m ratchet_sql.render"


def test_steps_make_the_tables() -> None:
    """All migration steps together make exactly the tables and indexes of the schema module."""
    stepped, made = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    for step in migrations.STEPS:
        for statement in step.sqlite:
            stepped.execute(statement)
    for statement in render.schema_ddl():
        made.execute(statement)
    assert _catalogue(stepped) == _catalogue(made)
    assert [step.version for step in migrations.STEPS] == list(range(1, migrations.WANTED + 1))
    stepped.close()
    made.close()


def test_every_field_has_its_column() -> None:
    """Each field of a stored job is a column, read and (where submitted) written under its own name."""
    fields = set(Job.__dataclass_fields__)
    assert set(rows.JOB_COLUMNS) == fields == {column.name for column in job.columns}
    submitted = {"id", "status", "scheduled_time", "created_at", "updated_at"}
    claimed = {"version", "claim_seq", "picked_by", "picked_at"}
    given = set(NewJob.__dataclass_fields__) - {"delay", "at", "start", "claim_for"}
    assert set(rows.INSERT_COLUMNS) == submitted | claimed | given


def test_first_use_makes_it(path: Path, store: SqliteStore) -> None:
    """A missing file and an empty one get the schema at first use, not before; status creates nothing."""
    assert store.schema_status() == (None, migrations.WANTED)
    assert not path.exists()
    path.touch()
    assert store.schema_status() == (None, migrations.WANTED)
    assert path.stat().st_size == 0
    assert store.get(new_job().id) is None
    assert store.schema_status() == (migrations.WANTED, migrations.WANTED)
    assert store.schema_upgrade() == []


def test_upgrade_by_hand(path: Path, store: SqliteStore) -> None:
    """`schema_upgrade` makes the schema and answers the versions; the store then works."""
    assert store.schema_upgrade() == list(range(1, migrations.WANTED + 1))
    assert store.schema_upgrade() == []
    assert store.insert([new_job()])[0].created


def test_newer_is_refused_before_any_write(path: Path, open_store: Callable[..., SqliteStore]) -> None:
    """A database of an unknown newer version is refused by every call, and stays as it was, byte for byte."""
    first = open_store()
    first.insert([new_job()])
    first.close()
    newer = sqlite3.connect(path)
    newer.execute("INSERT INTO ratchet_schema VALUES (?, 0)", (migrations.WANTED + 1,))
    newer.commit()
    newer.execute("PRAGMA journal_mode = DELETE")
    newer.close()
    before = path.read_bytes()
    store = open_store(auto_upgrade=True)
    for call in (
        lambda: store.insert([new_job()]),
        lambda: store.get(new_job().id),
        store.counts,
        store.schema_upgrade,
    ):
        with pytest.raises(SchemaTooNew, match="upgrade ratchet-jobs"):
            call()
    assert store.schema_status() == (migrations.WANTED + 1, migrations.WANTED)
    assert path.read_bytes() == before


def test_foreign_database(path: Path, open_store: Callable[..., SqliteStore]) -> None:
    """A database with other tables is left alone until told to upgrade; then both live in it."""
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE invoice (id INTEGER)")
    other.commit()
    store = open_store()
    with pytest.raises(SchemaMissing, match="ratchet schema upgrade"):
        store.counts()
    assert _catalogue(other) == {"CREATE TABLE invoice (id INTEGER)"}
    assert open_store(auto_upgrade=True).insert([new_job()])[0].created
    assert store.counts()[Status.PENDING] == 1
    assert other.execute("SELECT count(*) FROM invoice").fetchone() == (0,)
    other.close()


def test_read_only_makes_nothing(path: Path, open_store: Callable[..., SqliteStore]) -> None:
    """With mode=ro an empty database is missing its schema, and is not given one."""
    path.touch()
    with pytest.raises(SchemaMissing):
        open_store("?mode=ro").counts()
    assert path.stat().st_size == 0


def test_racing_starts(store: SqliteStore, program: Callable[..., subprocess.Popen[str]]) -> None:
    """Six processes that meet a missing file at the same moment make one schema, and each job is in it."""
    starting = [program("opening") for _ in range(6)]
    for process in starting:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in starting:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate(timeout=60)[0] for process in starting] == ["True\n"] * 6
    assert store.counts()[Status.PENDING] == 6
    assert store.schema_status() == (migrations.WANTED, migrations.WANTED)
