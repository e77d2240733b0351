"""What the memory store reads without changing it: selections, pages, health."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from heapq import nsmallest
from typing import Final, TypeAlias
from uuid import UUID

from ratchet.defaults.memory_records import Record
from ratchet.domain.lifecycle import CLAIMABLE, Status
from ratchet.errors import UsageError
from ratchet.spi.store import Health, Order, Page, Selection

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
MAX_PAGE: Final = 1000

SortKey: TypeAlias = tuple[int, int]


def milliseconds(instant: datetime) -> int:
    """Milliseconds since 1970."""
    return (instant - _EPOCH) // _MS


# -- selections -----------------------------------------------------------------------------------


def _within(instant: datetime | None, start: datetime | None, before: datetime | None) -> bool:
    if start is None and before is None:
        return True
    return (
        instant is not None and (start is None or instant >= start) and (before is None or instant < before)
    )


def matches(record: Record, selection: Selection) -> bool:
    """True if the job is one of the selection; every given field narrows."""
    new = record.new
    return (
        (not selection.statuses or record.status in selection.statuses)
        and (not selection.ids or new.id in selection.ids)
        and (not selection.types or new.type in selection.types)
        and (not selection.priorities or new.priority in selection.priorities)
        and selection.tags <= new.tags
        and (selection.business_key is None or record.business_key == selection.business_key)
        and (selection.principal is None or new.principal == selection.principal)
        and (selection.target is None or selection.target in new.target)
        and (selection.error is None or selection.error in (record.last_error or ""))
        and _within(record.created_at, selection.created_from, selection.created_before)
        and _within(record.ended_at, selection.ended_from, selection.ended_before)
    )


# -- pages ----------------------------------------------------------------------------------------


def _latest_end_first(record: Record) -> int:
    # Jobs that have not ended come last.
    return -milliseconds(record.ended_at) if record.ended_at is not None else 1 << 62


_FIRST: Final[Mapping[Order, Callable[[Record], int]]] = {
    "created_desc": lambda record: -milliseconds(record.created_at),
    "created_asc": lambda record: milliseconds(record.created_at),
    "id_asc": lambda record: 0,
    "ended_desc": _latest_end_first,
    "scheduled_asc": lambda record: milliseconds(record.scheduled_time),
}


def page(records: Iterable[Record], order: Order, limit: int, cursor: str | None) -> Page:
    """The first `limit` of `records` behind `cursor`; `UsageError` as `JobStore.find` says."""
    if not 1 <= limit <= MAX_PAGE:
        raise UsageError(f"a page has 1 to {MAX_PAGE} jobs, not {limit}")
    if order not in _FIRST:
        raise UsageError(f"unknown order {order!r}; there are {', '.join(_FIRST)}")
    behind = None if cursor is None else _read_cursor(cursor, order)
    first = _FIRST[order]
    keyed = ((first(record), record.key, record) for record in records)
    if behind is not None:
        keyed = (entry for entry in keyed if entry[:2] > behind)
    found = nsmallest(limit + 1, keyed)
    more = len(found) > limit
    del found[limit:]
    jobs = [record.job() for _, _, record in found]
    return Page(jobs, _write_cursor(order, found[-1][:2]) if more else None)


def _write_cursor(order: Order, key: SortKey) -> str:
    return f"memory:{order}:{key[0]}:{UUID(int=key[1])}"


def _read_cursor(cursor: str, order: Order) -> SortKey:
    try:
        store, its_order, first, job_id = cursor.split(":")
        if (store, its_order) == ("memory", order):
            return int(first), UUID(job_id).int
    except ValueError:
        pass
    raise UsageError(f"{cursor!r} is not a cursor of this store and order; start again without one")


# -- health ---------------------------------------------------------------------------------------


def _percentile(ordered: Sequence[timedelta], share: float) -> timedelta | None:
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else None


def health(by_status: Mapping[Status, Collection[Record]], now: datetime, window: timedelta) -> Health:
    """The state of the queue; percentiles by nearest rank."""
    pending = [record for status in CLAIMABLE for record in by_status[status]]
    due = [r.scheduled_time for r in pending if r.scheduled_time <= now and not r.is_batch_parent]
    since = now - window
    ended = {
        status: [r for r in by_status[status] if r.ended_at is not None and r.ended_at > since]
        for status in (Status.SUCCEEDED, Status.FAILED)
    }
    total = sum(map(len, ended.values()))
    durations = sorted(r.duration for rows in ended.values() for r in rows if r.duration is not None)
    return Health(
        now=now,
        by_status={status: len(rows) for status, rows in by_status.items()},
        pending_by_priority=Counter(r.new.priority for r in pending),
        pending_by_type=Counter(r.new.type for r in pending),
        oldest_due_age=now - min(due) if due else None,
        throughput=total / window.total_seconds() if window else 0.0,
        success_rate=len(ended[Status.SUCCEEDED]) / total if total else None,
        p50=_percentile(durations, 0.50),
        p95=_percentile(durations, 0.95),
        p99=_percentile(durations, 0.99),
        window=window,
    )
