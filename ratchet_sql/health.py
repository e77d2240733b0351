"""The state of the queue, in numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.sql.elements import ColumnElement

from ratchet.domain.job import JobType
from ratchet.domain.lifecycle import Status
from ratchet.domain.priority import Priority
from ratchet.errors import UsageError
from ratchet.spi.store import Health
from ratchet_sql import rendered as sql
from ratchet_sql.connection import Database, Execute
from ratchet_sql.dialect import SQLITE
from ratchet_sql.queries import run
from ratchet_sql.rows import PRIORITY, TYPE, from_ms
from ratchet_sql.schema import is_batch, is_status, is_work, job
from ratchet_sql.submission import counts_of


def health(database: Database, window: timedelta) -> Health:
    """See `ratchet.spi.store.JobStore.health`."""
    if window <= timedelta():
        raise UsageError("the window of health must be positive")

    def work(execute: Execute) -> Health:
        now = database.now_ms()
        by_priority = _pending(execute, job.c.priority)
        by_type = _pending(execute, job.c.type)
        oldest = run(
            execute, select(func.min(job.c.scheduled_time)).where(is_work, job.c.scheduled_time <= now)
        )
        recent = (
            job.c.ended_at.is_not(None),
            job.c.ended_at > now - window // timedelta(milliseconds=1),
            or_(is_status(Status.SUCCEEDED), is_status(Status.FAILED)),
        )
        outcomes = _groups(execute, job.c.status, *recent)
        total = sum(outcomes.values())
        return Health(
            now=from_ms(now),
            by_status=counts_of(execute(sql.COUNTS).fetchone()[0]),
            pending_by_priority={PRIORITY[p]: by_priority.get(p, 0) for p in sorted(Priority)},
            pending_by_type={TYPE[t]: by_type.get(t.value, 0) for t in JobType},
            oldest_due_age=None if oldest is None else timedelta(milliseconds=now - oldest),
            throughput=total / window.total_seconds(),
            success_rate=outcomes.get(Status.SUCCEEDED, 0) / total if total else None,
            p50=_percentile(execute, recent, 0.50),
            p95=_percentile(execute, recent, 0.95),
            p99=_percentile(execute, recent, 0.99),
            window=window,
        )

    return database.reading(work)


def _groups(execute: Execute, column: ColumnElement[Any], *where: ColumnElement[bool]) -> dict[Any, int]:
    grouped = select(column.label("k"), func.count().label("n")).where(*where).group_by(column).subquery("g")
    found = json.loads(run(execute, select(SQLITE.collect([grouped.c.k, grouped.c.n]))))
    return dict(found)


def _pending(execute: Execute, column: ColumnElement[Any]) -> dict[Any, int]:
    """Pending jobs by `column`, from the two indexes that hold them and nothing else."""
    counted = _groups(execute, column, is_work)
    for value, number in _groups(execute, column, is_batch).items():
        counted[value] = counted.get(value, 0) + number
    return counted


def _percentile(execute: Execute, where: Sequence[ColumnElement[bool]], share: float) -> timedelta | None:
    """The smallest duration that is not below `share` of them (nearest rank)."""
    known = (*where, job.c.duration.is_not(None))
    total: int = run(execute, select(func.count()).select_from(job).where(*known))
    if not total:
        return None
    rank = max(-(-total * int(share * 100) // 100) - 1, 0)
    found: int = run(
        execute, select(job.c.duration).where(*known).order_by(job.c.duration).limit(1).offset(rank)
    )
    return timedelta(milliseconds=found)
