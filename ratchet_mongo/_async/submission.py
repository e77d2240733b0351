"""Submission: one job in one insert, several as one operation.

Round trips of a single job: one; one more for an idempotency key of the caller's, one more for a business
key, where nobody had the key before. Of a list, whatever its length: six, and one for each key that has
a history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final
from uuid import UUID

from pymongo.errors import BulkWriteError

from ratchet.domain.insertion import due_time
from ratchet.domain.job import NewJob
from ratchet.domain.lifecycle import SETTLED, STARTS
from ratchet.errors import DuplicateBusinessKey, StoreError, StoreTransientError, UsageError
from ratchet.spi.store import Inserted
from ratchet_mongo._async import keys, pending
from ratchet_mongo._async.claiming import Running
from ratchet_mongo._async.database import MongoDatabase
from ratchet_mongo._async.flavour import find
from ratchet_mongo._async.settling import read_guards
from ratchet_mongo.documents import STATUS, Document, hidden, new_document, spilled_range, storable
from ratchet_mongo.indexes import BY_ID
from ratchet_mongo.moves import Guard
from ratchet_mongo.translate import DUPLICATE_KEY, codes

_TRIES: Final = 20
_CHUNK: Final = 1000
_SETTLED: Final[Document] = {"$in": sorted(status.value for status in SETTLED)}


def check(jobs: Sequence[NewJob]) -> None:
    """Refuse what cannot be stored."""
    for new in jobs:
        if new.start not in STARTS:
            raise UsageError(f"a job starts {' or '.join(sorted(STARTS))}, not {new.start}")
        for key in (new.idempotency_key, new.business_key):
            if key is not None and not storable(key):
                raise UsageError(f"a NUL character or a lone surrogate cannot be stored: {key[:100]!a}")


async def insert(database: MongoDatabase, jobs: Sequence[NewJob], running: Running) -> list[Inserted]:
    """See `ratchet.spi.store.JobStore.insert`; what `check` refuses is not among `jobs`.

    A single job without an idempotency key may begin with its claim, which is added to `running`.
    """
    if not jobs:
        return []
    for _ in range(_TRIES):
        if len(jobs) == 1:
            one = await _insert_one(database, jobs[0], running)
            answers = None if one is None else [one]
        else:
            answers = await _insert_many(database, jobs)
        if answers is not None:
            return answers
    raise StoreTransientError("the submission met others of the same keys again and again; try again")


def _created(new: NewJob, now: datetime, job_id: UUID | None = None) -> Inserted:
    return Inserted(job_id or new.id, created=True, status=new.start, scheduled_time=due_time(new, now))


def _existing(found: keys.Original) -> Inserted:
    return Inserted(found.id, created=False, status=found.status)


# -- one ------------------------------------------------------------------------------------------


async def _insert_one(database: MongoDatabase, new: NewJob, running: Running) -> Inserted | None:
    """Insert a single job; None: begin again."""
    now = await database.now()
    job_id, token = new.id, database.token()
    # Under an idempotency key the job may be another one, that somebody else is about to insert: no claim.
    answer = Inserted.of(new if new.idempotency_key is None else replace(new, claim_for=None), now)
    claimed = answer.claim is not None
    doc = new_document(new, now, token=token, business_key=new.business_key, claimed=claimed)
    taken: list[keys.Taken] = []
    reserved: keys.Reserved | None = None
    if new.business_key is not None:
        got = await keys.take(database, new.business_key, job_id, None)
        if isinstance(got, keys.Held):
            found = None
            if new.idempotency_key is not None:
                found = await keys.original(database, new.idempotency_key)
            if isinstance(found, keys.Original):
                return _existing(found)
            raise DuplicateBusinessKey({new.business_key: got.holder})
        taken.append(got)
        database.step("key taken")
    if new.idempotency_key is not None:
        found_key = await keys.reserve(database, new.idempotency_key, job_id, None)
        if isinstance(found_key, keys.Original):
            await keys.release(database, taken)
            return _existing(found_key)
        reserved = found_key
        database.step("key reserved")
        if found_key.id != job_id:
            # Somebody reserved it and died: the job is inserted under the id that was promised.
            job_id = found_key.id
            doc = {**doc, "_id": job_id, "completed": True}
            if new.business_key is not None:
                await keys.release(database, taken)
                got = await keys.take(database, new.business_key, job_id, None)
                if isinstance(got, keys.Held):
                    raise DuplicateBusinessKey({new.business_key: got.holder})
                taken = [got]
    there = await pending.place(database, doc, keys.Waiting(), over_void=False)
    if there is None:
        if claimed:
            running.remember(Guard(doc))
        return replace(answer, id=job_id)
    if there.get("void"):
        # Called off as too slow, with its keys perhaps taken by others: begin again, in its place.
        if new.business_key is not None:
            again = await keys.take(database, new.business_key, job_id, None)
            if isinstance(again, keys.Held):
                await keys.unreserve(database, [reserved] if reserved is not None else [])
                raise DuplicateBusinessKey({new.business_key: again.holder})
        replaced = await database.run(
            lambda: database.jobs.replace_one({"_id": job_id, "void": True}, {**doc, "completed": True})
        )
        if not replaced.matched_count:  # by others; or by a first try of our own whose answer was lost
            mine: Document = {"_id": job_id, "write": doc["write"]}
            if await database.run(lambda: database.jobs.find_one(mine, {"_id": 1})) is None:
                return None
        return replace(answer, id=job_id)
    await keys.release(database, taken)
    if reserved is not None and there.get("idempotency_key") == new.idempotency_key:
        status = there.get("status")
        return Inserted(job_id, created=False, status=None if status is None else STATUS[status])
    if reserved is not None:
        await keys.unreserve(database, [reserved])
    raise UsageError(f"a job with this id is stored already: {job_id}")


# -- several --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Plan:
    """What a list comes to: answers in order, and the jobs that are to be inserted."""

    answers: list[Inserted | None] = field(default_factory=list)
    fresh: list[tuple[int, NewJob, UUID]] = field(default_factory=list)
    abandoned: dict[str, UUID] = field(default_factory=dict)
    repeats: list[tuple[int, int]] = field(default_factory=list)


async def _plan(database: MongoDatabase, jobs: Sequence[NewJob]) -> _Plan:
    """Which entries are taken keys, which repeat an earlier entry, and which are new."""
    plan = _Plan()
    named = [new.idempotency_key for new in jobs if new.idempotency_key is not None]
    known = await keys.originals(database, named) if named else {}
    first: dict[str, int] = {}
    for place, new in enumerate(jobs):
        plan.answers.append(None)
        key = new.idempotency_key
        job_id = new.id
        if key is not None and key in first:
            plan.repeats.append((place, first[key]))
            continue
        if key is not None:
            first[key] = place
            if key in known:
                found = await keys.settled_original(database, key)
                if isinstance(found, keys.Original):
                    plan.answers[place] = _existing(found)
                    continue
                if found is not None:
                    plan.abandoned[key] = job_id = found.id
        plan.fresh.append((place, new, job_id))
    return plan


async def _insert_many(database: MongoDatabase, jobs: Sequence[NewJob]) -> list[Inserted] | None:
    """Insert a list as one operation; None: begin again."""
    now = await database.now()
    plan = await _plan(database, jobs)
    if plan.fresh and not await _operation(database, plan, now):
        return None
    for place, earlier in plan.repeats:
        original = plan.answers[earlier]
        assert original is not None
        plan.answers[place] = Inserted(original.id, created=False, status=original.status)
    return [answer for answer in plan.answers if answer is not None]


async def _operation(database: MongoDatabase, plan: _Plan, now: datetime) -> bool:
    """Insert what is new in `plan`, all or nothing; False: begin again."""
    token = database.token()
    hold: Document = {"kind": pending.OPERATION, "id": token, "at": now}
    docs = []
    for _, new, job_id in plan.fresh:
        doc = new_document(new, now, token=token, business_key=new.business_key)
        if job_id != new.id:
            doc = {**doc, "_id": job_id, "completed": True}
        docs.append(hidden(doc, hold))
    ids = [doc["_id"] for doc in docs]
    if len(set(ids)) != len(ids):
        raise UsageError("a job with this id is in the list twice")
    shapes = {(d["reveal"]["status"], d["reveal"].get("lane")) for d in docs}
    record: Document = {
        "_id": token,
        "kind": pending.INSERT,
        "state": pending.OPEN,
        "at": now,
        "steps": [_showing(status, lane) for status, lane in sorted(shapes, key=str)],
    }
    await pending.begin_operation(database, record)
    taken: list[keys.Taken] = []
    reserved: list[keys.Reserved] = []
    try:
        taken = await _take_business(database, plan, hold)
        ok = True
        for _, new, job_id in sorted(plan.fresh, key=lambda entry: entry[1].idempotency_key or ""):
            if new.idempotency_key is not None:
                answer = await keys.reserve(database, new.idempotency_key, job_id, hold)
                if isinstance(answer, keys.Original) or answer.id != job_id:
                    ok = False  # somebody else was faster since it was looked up
                    break
                reserved.append(answer)
        database.step("keys reserved")
        if ok:
            await _insert_hidden(database, docs)
            database.step("members inserted")
            record_now = await pending.commit_operation(database, token)
            ok = record_now is not None or await _is_shown(database, ids[0], token)
            if ok:
                database.step("operation committed")
                if record_now is not None:
                    await pending.complete_operation(database, record_now)
                for place, new, job_id in plan.fresh:
                    plan.answers[place] = _created(new, now, job_id)
                return True
    except Exception:
        await _undo(database, record, taken, reserved)
        raise
    await _undo(database, record, taken, reserved)
    return False


def _showing(status: str, lane: str | None) -> Document:
    """The step of an operation that shows its members of one status and lane."""
    shown: Document = {"status": status}
    if lane is not None:
        shown["lane"] = lane
    return {
        "where": {"reveal.status": status, "reveal.lane": lane if lane is not None else {"$exists": False}},
        "update": {"$set": shown, "$unset": {"hold": "", "reveal": ""}},
    }


async def _take_business(database: MongoDatabase, plan: _Plan, hold: Document) -> list[keys.Taken]:
    """Take the business keys of all new jobs, or raise with every conflict."""
    wanted: dict[str, UUID] = {}
    twice: dict[str, UUID] = {}
    for _, new, job_id in plan.fresh:
        if new.business_key is not None:
            if new.business_key in wanted:
                twice[new.business_key] = wanted[new.business_key]
            wanted.setdefault(new.business_key, job_id)
    if not wanted:
        return []
    taken, conflicts = await keys.take_many(database, list(wanted.items()), hold)
    for key, holder in twice.items():
        conflicts.setdefault(key, holder)
    if conflicts:
        await keys.release(database, taken)
        raise DuplicateBusinessKey(
            {new.business_key: conflicts[new.business_key]
             for _, new, _ in plan.fresh
             if new.business_key is not None and new.business_key in conflicts}
        )  # fmt: skip
    return taken


async def _insert_hidden(database: MongoDatabase, docs: list[Document]) -> None:
    """Insert the members; an id that is stored already is an error."""
    for start in range(0, len(docs), _CHUNK):
        left = docs[start : start + _CHUNK]
        while left:
            try:
                await database.run(lambda d=left: database.jobs.insert_many(d, ordered=True))  # type: ignore[misc]
            except StoreError as error:
                cause = error.__cause__
                if not isinstance(cause, BulkWriteError) or codes(cause) != {DUPLICATE_KEY}:
                    raise
                at: int = cause.details["writeErrors"][0]["index"]
                # Inserted by a first try whose answer was lost; or there is something in its place.
                if await pending.place(database, left[at], keys.Waiting(), over_void=True) is not None:
                    raise UsageError(f"a job with this id is stored already: {left[at]['_id']}") from error
                left = left[at + 1 :]
            else:
                break


async def _is_shown(database: MongoDatabase, job_id: UUID, token: UUID) -> bool:
    """True if somebody else has completed the operation: its answer was lost, and it was decided."""
    doc = await database.run(
        lambda: database.jobs.find_one({"_id": job_id, "status": {"$exists": True}}, {"write": 1})
    )
    return doc is not None and doc.get("write") == token


async def _undo(
    database: MongoDatabase,
    record: Document,
    taken: Sequence[keys.Taken],
    reserved: Sequence[keys.Reserved],
) -> None:
    """Call off an operation that cannot succeed, with the keys that it took."""
    if await pending.abort_operation(database, record):
        await keys.release(database, taken)
        await keys.unreserve(database, reserved)


# -- deleting -------------------------------------------------------------------------------------


async def delete(database: MongoDatabase, job_ids: Sequence[UUID]) -> int:
    """See `ratchet.spi.store.JobStore.delete`."""
    ids = sorted(set(job_ids))
    deleted = 0
    for start in range(0, len(ids), _CHUNK):
        deleted += await _delete(database, ids[start : start + _CHUNK])
    return deleted


async def _delete(database: MongoDatabase, ids: list[UUID]) -> int:
    where: Document = {"_id": {"$in": ids}, "status": _SETTLED}
    view = {"outbox": 1, "hold": 1, "idempotency_key": 1, "spilled": 1, "completed": 1}
    docs = await database.run(lambda: find(database.jobs, where, view, hint=BY_ID))
    if any("outbox" in doc or "hold" in doc for doc in docs):
        await read_guards(database, [doc["_id"] for doc in docs])
    for doc in docs:
        if "idempotency_key" in doc:
            # With or before the delete: whoever meets the key afterwards is answered "purged".
            await database.run(
                lambda d=doc: database.idempotency.update_one(  # type: ignore[misc]
                    {"_id": d["idempotency_key"], "job": d["_id"]}, {"$set": {"gone": True}}
                )
            )
    database.step("keys marked")
    doomed = [doc["_id"] for doc in docs]
    if not doomed:
        return 0
    free: Document = {"status": _SETTLED, "hold": {"$exists": False}, "outbox": {"$exists": False}}
    voided = [doc["_id"] for doc in docs if doc.get("completed")]
    for job_id in voided:
        # Whoever reserved its id may still be about to insert it: that must fail.
        await database.run(
            lambda i=job_id: database.jobs.replace_one(  # type: ignore[misc]
                {"_id": i, **free}, {"void": True, "fence": 0}
            )
        )
    await database.run(lambda: database.jobs.delete_many({"_id": {"$in": doomed}, **free}, hint=BY_ID))
    database.step("deleted")
    remaining: Document = {"_id": {"$in": doomed}, "status": {"$exists": True}}
    left = {
        doc["_id"]
        for doc in await database.run(lambda: find(database.jobs, remaining, {"_id": 1}, hint=BY_ID))
    }
    for doc in docs:
        if doc.get("spilled") and doc["_id"] not in left:
            await database.run(
                lambda d=doc: database.executions.delete_many(spilled_range(d["_id"]))  # type: ignore[misc]
            )
    return len(doomed) - len(left)
