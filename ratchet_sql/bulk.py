"""Requeueing many failed jobs in one unit (specification, section 7)."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from sqlalchemy import or_, select
from sqlalchemy.sql.selectable import Select

from ratchet.domain.lifecycle import ROWS, Trigger
from ratchet.domain.settlement import Change
from ratchet.errors import DuplicateBusinessKey
from ratchet.spi.store import OnConflict, Selected, Selection
from ratchet_sql.connection import Database, Execute
from ratchet_sql.dialect import SQLITE
from ratchet_sql.queries import MOST, conditions, run
from ratchet_sql.rows import from_ms, uuid_from
from ratchet_sql.schema import is_status, job
from ratchet_sql.settling import Group, read_guards
from ratchet_sql.submission import business_holders


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

    Jobs in conflict do not use up the limit, however many they are: else the oldest, in conflict for ever,
    would bar the others.
    """
    chosen: list[str] = []
    conflicts: dict[str, tuple[str, UUID]] = {}
    taken: dict[str, UUID] = {}  # by jobs chosen here
    last = ""
    while len(chosen) < limit:
        # After conflicts more than is still wanted is read at once, so that many cost no more than a few reads.
        size = limit - len(chosen) if not conflicts else MOST
        some = candidates.where(job.c.id > last).limit(size).subquery("some")
        found: list[tuple[str, str | None]] = json.loads(
            run(execute, select(SQLITE.collect([some.c.id, some.c.business_key])))
        )
        if not found:
            break
        last = found[-1][0]
        holders = business_holders(execute, (key for _, key in found if key is not None))
        for job_id, key in found:
            if len(chosen) == limit:
                break
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
