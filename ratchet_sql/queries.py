"""Reading for people: pages, counts, health, bulk requeue. Cold paths, compiled by SQLAlchemy when asked.

Only this module needs SQLAlchemy at run time, and it is imported on the first such call.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import and_, desc, false, func, or_, select
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.expression import ClauseElement
from sqlalchemy.sql.selectable import Select

from ratchet.domain.job import JobType
from ratchet.domain.lifecycle import ROWS, SETTLED, Status, Trigger
from ratchet.domain.priority import Priority
from ratchet.domain.settlement import Change
from ratchet.errors import DuplicateBusinessKey, UsageError
from ratchet.spi.store import Health, OnConflict, Order, Page, Selected, Selection
from ratchet_sql import rendered as sql
from ratchet_sql.connection import Database, Execute
from ratchet_sql.dialect import SQLITE
from ratchet_sql.rows import (
    JOB_COLUMNS,
    PRIORITY,
    TYPE,
    dumps,
    from_ms,
    job_from,
    to_ms,
    uuid_from,
)
from ratchet_sql.schema import is_batch, is_status, is_work, job, job_tag
from ratchet_sql.settling import Group, read_guards
from ratchet_sql.submission import business_holders, counts_of

MOST: Final = 1000

_ORDERS: Final[dict[Order, tuple[ColumnElement[Any] | None, bool]]] = {
    "created_desc": (job.c.created_at, True),
    "created_asc": (job.c.created_at, False),
    "id_asc": (None, False),
    "ended_desc": (job.c.ended_at, True),
    "scheduled_asc": (job.c.scheduled_time, False),
}


def _compiled(statement: ClauseElement) -> tuple[str, dict[str, Any]]:
    compiled = statement.compile(dialect=SQLITE.compiler(), compile_kwargs={"render_postcompile": True})
    return str(compiled), {**(compiled.params or {})}


def _read(database: Database, statement: ClauseElement) -> Any:
    text, parameters = _compiled(statement)
    return database.read(text, parameters)


def _run(execute: Execute, statement: ClauseElement) -> Any:
    text, parameters = _compiled(statement)
    return execute(text, parameters).fetchone()[0]


# -- selections -----------------------------------------------------------------------------------


def conditions(selection: Selection) -> list[ColumnElement[bool]]:
    """What a job must fulfil to be of the selection."""
    s = selection
    found: list[ColumnElement[bool]] = []
    if s.ids:
        source, job_id = SQLITE.values("ids", alias="wanted")
        chosen = select(job_id).select_from(source).params(ids=dumps(sorted(str(i) for i in s.ids)))
        found.append(job.c.id.in_(chosen))
    if s.statuses:
        # Literally, so that the indexes of single states can be used.
        found.append(or_(*[is_status(status) for status in sorted(s.statuses)]))
    if s.types:
        found.append(job.c.type.in_([t.value for t in sorted(s.types)]))
    if s.priorities:
        found.append(job.c.priority.in_([int(p) for p in sorted(s.priorities)]))
    found += [job.c.id.in_(select(job_tag.c.job_id).where(job_tag.c.tag == tag)) for tag in sorted(s.tags)]
    if s.business_key is not None:
        found.append(job.c.business_key == s.business_key)
    if s.principal is not None:
        found.append(job.c.principal == s.principal)
    if s.target is not None:
        found.append(SQLITE.contains(job.c.target, s.target))
    if s.error is not None:
        found.append(SQLITE.contains(job.c.last_error, s.error))
    for column, start, stop in (
        (job.c.created_at, s.created_from, s.created_before),
        (job.c.ended_at, s.ended_from, s.ended_before),
    ):
        if start is not None:
            found.append(column >= _ms_up(start))
        if stop is not None:
            found.append(column < _ms_up(stop))
    return found


def _ms_up(instant: Any) -> int:
    """The first whole millisecond that is not before `instant`: stored instants are whole."""
    ms = to_ms(instant)
    return ms if from_ms(ms) >= instant else ms + 1


def count(database: Database, selection: Selection) -> int:
    """See `ratchet.spi.store.JobStore.count`."""
    if selection == Selection(statuses=selection.statuses) and selection.statuses:
        counted = counts_of(database.read(sql.COUNTS))
        return sum(counted[status] for status in selection.statuses)
    answer: int = _read(database, select(func.count()).select_from(job).where(*conditions(selection)))
    return answer


# -- pages ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a page ended: the order, and the last row's place in it."""

    order: Order
    value: int | None
    job_id: str

    def encode(self) -> str:
        """As opaque text."""
        text = json.dumps(["sql1", self.order, self.value, self.job_id])
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str, order: Order) -> Cursor:
        """The cursor that `encode` made for this order."""
        try:
            padded = text + "=" * (-len(text) % 4)
            kind, its_order, value, job_id = json.loads(base64.urlsafe_b64decode(padded.encode("ascii")))
            well_formed = kind == "sql1" and isinstance(value, int | None) and str(UUID(job_id)) == job_id
        except (ValueError, TypeError, AttributeError, binascii.Error) as error:
            raise UsageError("this cursor is not from this store; begin again without one") from error
        if not well_formed:
            raise UsageError("this cursor is not from this store; begin again without one")
        if its_order != order:
            raise UsageError(
                f"this cursor belongs to order {its_order!r}, not {order!r}; begin again without one"
            )
        return cls(order, value, job_id)


