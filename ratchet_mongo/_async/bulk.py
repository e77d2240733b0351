"""Requeueing many failed jobs in one operation (specification, section 7).

The jobs are locked, each guarded by what was read of it; the operation's record decides; then they are
changed, group by group. Until it is decided nobody sees a change; after that anybody completes it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID, uuid4

from pymongo import UpdateOne

from ratchet.domain.job import JobType
from ratchet.domain.lifecycle import ROWS, Trigger, refusal
from ratchet.domain.settlement import Change
from ratchet.errors import DuplicateBusinessKey, StoreTransientError
from ratchet.spi.store import OnConflict, Selected, Selection
from ratchet_mongo._async import keys, pending
from ratchet_mongo._async.database import MongoDatabase
from ratchet_mongo._async.flavour import find, sleep
from ratchet_mongo._async.settling import read_guards
from ratchet_mongo.documents import Document
from ratchet_mongo.moves import GUARD_VIEW, Guard, move
from ratchet_mongo.selections import MOST, both, where

_TRIES: Final = 20
_SOURCES: Final = frozenset(ROWS[Trigger.REQUEUE].sources)


@dataclass(slots=True)
class _Chosen:
    """What is requeued, and what was passed over because of its key."""

    jobs: list[Guard] = field(default_factory=list)
    conflicts: dict[UUID, tuple[str, UUID]] = field(default_factory=dict)
    holders: dict[str, UUID] = field(default_factory=dict)
    taken: dict[UUID, keys.Taken] = field(default_factory=dict)


async def requeue_where(
    database: MongoDatabase, selection: Selection, limit: int, on_conflict: OnConflict
) -> Selected:
    """See `ratchet.spi.store.JobStore.apply_where`."""
    for tried in range(_TRIES):
        answer = await _requeue(database, selection, limit, on_conflict)
        if answer is not None:
            return answer
        # Another operation has locked what this one wanted: not in step with it again.
        await sleep(random.uniform(0.0, 0.02) * (tried + 1))
    raise StoreTransientError("the jobs of the selection kept changing; try again")


async def _requeue(
    database: MongoDatabase, selection: Selection, limit: int, on_conflict: OnConflict
) -> Selected | None:
    await pending.help_decided(database)
    now = await database.now()
    token = uuid4()
    hold: Document = {"kind": pending.OPERATION, "id": token, "at": now}
    record: Document = {
        "_id": token,
        "kind": pending.REQUEUE,
        "state": pending.OPEN,
        "at": now,
        "steps": [],
    }
    chosen = _Chosen()
    recorded = False
    try:
        narrowed = where(selection, _SOURCES)
        last: UUID | None = None
        while len(chosen.jobs) < limit:
            some = narrowed if last is None else both(narrowed, {"_id": {"$gt": last}})
            # Behind conflicts more than is still wanted is read at once, so that many cost a few reads only.
            room = MOST if chosen.conflicts else limit - len(chosen.jobs)
            docs = await database.run(
                lambda s=some, n=room: find(database.jobs, s, GUARD_VIEW, sort=[("_id", 1)], limit=n)  # type: ignore[misc]
            )
            if not docs:
                break
            locked = [doc["_id"] for doc in docs if "hold" in doc or "outbox" in doc]
            if locked:
                await read_guards(database, locked)  # completes, or calls off, what others began on them
                continue
            if not recorded:
                await pending.begin_operation(database, record)
                recorded = True
            last = docs[-1]["_id"]
            for guard in map(Guard, docs):
                if len(chosen.jobs) < limit:
                    await _choose(database, guard, chosen, hold)
            if on_conflict == "abort":
                break
        if chosen.conflicts and on_conflict == "abort":
            raise DuplicateBusinessKey(dict(chosen.conflicts.values()))
        if chosen.jobs and not await _carry_out(database, chosen, record, now):
            await _undo(database, record, chosen)
            return None
        if recorded and not chosen.jobs:
            await _undo(database, record, chosen)
    except Exception:
        if recorded:
            await _undo(database, record, chosen)
        raise
    skipped = {
        job_id: f"business key {key!r} is held by job {holder}"
        for job_id, (key, holder) in chosen.conflicts.items()
    }
    return Selected([guard.id for guard in chosen.jobs], skipped, now)


async def _choose(database: MongoDatabase, guard: Guard, chosen: _Chosen, hold: Document) -> None:
    """Take a job's business key for it, or note who holds it."""
    key = guard.business_key
    if key is not None:
        holder = chosen.holders.get(key)
        if holder is None:
            got = await keys.take(database, key, guard.id, hold)
            holder = chosen.holders[key] = got.holder if isinstance(got, keys.Held) else guard.id
            if isinstance(got, keys.Taken):
                chosen.taken[guard.id] = got
        if holder != guard.id:
            chosen.conflicts[guard.id] = (key, holder)
            return
        database.step("key taken")
    chosen.jobs.append(guard)


