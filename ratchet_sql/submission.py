"""Submission: jobs, their tags and keys, in one unit.

Statements: one for a single job without tags and idempotency key (it is its own transaction); else BEGIN,
one look-up per kind of key that occurs, one insert per table concerned, COMMIT, however many jobs.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from ratchet.domain.insertion import due_time
from ratchet.domain.job import NewJob
from ratchet.domain.lifecycle import STARTS, Status
from ratchet.errors import DuplicateBusinessKey, DuplicateIdempotencyKey, UsageError
from ratchet.spi.store import Inserted
from ratchet_sql import rendered as sql
from ratchet_sql.connection import Database, Execute, KeyTaken
from ratchet_sql.rows import (
    INSERT_COLUMNS,
    STATUS,
    Stored,
    decode_tags,
    dumps,
    from_ms,
    new_row,
    uuid_from,
)

_ID, _STATUS, _TAGS, _KEY = (INSERT_COLUMNS.index(n) for n in ("id", "status", "tags", "idempotency_key"))


def insert(database: Database, jobs: Sequence[NewJob]) -> list[Inserted]:
    """See `ratchet.spi.store.JobStore.insert`."""
    for new in jobs:
        if new.start not in STARTS:
            raise UsageError(f"a job starts {' or '.join(sorted(STARTS))}, not {new.start}")
    if not jobs:
        return []
    if len(jobs) == 1 and jobs[0].idempotency_key is None and not jobs[0].tags:
        try:
            return [_insert_alone(database, jobs[0])]
        except KeyTaken:
            pass  # a key is taken: below is told which, and by whom
    return database.write(lambda execute, now: _insert(execute, jobs, now))


def _insert_alone(database: Database, new: NewJob) -> Inserted:
    answer: list[Inserted] = []

    def parameters(now_ms: int) -> dict[str, object]:
        now = from_ms(now_ms)
        answer[:] = [Inserted.of(new, now)]
        return dict(zip(INSERT_COLUMNS, _row_of(new, answer[0], now, now_ms), strict=True))

    database.write_one(sql.INSERT_ONE, parameters)
    return answer[0]


def _row_of(new: NewJob, answer: Inserted, now: datetime, now_ms: int) -> Stored:
    due = answer.scheduled_time or now
    return new_row(new, due, now, now_ms, new.business_key, claimed=answer.claim is not None)


def _insert(execute: Execute, jobs: Sequence[NewJob], now_ms: int) -> list[Inserted]:
    now = from_ms(now_ms)
    originals = idempotency_holders(
        execute, (j.idempotency_key for j in jobs if j.idempotency_key is not None)
    )
    answers: list[Inserted] = []
    wanted: list[NewJob] = []
    rows: list[Stored] = []
    for new in jobs:
        key = new.idempotency_key
        if key is not None and key in originals:
            original, status = originals[key]
            answers.append(Inserted(original, created=False, status=status))
            continue
        answer = Inserted.of(new, now)
        answers.append(answer)
        wanted.append(new)
        rows.append(_row_of(new, answer, now, now_ms))
        if key is not None:
            originals[key] = (new.id, answer.status)
    _refuse_held_keys(execute, wanted)
    insert_rows(execute, rows)
    return answers


def _refuse_held_keys(execute: Execute, jobs: Sequence[NewJob]) -> None:
    holders = business_holders(execute, (j.business_key for j in jobs if j.business_key is not None))
    conflicts: dict[str, UUID] = {}
    for new in jobs:
        key = new.business_key
        if key is None:
            continue
        if key in holders:
            conflicts.setdefault(key, holders[key][0])
        else:
            holders[key] = (new.id, new.start)
    if conflicts:
        raise DuplicateBusinessKey(conflicts)


def insert_rows(execute: Execute, rows: Sequence[Stored]) -> None:
    """Insert jobs whose keys are free, with their tags and ledger entries; rows in the order of INSERT_COLUMNS.

    Raises:
        UsageError: an id is stored already, or occurs twice.
    """
    if not rows:
        return
    try:
        if len(rows) == 1:
            execute(sql.INSERT_ONE, dict(zip(INSERT_COLUMNS, rows[0], strict=True)))
        else:
            execute(sql.INSERT_MANY, {"rows": dumps(rows)})
    except sqlite3.IntegrityError as error:
        ids = [row[_ID] for row in rows]
        taken = json.loads(execute(sql.EXISTING_IDS, {"ids": dumps(ids)}).fetchone()[0])
        taken = taken or sorted({i for i in ids if ids.count(i) > 1})
        if not taken:
            raise
        raise UsageError(f"a job with this id is stored already: {', '.join(taken)}") from error
    tags = [(tag, row[_ID]) for row in rows if row[_TAGS] for tag in sorted(decode_tags(row[_TAGS]))]
    if tags:
        execute(sql.INSERT_TAGS, {"rows": dumps(tags)})
    keys = [(row[_KEY], row[_ID]) for row in rows if row[_KEY] is not None]
    if keys:
        execute(sql.INSERT_KEYS, {"rows": dumps(keys)})


def submitted_rows(
    execute: Execute, jobs: Sequence[NewJob], now_ms: int, *, takes_over: str | None, freed_by: str | None
) -> list[Stored]:
    """The rows of jobs that a settlement submits, in the order of INSERT_COLUMNS; nothing is written.

    Args:
        execute: the settlement's unit.
        jobs: at least one.
        now_ms: store time.
        takes_over: the business key for the one that names none.
        freed_by: the id of the job that settles in this unit: a key that it holds is free.

    Raises:
        DuplicateIdempotencyKey: a key is taken.
        DuplicateBusinessKey: a key is held by another job.
    """
    originals = idempotency_holders(
        execute, (j.idempotency_key for j in jobs if j.idempotency_key is not None)
    )
    keys = [j.business_key if j.business_key is not None else takes_over for j in jobs]
    holders = business_holders(execute, (key for key in keys if key is not None))
    now = from_ms(now_ms)
    rows: list[Stored] = []
    for new in jobs:  # first, so that of both kinds of conflict every store tells the same one
        if new.idempotency_key is not None:
            if new.idempotency_key in originals:
                original, _ = originals[new.idempotency_key]
                raise DuplicateIdempotencyKey(
                    f"the idempotency key {new.idempotency_key!r} belongs to job {original} for ever"
                )
            originals[new.idempotency_key] = (new.id, new.start)
    for new, key in zip(jobs, keys, strict=True):
        if key is not None:
            holder, _ = holders.get(key, (None, None))
            if holder is not None and str(holder) != freed_by:
                raise DuplicateBusinessKey({key: holder})
            holders[key] = (new.id, new.start)
        rows.append(new_row(new, due_time(new, now), now, now_ms, key))
    return rows


def idempotency_holders(execute: Execute, keys: Iterable[str]) -> dict[str, tuple[UUID, Status | None]]:
    """Of the taken ones among `keys`: the original job and its status (None: purged)."""
    return _holders(execute, sql.IDEMPOTENCY_HOLDERS, keys)


def business_holders(execute: Execute, keys: Iterable[str]) -> dict[str, tuple[UUID, Status | None]]:
    """Of the held ones among `keys`: the job that holds it now and its status."""
    return _holders(execute, sql.BUSINESS_HOLDERS, keys)


def _holders(execute: Execute, statement: str, keys: Iterable[str]) -> dict[str, tuple[UUID, Status | None]]:
    distinct = sorted(set(keys))
    if not distinct:
        return {}
    found = json.loads(execute(statement, {"keys": dumps(distinct)}).fetchone()[0])
    return {key: (uuid_from(id_), None if status is None else STATUS[status]) for key, id_, status in found}


def find_by_key(database: Database, idempotency: str | None, business: str | None) -> Inserted | None:
    """See `ratchet.spi.store.JobStore.find_by_key`."""
    if (idempotency is None) == (business is None):
        raise UsageError("find_by_key takes exactly one of idempotency and business")
    statement = sql.IDEMPOTENCY_HOLDERS if business is None else sql.BUSINESS_HOLDERS
    key = idempotency if business is None else business
    found = json.loads(database.read(statement, {"keys": dumps([key])}))
    if not found:
        return None
    _, id_, status = found[0]
    return Inserted(uuid_from(id_), created=False, status=None if status is None else STATUS[status])


def delete(database: Database, job_ids: Sequence[UUID]) -> int:
    """See `ratchet.spi.store.JobStore.delete`."""
    if not job_ids:
        return 0
    ids = dumps([str(i) for i in job_ids])

    def work(execute: Execute, _now: int) -> int:
        settled = sorted(set(json.loads(execute(sql.SETTLED_IDS, {"ids": ids}).fetchone()[0])))
        if settled:
            chosen = {"ids": dumps(settled)}
            for statement in (sql.DELETE_CALLBACKS, sql.DELETE_EXECUTIONS, sql.DELETE_TAGS, sql.DELETE_JOBS):
                execute(statement, chosen)
        return len(settled)

    return database.write(work)


def counts_of(text: str) -> dict[Status, int]:
    """What the statement COUNTS answers, by state."""
    flat = json.loads(text)
    by_name: dict[str, int] = dict(zip(flat[::2], flat[1::2], strict=True))
    total = by_name.pop("all")
    counted = {status: by_name.get(status.value, 0) for status in Status}
    counted[Status.SUCCEEDED] = total - sum(by_name.values())
    return counted
