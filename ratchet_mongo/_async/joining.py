"""Submission inside the caller's transaction: jobs and keys are written by it, and exist exactly if it commits.

No operation and no outbox: the transaction itself makes the writes one. What other submissions have begun
is looked at, and brought to an end, outside of it, as always; the transaction then swaps the entry that was
looked at, so that whoever changes it meanwhile is a write conflict, which the server decides.

Everything is looked up before the first write. A duplicate therefore leaves the caller's transaction as it
was; what fails later ends it, because a part of a submission must never be committed.

Round trips: one for a single job, two more if it has an idempotency key, two more for a business key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

from pymongo.errors import PyMongoError

from ratchet.domain.job import NewJob
from ratchet.errors import DuplicateBusinessKey, UsageError
from ratchet.spi.store import Inserted
from ratchet_mongo._async import keys
from ratchet_mongo._async.database import OPTIONS, MongoDatabase
from ratchet_mongo._async.flavour import Collection, Session, check_session, find
from ratchet_mongo.documents import STATUS, Document, new_document
from ratchet_mongo.moves import holds
from ratchet_mongo.translate import (
    UNENCODABLE,
    IdempotencyKeyInUse,
    TransactionAborted,
    is_duplicate,
    translated_joined,
    unencodable,
)

T = TypeVar("T")
_CHUNK: Final = 1000


class Unit:
    """The caller's transaction, and the collections as its client sees them.

    Args:
        database: of the jobs.
        session: the caller's.
        made: True if the collections have just been made, so that a transaction that has read does not see them.
    """

    def __init__(self, database: MongoDatabase, session: Session, *, made: bool) -> None:
        self.session = session
        self.made = made
        self._name = database.name
        db = session.client.get_database(database.name, **OPTIONS)
        self.jobs: Collection = db[database.jobs.name]
        self.business: Collection = db[database.business.name]
        self.idempotency: Collection = db[database.idempotency.name]

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call once: after an error the server has ended the transaction, and nothing may be repeated in it.

        Raises:
            StoreError: what the driver's error means, labelled so that ``with_transaction`` runs the
                transaction again where that helps.
        """
        try:
            return await call()
        except PyMongoError as error:
            raise translated_joined(error, self._name) from error
        except UNENCODABLE as error:
            raise unencodable(error, self._name) from error

    def outdated(self) -> TransactionAborted:
        """What to raise if the transaction does not see what has been decided since it began."""
        return TransactionAborted(
            f"the MongoDB database {self._name!r} has changed since the transaction began; run it again"
        )

    async def end(self) -> None:
        """Roll the transaction back, if the server has not done so already."""
        if self.session.in_transaction:
            with suppress(PyMongoError):  # the server forgets it by itself
                await self.session.abort_transaction()


@dataclass(slots=True)
class _Plan:
    """What a submission comes to: answers in order, and what is to be written."""

    answers: list[Inserted | None] = field(default_factory=list)
    fresh: list[tuple[int, NewJob, UUID]] = field(default_factory=list)
    repeats: list[tuple[int, int]] = field(default_factory=list)
    adopted: dict[str, keys.Reserved] = field(default_factory=dict)
    passed_on: dict[str, Document] = field(default_factory=dict)


async def insert(database: MongoDatabase, jobs: Sequence[NewJob], session: object) -> list[Inserted]:
    """Insert all of `jobs` in the transaction of `session`, or none.

    Raises:
        UsageError: `session` is no open transaction on this database.
        DuplicateBusinessKey: a key is held; the transaction is as it was.
        DuplicateIdempotencyKey, StoreTransientError: another transaction was faster; this one is rolled back.
    """
    unit = await _joined(database, session)
    if not jobs:
        return []
    plan = await _looked_up(database, unit, jobs)
    # A token that is nobody's: this node, too, is to hear of the jobs when they are committed, not before.
    token = uuid4()
    docs = await _documents(database, plan, token)
    try:
        await _take_business(unit, plan, token)
        await _take_idempotency(unit, plan, token)
        await _insert_jobs(database, unit, plan, docs)
    except BaseException:
        await unit.end()
        raise
    for place, earlier in plan.repeats:
        original = plan.answers[earlier]
        assert original is not None
        plan.answers[place] = original.again()
    return [answer for answer in plan.answers if answer is not None]


