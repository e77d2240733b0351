"""The schema's versions, in order, and the ledger that says which of them a database has.

A step is text and is never changed once it was released: what an old database needs does not depend on
today's tables. A test proves that all steps together make exactly the tables of `ratchet_sql.schema`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from ratchet.errors import ConfigurationError, SchemaMissing, SchemaTooNew, StorePermanentError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """One version: what brings a database there from the version before.

    Attributes:
        version: from 1, without gaps.
        sqlite: the statements for SQLite.
    """

    version: int
    sqlite: tuple[str, ...]


# fmt: off
_FIRST: Final = (
    (
        "CREATE TABLE ratchet_callback ( job_id TEXT NOT NULL, claim_seq INTEGER NOT NULL, name TEXT NOT "
        "NULL, owner TEXT NOT NULL, target TEXT NOT NULL, argument TEXT NOT NULL, PRIMARY KEY (job_id, "
        "claim_seq, name) )"
    ),
    (
        "CREATE INDEX ratchet_callback_owner ON ratchet_callback (owner)"
    ),
    (
        "CREATE TABLE ratchet_execution ( job_id TEXT NOT NULL, claim_seq INTEGER NOT NULL, attempt INTEGER "
        "NOT NULL, ended_as TEXT NOT NULL, ended_by TEXT NOT NULL, node TEXT, picked_at INTEGER, started_at "
        "INTEGER NOT NULL, ended_at INTEGER NOT NULL, duration INTEGER NOT NULL, error TEXT, PRIMARY KEY "
        "(job_id, claim_seq) ) WITHOUT ROWID"
    ),
    (
        "CREATE TABLE ratchet_idempotency ( idempotency_key TEXT NOT NULL, job_id TEXT NOT NULL, PRIMARY KEY "
        "(idempotency_key) ) WITHOUT ROWID"
    ),
    (
        "CREATE TABLE ratchet_job ( id TEXT NOT NULL, status TEXT NOT NULL, target TEXT NOT NULL, payload "
        "TEXT NOT NULL, format INTEGER NOT NULL, type TEXT NOT NULL, executor TEXT NOT NULL, priority "
        "INTEGER NOT NULL, scheduled_time INTEGER NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER "
        "NOT NULL, params TEXT DEFAULT '' NOT NULL, version INTEGER DEFAULT 0 NOT NULL, claim_seq INTEGER "
        "DEFAULT 0 NOT NULL, attempts INTEGER DEFAULT 0 NOT NULL, crash_count INTEGER DEFAULT 0 NOT NULL, "
        "max_retries INTEGER NOT NULL, backoff TEXT DEFAULT '' NOT NULL, timeout INTEGER NOT NULL, tags TEXT "
        "DEFAULT '' NOT NULL, idempotency_key TEXT, business_key TEXT, principal TEXT, resource TEXT, "
        "on_success TEXT, on_failure TEXT, metadata TEXT DEFAULT '' NOT NULL, picked_by TEXT, picked_at "
        "INTEGER, started_at INTEGER, ended_at INTEGER, duration INTEGER, queue_wait INTEGER, last_error "
        "TEXT, result TEXT, paused_from_status TEXT, superseded_by TEXT, signal TEXT )"
    ),
    (
        "CREATE INDEX ratchet_job_batch ON ratchet_job (id) WHERE status = 'PENDING' AND type = 'BATCH'"
    ),
    (
        "CREATE INDEX ratchet_job_business_key ON ratchet_job (business_key, id) WHERE business_key IS NOT "
        "NULL"
    ),
    (
        "CREATE INDEX ratchet_job_claim ON ratchet_job (executor, priority, scheduled_time, id) WHERE status "
        "= 'PENDING' AND type != 'BATCH'"
    ),
    (
        "CREATE INDEX ratchet_job_created ON ratchet_job (created_at DESC, id)"
    ),
    (
        "CREATE INDEX ratchet_job_ended ON ratchet_job (ended_at DESC, id) WHERE ended_at IS NOT NULL"
    ),
    (
        "CREATE INDEX ratchet_job_exceptional ON ratchet_job (status, created_at DESC, id) WHERE status = "
        "'PAUSED' OR status = 'WAITING' OR status = 'FAILED' OR status = 'CANCELED'"
    ),
    (
        "CREATE INDEX ratchet_job_failed ON ratchet_job (status, id) WHERE status = 'FAILED'"
    ),
    (
        "CREATE INDEX ratchet_job_failed_ended ON ratchet_job (status, ended_at DESC, id) WHERE status = "
        "'FAILED'"
    ),
    (
        "CREATE UNIQUE INDEX ratchet_job_holder ON ratchet_job (business_key) WHERE business_key IS NOT NULL "
        "AND status IN ('PAUSED', 'PENDING', 'RUNNING', 'WAITING')"
    ),
    (
        "CREATE UNIQUE INDEX ratchet_job_id ON ratchet_job (id)"
    ),
    (
        "CREATE INDEX ratchet_job_owner ON ratchet_job (picked_by, picked_at) WHERE status = 'RUNNING'"
    ),
    (
        "CREATE INDEX ratchet_job_principal ON ratchet_job (principal, id) WHERE principal IS NOT NULL"
    ),
    (
        "CREATE TABLE ratchet_job_tag ( tag TEXT NOT NULL, job_id TEXT NOT NULL, PRIMARY KEY (tag, job_id) ) "
        "WITHOUT ROWID"
    ),
    (
        "CREATE INDEX ratchet_job_tag_job ON ratchet_job_tag (job_id)"
    ),
    (
        "CREATE TABLE ratchet_node ( incarnation TEXT NOT NULL, name TEXT NOT NULL, host TEXT NOT NULL, "
        "boot_id TEXT NOT NULL, pid_namespace TEXT NOT NULL, pid INTEGER NOT NULL, pid_started INTEGER NOT "
        "NULL, state TEXT NOT NULL, detail TEXT NOT NULL, started_at INTEGER NOT NULL, last_heartbeat "
        "INTEGER NOT NULL, PRIMARY KEY (incarnation) ) WITHOUT ROWID"
    ),
    (
        "CREATE TABLE ratchet_schema ( version INTEGER NOT NULL, applied_at INTEGER NOT NULL, PRIMARY KEY "
        "(version) ) WITHOUT ROWID"
    ),
)
# fmt: on

STEPS: Final = (Step(1, _FIRST),)
WANTED: Final = STEPS[-1].version
OLDEST_SQLITE: Final = (3, 35, 0)


class Retrying(Protocol):
    """Runs something again while another process holds the lock."""

    def __call__(self, attempt: Callable[[], T], /) -> T: ...


def version_of(connection: sqlite3.Connection) -> int | None:
    """The newest version in the ledger; None without a ledger."""
    return _state_of(connection)[0]


def _state_of(connection: sqlite3.Connection) -> tuple[int | None, bool]:
    # One look at the catalogue for both answers: another process may be creating it all at this moment.
    looked = "SELECT count(*), count(CASE name WHEN 'ratchet_schema' THEN 1 END) FROM sqlite_master"
    things, ledgers = connection.execute(looked).fetchone()
    version = _one(connection, "SELECT max(version) FROM ratchet_schema") if ledgers else None
    return version, things == 0


def prepare(
    connection: sqlite3.Connection,
    path: str,
    *,
    read_only: bool,
    auto_upgrade: bool,
    now: Callable[[], int],
    retrying: Retrying,
) -> None:
    """Make a database ready at first use: an empty one gets the schema, a known one is accepted.

    Raises:
        SchemaTooNew: before anything is written.
        SchemaMissing: the database holds other things and no schema of ours, or an older one, and
            `auto_upgrade` is off; or it is read-only.
    """
    _check_library(connection, retrying)
    version, empty = retrying(lambda: _state_of(connection))
    _refuse_newer(version, path)
    if version == WANTED:
        if not read_only:
            _use_wal(connection, path, retrying)
        return
    if read_only or not (empty or auto_upgrade):
        found = (
            "has no Ratchet schema"
            if version is None
            else f"has schema version {version}, {WANTED} is needed"
        )
        raise SchemaMissing(
            f"the database {path} {found}; run `ratchet schema upgrade --url sqlite:///{path}`"
        )
    upgrade(connection, path, now=now, retrying=retrying)


def upgrade(
    connection: sqlite3.Connection, path: str, *, now: Callable[[], int], retrying: Retrying
) -> list[int]:
    """Apply the missing steps in one transaction, whoever else may be at it; answers which."""
    _check_library(connection, retrying)
    _refuse_newer(retrying(lambda: version_of(connection)), path)
    _use_wal(connection, path, retrying)
    retrying(lambda: connection.execute("BEGIN IMMEDIATE"))
    try:
        version = version_of(connection)
        _refuse_newer(version, path)
        missing = [step for step in STEPS if step.version > (version or 0)]
        for step in missing:
            for statement in step.sqlite:
                connection.execute(statement)
            connection.execute(
                "INSERT INTO ratchet_schema (version, applied_at) VALUES (?, ?)", (step.version, now())
            )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return [step.version for step in missing]


def _check_library(connection: sqlite3.Connection, retrying: Retrying) -> None:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise ConfigurationError(
            f"Ratchet needs SQLite 3.35 or newer, this Python has {sqlite3.sqlite_version}; use a newer Python"
        )
    try:
        retrying(lambda: connection.execute("SELECT value FROM json_each(json_array(1))").fetchone())
    except sqlite3.OperationalError as error:
        if "json" not in str(error):
            raise
        raise ConfigurationError(
            "Ratchet needs SQLite with its JSON functions, this Python's was built without; use another Python"
        ) from error


def _refuse_newer(version: int | None, path: str) -> None:
    if version is not None and version > WANTED:
        raise SchemaTooNew(
            f"the database {path} has schema version {version}, this Ratchet knows {WANTED}; upgrade ratchet-jobs"
        )


def _use_wal(connection: sqlite3.Connection, path: str, retrying: Retrying) -> None:
    if retrying(lambda: _one(connection, "PRAGMA journal_mode")) == "wal":
        return
    mode = retrying(lambda: _one(connection, "PRAGMA journal_mode = WAL"))
    if mode != "wal":
        raise StorePermanentError(
            f"the database {path} cannot use a write-ahead log (it stays in mode {mode!r}); "
            "put it on a local disk, not on a network share"
        )


def _one(connection: sqlite3.Connection, sql: str) -> Any:
    return connection.execute(sql).fetchone()[0]
