"""The tables, as SQLAlchemy Core knows them: the source of every statement and of the first migration.

Conventions. An instant is an integer, milliseconds since 1970 UTC; so are `duration` and `queue_wait`,
and only `timeout` counts microseconds, because it is the user's and must come back exactly. Ids are text,
36 characters: on SQLite as fast as 16-byte blobs within the noise of a measurement (the write to disk
dominates), they pass through the JSON functions as they are, and ``sqlite3 jobs.db`` shows what the logs
show. Structured values (payload, params, tags, metadata, back-off) are text that only Ratchet reads.

`ratchet_job` is an ordinary rowid table: without rowids it was slower by half once a row passed a
kilobyte, because such rows then sit in inner pages of the index. The small tables, read by their key
only, are without rowids.

Indexes are partial wherever a job is in one only for a part of its life. A query can use such an index
only if the index's condition stands in it literally, never as a parameter; `literal` is for that.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Column, Index, Integer, MetaData, Table, Text, and_, desc, literal_column, or_, text
from sqlalchemy.sql.elements import ColumnElement

from ratchet.domain.job import JobType
from ratchet.domain.lifecycle import HOLDS_BUSINESS_KEY, Status

__all__ = [
    "callback", "execution", "holds_business_key", "idempotency", "is_batch", "is_status", "is_work", "job", "job_tag",
    "literal", "metadata", "node", "schema",
]  # fmt: skip


def literal(value: str | int) -> ColumnElement[Any]:
    """`value` written into the statement itself."""
    if isinstance(value, int):
        return literal_column(str(value), Integer())
    return literal_column("'" + str(value).replace("'", "''") + "'", Text())


metadata: Final = MetaData()


def _text(name: str, *, null: bool = False, key: bool = False, default: str | None = None) -> Column[str]:
    fill = None if default is None else text(f"'{default}'")
    return Column(name, Text, nullable=null, primary_key=key, server_default=fill)


def _int(name: str, *, null: bool = False, key: bool = False, default: int | None = None) -> Column[int]:
    fill = None if default is None else text(str(default))
    return Column(name, Integer, nullable=null, primary_key=key, server_default=fill, autoincrement=False)


job: Final = Table(
    "ratchet_job",
    metadata,
    _text("id"),
    _text("status"),
    _text("target"),
    _text("payload"),
    _int("format"),
    _text("type"),
    _text("executor"),
    _int("priority"),
    _int("scheduled_time"),
    _int("created_at"),
    _int("updated_at"),
    _text("params", default=""),
    _int("version", default=0),
    _int("claim_seq", default=0),
    _int("attempts", default=0),
    _int("crash_count", default=0),
    _int("max_retries"),
    _text("backoff", default=""),
    _int("timeout"),
    _text("tags", default=""),
    _text("idempotency_key", null=True),
    _text("business_key", null=True),
    _text("principal", null=True),
    _text("resource", null=True),
    _text("on_success", null=True),
    _text("on_failure", null=True),
    _text("metadata", default=""),
    _text("picked_by", null=True),
    _int("picked_at", null=True),
    _int("started_at", null=True),
    _int("ended_at", null=True),
    _int("duration", null=True),
    _int("queue_wait", null=True),
    _text("last_error", null=True),
    _text("result", null=True),
    _text("paused_from_status", null=True),
    _text("superseded_by", null=True),
    _text("signal", null=True),
)


def is_status(status: Status) -> ColumnElement[bool]:
    """``status = 'X'``, literally."""
    return job.c.status == literal(status.value)


# A chain of ORs, because SQLite proves "status = 'FAILED'" to imply it, and not an IN list.
_EXCEPTIONAL: Final = or_(
    *[is_status(s) for s in (Status.PAUSED, Status.WAITING, Status.FAILED, Status.CANCELED)]
)

holds_business_key: Final = and_(
    job.c.business_key.is_not(None),
    job.c.status.in_([literal(s.value) for s in sorted(HOLDS_BUSINESS_KEY)]),
)
"""The job holds its business key now."""

is_work: Final = and_(is_status(Status.PENDING), job.c.type != literal(JobType.BATCH.value))
"""The job may be claimed once it is due: pending, and not a batch parent."""


is_batch: Final = and_(is_status(Status.PENDING), job.c.type == literal(JobType.BATCH.value))
"""A batch parent that has not settled: pending, and never claimed."""


def _index(
    name: str, *columns: object, where: ColumnElement[bool] | None = None, unique: bool = False
) -> None:
    Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)  # type: ignore[arg-type]


_index("ratchet_job_id", job.c.id, unique=True)
# claim: the first due ones of each executor and priority, and what becomes due next
_index("ratchet_job_claim", job.c.executor, job.c.priority, job.c.scheduled_time, job.c.id, where=is_work)
_index("ratchet_job_batch", job.c.id, where=is_batch)
# held, the orphan scan
_index("ratchet_job_owner", job.c.picked_by, job.c.picked_at, where=is_status(Status.RUNNING))
_index("ratchet_job_holder", job.c.business_key, unique=True, where=holds_business_key)
# listings: everything by creation; by end; the rare states on their own, so that nothing common is passed over
_index("ratchet_job_created", desc(job.c.created_at), job.c.id)
_index("ratchet_job_ended", desc(job.c.ended_at), job.c.id, where=job.c.ended_at.is_not(None))
_index("ratchet_job_exceptional", job.c.status, desc(job.c.created_at), job.c.id, where=_EXCEPTIONAL)
# the dead-letter queue, oldest first and latest first; with the status in front, or the planner prefers the one above
_index("ratchet_job_failed", job.c.status, job.c.id, where=is_status(Status.FAILED))
_index(
    "ratchet_job_failed_ended", job.c.status, desc(job.c.ended_at), job.c.id, where=is_status(Status.FAILED)
)
_index("ratchet_job_business_key", job.c.business_key, job.c.id, where=job.c.business_key.is_not(None))
_index("ratchet_job_principal", job.c.principal, job.c.id, where=job.c.principal.is_not(None))

job_tag: Final = Table(
    "ratchet_job_tag",
    metadata,
    _text("tag", key=True),
    _text("job_id", key=True),
    Index("ratchet_job_tag_job", "job_id"),
    sqlite_with_rowid=False,
)

idempotency: Final = Table(
    "ratchet_idempotency",
    metadata,
    _text("idempotency_key", key=True),
    _text("job_id"),
    sqlite_with_rowid=False,
)
"""Taken for ever: nothing deletes from it."""

execution: Final = Table(
    "ratchet_execution",
    metadata,
    _text("job_id", key=True),
    _int("claim_seq", key=True),
    _int("attempt"),
    # how it ended; "end" is a word of SQL
    _text("ended_as"),
    _text("ended_by"),
    _text("node", null=True),
    _int("picked_at", null=True),
    _int("started_at"),
    _int("ended_at"),
    _int("duration"),
    _text("error", null=True),
    sqlite_with_rowid=False,
)
"""One row per ended claim, inserted by the transition that ends it, never changed."""

callback: Final = Table(
    "ratchet_callback",
    metadata,
    _text("job_id", key=True),
    _int("claim_seq", key=True),
    _text("name", key=True),
    # the incarnation that has to run it; empty: nobody's
    _text("owner"),
    _text("target"),
    _text("argument"),
    Index("ratchet_callback_owner", "owner"),
)

node: Final = Table(
    "ratchet_node",
    metadata,
    _text("incarnation", key=True),
    _text("name"),
    _text("host"),
    _text("boot_id"),
    _text("pid_namespace"),
    _int("pid"),
    _int("pid_started"),
    _text("state"),
    _text("detail"),
    _int("started_at"),
    _int("last_heartbeat"),
    sqlite_with_rowid=False,
)

schema: Final = Table(
    "ratchet_schema",
    metadata,
    _int("version", key=True),
    _int("applied_at"),
    sqlite_with_rowid=False,
)
"""The ledger of applied schema versions."""