def find(database: Database, selection: Selection, order: Order, limit: int, cursor: str | None) -> Page:
    """See `ratchet.spi.store.JobStore.find`."""
    if not 1 <= limit <= MOST:
        raise UsageError(f"a limit lies between 1 and {MOST}, not {limit}")
    if order not in _ORDERS:
        raise UsageError(f"no such order: {order!r}; choose one of {', '.join(_ORDERS)}")
    after = None if cursor is None else Cursor.decode(cursor, order)
    first = page(selection, order, limit + 1, after).subquery("page")
    found = json.loads(_read(database, select(SQLITE.collect([first.c[name] for name in JOB_COLUMNS]))))
    following = None
    if len(found) > limit:
        del found[limit:]
        last: dict[str, Any] = dict(zip(JOB_COLUMNS, found[-1], strict=True))
        column, _ = _ORDERS[order]
        following = Cursor(order, None if column is None else last[str(column.key)], last["id"]).encode()
    return Page([job_from(row) for row in found], following)


def page(selection: Selection, order: Order, limit: int, after: Cursor | None) -> Select[Any]:
    """The statement of one page."""
    column, descending = _ORDERS[order]
    where = conditions(selection)
    if order == "ended_desc" and selection.statuses and selection.statuses <= SETTLED:
        where.append(job.c.ended_at.is_not(None))  # true of all of them; lets the index be used
    statement = select(*[job.c[name] for name in JOB_COLUMNS])
    if after is not None:
        where.append(
            job.c.id > after.job_id if column is None else _behind(column, after, descending=descending)
        )
    first = job.c.id if column is None else column
    if selection.statuses == {Status.RUNNING}:
        # They are few, and all in one index: sorting them is cheaper than passing over all others in order.
        first = SQLITE.unindexed(first)
    ordered = [desc(first) if descending else first.asc()] + ([] if column is None else [job.c.id.asc()])
    return statement.where(*where).order_by(*ordered).limit(limit)


def _behind(column: ColumnElement[Any], after: Cursor, *, descending: bool) -> ColumnElement[bool]:
    """Rows that come after the cursor. NULLs, last in descending order, are behind every value."""
    tie = job.c.id > after.job_id
    if after.value is None:
        return and_(column.is_(None), tie)
    if not descending:
        return and_(column >= after.value, or_(column > after.value, tie))
    nulls = column.is_(None) if column is job.c.ended_at else false()
    return or_(and_(column <= after.value, or_(column < after.value, tie)), nulls)


# -- health ---------------------------------------------------------------------------------------


def health(database: Database, window: timedelta) -> Health:
    """See `ratchet.spi.store.JobStore.health`."""
    if window <= timedelta():
        raise UsageError("the window of health must be positive")

    def work(execute: Execute) -> Health:
        now = database.now_ms()
        by_priority = _pending(execute, job.c.priority)
        by_type = _pending(execute, job.c.type)
        oldest = _run(
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
    found = json.loads(_run(execute, select(SQLITE.collect([grouped.c.k, grouped.c.n]))))
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
    total: int = _run(execute, select(func.count()).select_from(job).where(*known))
    if not total:
        return None
    rank = max(-(-total * int(share * 100) // 100) - 1, 0)
    found: int = _run(
        execute, select(job.c.duration).where(*known).order_by(job.c.duration).limit(1).offset(rank)
    )
    return timedelta(milliseconds=found)


# -- bulk requeue ---------------------------------------------------------------------------------


def requeue_where(database: Database, selection: Selection, limit: int, on_conflict: OnConflict) -> Selected:
    """See `ratchet.spi.store.JobStore.apply_where`."""
    row = ROWS[Trigger.REQUEUE]
    if selection.statuses and not selection.statuses & set(row.sources):
        return Selected([], {}, from_ms(database.now_ms()))
    where = [*conditions(selection), or_(*[is_status(status) for status in row.sources])]
    narrowed = select(job.c.id, job.c.business_key).where(*where).order_by(job.c.id)

    def work(execute: Execute, now_ms: int) -> Selected:
        chosen, conflicts = _requeueable(execute, narrowed, limit, past_conflicts=on_conflict == "skip")
        if conflicts and on_conflict == "abort":
            raise DuplicateBusinessKey(dict(conflicts.values()))
        group = Group()
        guards = read_guards(execute, chosen)
        now = from_ms(now_ms)
        for job_id in chosen:
            change = Change(Trigger.REQUEUE, uuid_from(job_id))
            group.add(guards[job_id], change.job_id, change, now)
        group.write(database, execute, now_ms)
        skipped = {
            uuid_from(job_id): f"business key {key!r} is held by job {holder}"
            for job_id, (key, holder) in conflicts.items()
        }
        return Selected([uuid_from(job_id) for job_id in chosen], skipped, now)

    return database.write(work)


def _requeueable(
    execute: Execute, candidates: Select[*tuple[Any, ...]], limit: int, *, past_conflicts: bool
) -> tuple[list[str], dict[str, tuple[str, UUID]]]:
    """The lowest ids whose business key is free, and those passed over: id -> (key, its holder).

    Jobs in conflict do not use up the limit: else the oldest, in conflict for ever, would bar the others.
    """
    chosen: list[str] = []
    conflicts: dict[str, tuple[str, UUID]] = {}
    taken: dict[str, UUID] = {}  # by jobs chosen here
    last = ""
    while len(chosen) < limit and len(conflicts) < MOST:
        some = candidates.where(job.c.id > last).limit(limit - len(chosen)).subquery("some")
        found: list[tuple[str, str | None]] = json.loads(
            _run(execute, select(SQLITE.collect([some.c.id, some.c.business_key])))
        )
        if not found:
            break
        last = found[-1][0]
        holders = business_holders(execute, (key for _, key in found if key is not None))
        for job_id, key in found:
            if key is not None:
                holder = taken.get(key) or holders.get(key, (None,))[0]
                if holder is not None:
                    conflicts[job_id] = (key, holder)
                    continue
                taken[key] = uuid_from(job_id)
            chosen.append(job_id)
        if not past_conflicts:
            break
    return chosen, conflicts