async def _carry_out(database: MongoDatabase, chosen: _Chosen, record: Document, now: datetime) -> bool:
    """Lock the jobs, decide, change them; False: one of them is not as it was any more."""
    token: UUID = record["_id"]
    hold: Document = {"kind": pending.OPERATION, "id": token, "at": record["at"]}
    locks = []
    steps: dict[tuple[str, int, bool], Document] = {}
    for guard in chosen.jobs:
        change = Change(Trigger.REQUEUE, guard.id)
        if refusal(guard, change, now) is not None or guard.is_locked:
            return False
        decided = move(guard, change, now, token)
        locks.append(
            UpdateOne(
                {**decided.where, "hold": {"$exists": False}, "outbox": {"$exists": False}},
                {"$set": {"hold": hold}, "$inc": {"fence": 1}},
            )
        )
        steps.setdefault(
            (guard.executor, guard.priority, guard.is_batch_parent), _step(guard, decided.update)
        )
    locked = await database.run(lambda: database.jobs.bulk_write(locks, ordered=False))
    if locked.matched_count != len(locks) and not await _drop_unlocked(database, chosen, token):
        return False
    database.step("members locked")
    listed = list(steps.values())
    planned = await database.run(
        lambda: database.operations.update_one(
            {"_id": token, "state": pending.OPEN}, {"$set": {"steps": listed}}
        )
    )
    if not planned.matched_count:
        return False
    database.step("operation planned")
    committed = await pending.commit_operation(database, token)
    if committed is None:
        first = await database.run(
            lambda: database.jobs.find_one({"_id": chosen.jobs[0].id, "write": token}, {"_id": 1})
        )
        return first is not None
    database.step("operation committed")
    await pending.complete_operation(database, committed)
    return True


async def _drop_unlocked(database: MongoDatabase, chosen: _Chosen, token: UUID) -> bool:
    """Go on with those that are locked: the others have changed, or another operation has them. False: none is."""
    held = {
        doc["_id"] for doc in await database.run(lambda: find(database.jobs, {"hold.id": token}, {"_id": 1}))
    }
    dropped = [
        chosen.taken.pop(job.id) for job in chosen.jobs if job.id not in held and job.id in chosen.taken
    ]
    await keys.release(database, dropped)
    chosen.jobs = [job for job in chosen.jobs if job.id in held]
    return bool(chosen.jobs)


def _step(guard: Guard, update: Document) -> Document:
    """How all jobs of this executor, priority and kind are requeued: what is the same for each."""
    changes = {name: value for name, value in update["$set"].items() if name != "version"}
    same: Document = {"executor": guard.executor, "priority": guard.priority}
    same["type"] = guard.type.value if guard.is_batch_parent else {"$ne": JobType.BATCH.value}
    return {
        "where": same,
        "update": {
            "$set": changes,
            "$inc": {"version": 1},
            "$unset": {**update.get("$unset", {}), "hold": ""},
        },
    }


async def _undo(database: MongoDatabase, record: Document, chosen: _Chosen) -> None:
    if await pending.abort_operation(database, record):
        await keys.release(database, list(chosen.taken.values()))
