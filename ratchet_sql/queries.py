"""Selections as SQL, and reading for people: pages and counts. Cold paths, compiled when they are asked.

This module, `ratchet_sql.health` and `ratchet_sql.bulk` are what needs SQLAlchemy at run time; the store
imports them on the first such call.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from sqlalchemy import and_, desc, false, func, or_, select
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.expression import ClauseElement
from sqlalchemy.sql.selectable import Select

from ratchet.domain.lifecycle import SETTLED, Status
from ratchet.errors import UsageError
from ratchet.spi.store import Order, Page, Selection
from ratchet_sql import rendered as sql
from ratchet_sql.connection import Database, Execute
from ratchet_sql.dialect import SQLITE
from ratchet_sql.rows import (
    JOB_COLUMNS,
    dumps,
    from_ms,
    job_from,
    to_ms,
)
from ratchet_sql.schema import is_status, job, job_tag
from ratchet_sql.submission import counts_of

MOST: Final = 1000

_ORDERS: Final[dict[Order, tuple[ColumnElement[Any] | None, bool]]] = {
    "created_desc": (job.c.created_at, True),
    "created_asc": (job.c.created_at, False),
    "id_asc": (None, False),
    "ended_desc": (job.c.ended_at, True),
    "scheduled_asc": (job.c.scheduled_time, False),
}


def compiled(statement: ClauseElement) -> tuple[str, dict[str, Any]]:
    """The text and the parameters by name."""
    text = statement.compile(dialect=SQLITE.compiler(), compile_kwargs={"render_postcompile": True})
    return str(text), {**(text.params or {})}


def read(database: Database, statement: ClauseElement) -> Any:
    """The only value that a statement answers."""
    text, parameters = compiled(statement)
    return database.read(text, parameters)


def run(execute: Execute, statement: ClauseElement) -> Any:
    """The only value that a statement answers inside a unit."""
    text, parameters = compiled(statement)
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
    answer: int = read(database, select(func.count()).select_from(job).where(*conditions(selection)))
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
    found = json.loads(read(database, select(SQLITE.collect([first.c[name] for name in JOB_COLUMNS]))))
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