async def _joined(database: MongoDatabase, session: object) -> Unit:
    """The caller's transaction, if it can be joined."""
    checked = check_session(session)
    if not checked.in_transaction:
        raise UsageError(
            "the session given as unit= has no open transaction; submit inside session.with_transaction(...), or "
            "after session.start_transaction()"
        )
    made = await database.prepare()
    if not await database.is_reached_by(checked.client):
        raise UsageError(
            "the session given as unit= belongs to a client of another deployment; start it on a client that is "
            "connected to the one with the jobs"
        )
    return Unit(database, checked, made=made)


# -- what it comes to: nothing is written here ------------------------------------------------------


async def _looked_up(database: MongoDatabase, unit: Unit, jobs: Sequence[NewJob]) -> _Plan:
    plan = _Plan()
    originals = await _originals(database, unit, plan, jobs)
    first: dict[str, int] = {}
    for place, new in enumerate(jobs):
        plan.answers.append(None)
        key = new.idempotency_key
        if key is not None and key in first:
            plan.repeats.append((place, first[key]))
            continue
        if key is not None:
            first[key] = place
            if key in originals:
                found = originals[key]
                plan.answers[place] = Inserted(found.id, created=False, status=found.status)
                continue
        adopted = plan.adopted.get(key) if key is not None else None
        plan.fresh.append((place, new, new.id if adopted is None else adopted.id))
    ids = [job_id for _, _, job_id in plan.fresh]
    if len(set(ids)) != len(ids):
        raise UsageError("a job with this id is in the list twice")
    await _check_business(database, unit, plan)
    return plan


async def _originals(
    database: MongoDatabase, unit: Unit, plan: _Plan, jobs: Sequence[NewJob]
) -> dict[str, keys.Original]:
    """The jobs that idempotency keys belong to; reservations that came to nothing go into the plan."""
    named = sorted({new.idempotency_key for new in jobs if new.idempotency_key is not None})
    if not named:
        return {}
    where: Document = {"_id": {"$in": named}}
    entries = await unit.run(lambda: find(unit.idempotency, where, session=unit.session))
    if not entries:
        return {}
    these: Document = {"_id": {"$in": [entry["job"] for entry in entries]}, "status": {"$exists": True}}
    docs = await unit.run(lambda: find(unit.jobs, these, {"status": 1}, session=unit.session))
    states = {doc["_id"]: STATUS[doc["status"]] for doc in docs}
    found: dict[str, keys.Original] = {}
    for entry in entries:
        key = entry["_id"]
        if entry["job"] in states:
            found[key] = keys.Original(entry["job"], states[entry["job"]])
            continue
        settled = await keys.settled_original(database, key)
        match settled:
            case keys.Original():
                found[key] = settled
            case keys.Reserved():
                plan.adopted[key] = settled
            case None:
                raise unit.outdated()
    return found


async def _check_business(database: MongoDatabase, unit: Unit, plan: _Plan) -> None:
    """Find the entries of free business keys that had a holder, or raise with every conflict."""
    wanted: dict[str, UUID] = {}
    conflicts: dict[str, UUID] = {}
    for _, new, job_id in plan.fresh:
        if new.business_key is not None:
            if new.business_key in wanted:
                conflicts[new.business_key] = wanted[new.business_key]
            wanted.setdefault(new.business_key, job_id)
    if not wanted:
        return
    where: Document = {"_id": {"$in": sorted(wanted)}}
    for entry in await unit.run(lambda: find(unit.business, where, session=unit.session)):
        key = entry["_id"]
        holder = await _holder(database, unit, entry)
        if holder is None or holder == wanted[key]:
            plan.passed_on[key] = entry
        else:
            conflicts[key] = holder
    if conflicts:
        raise DuplicateBusinessKey({key: conflicts[key] for key in wanted if key in conflicts})


async def _holder(database: MongoDatabase, unit: Unit, entry: Document) -> UUID | None:
    """Who holds the key of an entry that the transaction sees; None: nobody."""
    key, holder = entry["_id"], entry["holder"]
    committed = await database.run(lambda: database.business.find_one({"_id": key}))
    if committed is not None and committed["token"] == entry["token"]:
        held = await keys.held(database, key, committed, keys.Waiting())
        return None if held is None else held.holder
    mine = await unit.run(lambda: unit.jobs.find_one({"_id": holder}, keys.VIEW, session=unit.session))
    theirs = await database.run(lambda: database.jobs.find_one({"_id": holder}, keys.VIEW))
    if mine is not None and holds(mine, key) and (theirs is None or holds(theirs, key)):
        job_id: UUID = holder
        return job_id
    raise unit.outdated()


