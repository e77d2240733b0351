"""The reference: the same table, indexes and row through `sqlite3` alone, and nothing around it.

The file is made by the store's own schema upgrade, so that tables and indexes are the same by
construction, and the inserted row is what the store itself writes for the same submission. What the raw
loop leaves out makes it faster, never slower: it knows the one executor and priority there are, and it
writes no history.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import bodies
from ratchet import Scheduler
from ratchet.domain.ids import new_id
from ratchet.domain.lifecycle import Status
from ratchet.domain.priority import Priority
from ratchet.plugins import open_store
from ratchet_sql import rendered
from ratchet_sql.rows import INSERT_COLUMNS

_PENDING, _RUNNING, _SUCCEEDED = Status.PENDING.value, Status.RUNNING.value, Status.SUCCEEDED.value

CLAIM_ONE: Final = f"""
    update ratchet_job set status = '{_RUNNING}', updated_at = :now, version = version + 1,
        claim_seq = claim_seq + 1, picked_by = 'raw', picked_at = :now
    where id = (select id from ratchet_job
                where executor = 'threads' and priority = :priority and scheduled_time <= :now
                  and status = '{_PENDING}' and type != 'BATCH'
                order by scheduled_time, id limit 1)
    returning id, claim_seq, target, payload, picked_at, scheduled_time"""
FINISH_ONE: Final = f"""
    update ratchet_job set status = '{_SUCCEEDED}', updated_at = :now, version = version + 1,
        started_at = :picked_at, ended_at = :now, duration = 0, queue_wait = :queue_wait, result = 'null'
    where id = :id and claim_seq = :claim_seq and status = '{_RUNNING}'"""
UNSETTLED: Final = f"""
    select exists(select 1 from ratchet_job where status = '{_PENDING}' and type != 'BATCH')
        or exists(select 1 from ratchet_job where status = '{_RUNNING}')"""


def url(file: Path, synchronous: str = "FULL") -> str:
    """The store's URL of a file."""
    return f"sqlite:///{file}?synchronous={synchronous}"


def make(file: Path) -> dict[str, Any]:
    """Make the file with the store's schema; answers the row that the store writes for a no-op job."""
    store = open_store(url(file))
    store.schema_upgrade()  # type: ignore[attr-defined]
    scheduler = Scheduler(store, allow=["benchmarks"])
    handle = scheduler.enqueue(bodies.marked_noop).submit()
    scheduler.close()
    connection = connect(file)
    row = connection.execute(
        f"select {', '.join(INSERT_COLUMNS)} from ratchet_job where id = ?", (str(handle.id),)
    ).fetchone()
    connection.execute("delete from ratchet_job")
    connection.close()
    return dict(zip(INSERT_COLUMNS, row, strict=True))


def connect(file: Path, synchronous: str = "FULL") -> sqlite3.Connection:
    """A connection as anyone would make it for durable work: WAL, autocommit, waiting for locks."""
    connection = sqlite3.connect(file, timeout=30, isolation_level=None, check_same_thread=False)
    connection.execute("pragma journal_mode = wal")
    connection.execute(f"pragma synchronous = {synchronous}")
    return connection


def grow_log(file: Path) -> None:
    """Give the file's write-ahead log its final size, as in a file that has been in use for a while.

    A log that still grows costs several times as much per sync, at random; others must have the file open,
    because the log goes with the last connection.
    """
    connection = connect(file)
    connection.execute("create table growth (x)")
    connection.execute("insert into growth values (zeroblob(6000000))")
    connection.execute("drop table growth")
    connection.execute("pragma wal_checkpoint(restart)")
    connection.close()


def rows(template: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """`count` rows like `template`, each with an id of its own, ascending as the store's are."""
    now = time.time_ns() // 1_000_000
    instants = {"scheduled_time": now, "created_at": now, "updated_at": now}
    return [{**template, **instants, "id": str(new_id())} for _ in range(count)]


def insert_each(connection: sqlite3.Connection, prepared: Sequence[dict[str, Any]]) -> None:
    """One commit per row."""
    for row in prepared:
        connection.execute(rendered.INSERT_ONE, row)


def fill(file: Path, count: int) -> None:
    """A new file with `count` jobs that are due, in one commit."""
    prepared = rows(make(file), count)
    connection = connect(file)
    connection.execute("begin immediate")
    insert_each(connection, prepared)
    connection.execute("commit")
    connection.close()


def claim_one(connection: sqlite3.Connection) -> Any:
    """Claim the first due job, one statement that is its own commit; None if there is none."""
    now = time.time_ns() // 1_000_000
    found = connection.execute(CLAIM_ONE, {"now": now, "priority": int(Priority.NORMAL)}).fetchall()
    return found[0] if found else None


def finish_one(connection: sqlite3.Connection, row: Any) -> None:
    """Record its success, likewise."""
    now = time.time_ns() // 1_000_000
    job_id, claim_seq, _, _, picked_at, scheduled = row
    wait = picked_at - scheduled
    connection.execute(
        FINISH_ONE,
        {"id": job_id, "claim_seq": claim_seq, "now": now, "picked_at": picked_at, "queue_wait": wait},
    )


def drain(connection: sqlite3.Connection) -> int:
    """Claim one, run it, finish it, until nothing is left; answers how many."""
    count = 0
    while (row := claim_one(connection)) is not None:
        bodies.marked_noop()
        finish_one(connection, row)
        count += 1
    return count


def all_settled(connection: sqlite3.Connection) -> bool:
    """True once nothing is pending or running."""
    return not connection.execute(UNSETTLED).fetchone()[0]