# -- writing ----------------------------------------------------------------------------------------


async def _documents(database: MongoDatabase, plan: _Plan, token: UUID) -> list[Document]:
    """The jobs as they are stored, with their answers."""
    now = await database.now()
    docs = []
    for place, new, job_id in plan.fresh:
        doc = new_document(new, now, token=token, business_key=new.business_key)
        if job_id != new.id:
            doc = {**doc, "_id": job_id, "completed": True}
        docs.append(doc)
        due = doc["scheduled_time"]
        plan.answers[place] = Inserted(job_id, created=True, status=new.start, scheduled_time=due)
    return docs


async def _take_business(unit: Unit, plan: _Plan, token: UUID) -> None:
    taking = {new.business_key: job_id for _, new, job_id in plan.fresh if new.business_key is not None}
    fresh = [
        {"_id": key, "holder": job_id, "token": token}
        for key, job_id in sorted(taking.items())
        if key not in plan.passed_on
    ]
    if fresh:
        await unit.run(lambda: unit.business.insert_many(fresh, session=unit.session))
    for key, entry in sorted(plan.passed_on.items()):
        change: Document = {"$set": {"holder": taking[key], "token": token}, "$unset": {"via": ""}}
        await _swap(unit, unit.business, entry["_id"], entry["token"], change)


async def _take_idempotency(unit: Unit, plan: _Plan, token: UUID) -> None:
    taking = {new.idempotency_key: job_id for _, new, job_id in plan.fresh if new.idempotency_key is not None}
    fresh = [
        {"_id": key, "job": job_id, "token": token}
        for key, job_id in sorted(taking.items())
        if key not in plan.adopted
    ]
    try:
        if fresh:
            await unit.run(lambda: unit.idempotency.insert_many(fresh, session=unit.session))
        for key, reserved in sorted(plan.adopted.items()):
            change: Document = {"$set": {"token": token}, "$unset": {"via": ""}}
            await _swap(unit, unit.idempotency, key, reserved.token, change)
    except TransactionAborted as error:
        if unit.made:
            raise
        # Specification, section 2: in a fresh transaction the same submission is answered the original.
        raise IdempotencyKeyInUse(sorted(taking)) from error.__cause__


async def _swap(unit: Unit, entries: Collection, key: str, token: UUID, change: Document) -> None:
    """Change an entry that is as it was looked at; anything else is a conflict."""
    swapped = await unit.run(
        lambda: entries.update_one({"_id": key, "token": token}, change, session=unit.session)
    )
    if not swapped.matched_count:
        raise unit.outdated()


async def _insert_jobs(database: MongoDatabase, unit: Unit, plan: _Plan, docs: list[Document]) -> None:
    promised = {reserved.id for reserved in plan.adopted.values()}
    new = [doc for doc in docs if doc["_id"] not in promised]
    for doc in docs:
        if doc["_id"] in promised:
            # Where its submission was called off there is a placeholder.
            where = {"_id": doc["_id"], "void": True}
            await unit.run(
                lambda w=where, d=doc: unit.jobs.replace_one(w, d, upsert=True, session=unit.session)  # type: ignore[misc]
            )
    for start in range(0, len(new), _CHUNK):
        some = new[start : start + _CHUNK]
        try:
            await unit.run(lambda s=some: _insert_some(unit, s))  # type: ignore[misc]
        except Exception as error:
            cause = error.__cause__
            if isinstance(cause, PyMongoError) and is_duplicate(cause):
                raise await _taken_ids(database, unit, some) from cause
            raise


def _insert_some(unit: Unit, docs: list[Document]) -> Any:
    if len(docs) == 1:
        return unit.jobs.insert_one(docs[0], session=unit.session)
    return unit.jobs.insert_many(docs, session=unit.session)


async def _taken_ids(database: MongoDatabase, unit: Unit, docs: list[Document]) -> Exception:
    """What to raise where an id was taken: stored already, or in a way that the transaction does not see."""
    where: Document = {"_id": {"$in": [doc["_id"] for doc in docs]}}
    there = await database.run(lambda: find(database.jobs, where, {"_id": 1}, limit=1))
    if there:
        return UsageError(f"a job with this id is stored already: {there[0]['_id']}")
    return UsageError("a job with this id was submitted in this transaction already")
