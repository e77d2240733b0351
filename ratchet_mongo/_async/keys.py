"""Keys: who holds a business key, who has an idempotency key, and how each passes on.

Both are documents whose ``_id`` is the key, changed by compare-and-swap on their ``token``. The entry is
only a pointer: whether its holder holds the key is said by the holder's own document, so that settling a
job costs nothing here. Taking a key from a settled holder first raises that job's ``fence``: a requeue under
way, which is guarded by the fence that it read, then fails and looks again.

``via`` names what will bring the holder into being (an operation record, or a settlement's outbox); such
a holder is never free before that has been completed or called off.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid4

from pymongo import ReturnDocument
from pymongo.errors import BulkWriteError, DuplicateKeyError

from ratchet.domain.lifecycle import SETTLED, Status
from ratchet.errors import StoreError
from ratchet_mongo._async import pending
from ratchet_mongo._async.database import MongoDatabase
from ratchet_mongo._async.flavour import find, sleep
from ratchet_mongo.documents import STATUS, Document, storable
from ratchet_mongo.moves import holds
from ratchet_mongo.translate import DUPLICATE_KEY, codes

_LOOK_EVERY: Final = 0.01
PATIENCE: Final = 1.0
"""Seconds for which a submission that may be under way is waited for; then it is called off."""

VIEW: Final = {"status": 1, "business_key": 1, "hold": 1, "outbox": 1, "fence": 1, "void": 1}


@dataclass(frozen=True, slots=True)
class Taken:
    """A key that this call has now."""

    key: str
    token: UUID


@dataclass(frozen=True, slots=True)
class Held:
    """A key that another job holds.

    Attributes:
        holder: which.
        status: its state.
    """

    holder: UUID
    status: Status


class Waiting:
    """How long something that is not there yet has been waited for."""

    def __init__(self) -> None:
        self._until = time.monotonic() + PATIENCE

    async def more(self) -> bool:
        """Wait a little; False if it has been enough."""
        if time.monotonic() > self._until:
            return False
        await sleep(_LOOK_EVERY)
        return True


# -- business keys --------------------------------------------------------------------------------


async def take(database: MongoDatabase, key: str, holder: UUID, via: Document | None) -> Taken | Held:
    """Make `holder` the holder of `key`, unless another unsettled job is.

    One round trip for a key that nobody ever held.
    """
    token = uuid4()
    mine: Document = {"holder": holder, "token": token}
    if via is not None:
        mine["via"] = via
    entries = database.business
    waiting = Waiting()
    entry: Document | None = None
    try:
        entry = await database.run(
            lambda: entries.find_one_and_update(
                {"_id": key}, {"$setOnInsert": mine}, upsert=True, return_document=ReturnDocument.AFTER
            )
        )
    except StoreError as error:
        if not isinstance(error.__cause__, DuplicateKeyError):  # two upserts of one key: the other one won
            raise
        entry = await database.run(lambda: entries.find_one({"_id": key}))
    while True:
        if entry is None:
            try:
                await database.run(lambda: entries.insert_one({"_id": key, **mine}))
            except StoreError as error:
                if not isinstance(error.__cause__, DuplicateKeyError):
                    raise
                entry = await database.run(lambda: entries.find_one({"_id": key}))
                continue
            return Taken(key, token)
        if entry["token"] == token:
            return Taken(key, token)
        seen = entry
        if seen["holder"] == holder:
            doc = await database.run(lambda: database.jobs.find_one({"_id": holder}, VIEW))
            if doc is not None and holds(doc, key):
                return Taken(
                    key, uuid4()
                )  # it is stored already, which its insert will say; not ours to release
        else:
            other = await held(database, key, seen, waiting)
            if other is not None:
                return other
        database.step("key about to pass on")
        change: Document = {"$set": mine} if via is not None else {"$set": mine, "$unset": {"via": ""}}
        entry = await database.run(
            lambda s=seen, c=change: entries.find_one_and_update(  # type: ignore[misc]
                {"_id": key, "token": s["token"]}, c, return_document=ReturnDocument.AFTER
            )
        )
        if entry is None:
            entry = await database.run(lambda: entries.find_one({"_id": key}))


async def held(database: MongoDatabase, key: str, entry: Document, waiting: Waiting) -> Held | None:
    """Who holds the key by this entry; None if nobody does, and nobody who was about to will."""
    jobs, holder = database.jobs, entry["holder"]
    resolved = False
    while True:
        doc = await database.run(lambda: jobs.find_one({"_id": holder}, VIEW))
        if doc is None:
            if entry.get("via") is not None:
                if resolved:
                    return None
                resolved = await pending.resolved(database, entry["via"], waiting)
            elif not await waiting.more() and await void(database, holder):
                return None  # its submission died, or is so late that it must not succeed any more
            continue
        if doc.get("void"):
            return None
        if doc.get("hold") is not None:
            await pending.resolved(database, doc["hold"], waiting)
            continue
        if doc.get("outbox") is not None:
            await pending.complete_outbox(database, holder, doc["outbox"])
            current = await database.run(lambda: database.business.find_one({"_id": key}))
            if current is None or current["token"] != entry["token"]:
                return None  # the compare-and-swap that follows will fail, and it is looked at anew
            continue
        if holds(doc, key):
            return Held(holder, STATUS[doc["status"]])
        if STATUS[doc["status"]] not in SETTLED:
            return None  # it is unsettled under another key
        fenced = await database.run(
            lambda d=doc: jobs.update_one(  # type: ignore[misc]
                {"_id": holder, "status": d["status"], "fence": d["fence"]}, {"$inc": {"fence": 1}}
            )
        )
        if fenced.matched_count:
            return None


async def void(database: MongoDatabase, job_id: UUID) -> bool:
    """Put a placeholder where a job was about to be inserted; False if it has been meanwhile."""
    try:
        await database.run(lambda: database.jobs.insert_one({"_id": job_id, "void": True, "fence": 0}))
    except StoreError as error:
        if not isinstance(error.__cause__, DuplicateKeyError):
            raise
        return False
    return True


async def take_many(
    database: MongoDatabase, wanted: Sequence[tuple[str, UUID]], via: Document
) -> tuple[list[Taken], dict[str, UUID]]:
    """Take several keys, always in the same order, so that two calls never wait for each other.

    Returns:
        What was taken, and the conflicts by key.
    """
    taken: list[Taken] = []
    conflicts: dict[str, UUID] = {}
    left = sorted(wanted)
    entries = database.business
    while left:
        token = uuid4()
        fresh = [{"_id": key, "holder": holder, "token": token, "via": via} for key, holder in left]
        done = len(left)
        try:
            await database.run(lambda f=fresh: entries.insert_many(f, ordered=True))  # type: ignore[misc]
        except StoreError as error:
            done = _first_duplicate(error)
        taken += [Taken(key, token) for key, _ in left[:done]]
        left = left[done:]
        if left:
            (key, holder), left = left[0], left[1:]
            answer = await take(database, key, holder, via)
            if isinstance(answer, Taken):
                taken.append(answer)
            else:
                conflicts[key] = answer.holder
    return taken, conflicts


def _first_duplicate(error: StoreError) -> int:
    """How many of an ordered bulk insert were inserted before the first taken id; another error is raised."""
    cause = error.__cause__
    if not isinstance(cause, BulkWriteError) or codes(cause) != {DUPLICATE_KEY}:
        raise error
    index: int = cause.details["writeErrors"][0]["index"]
    return index


async def release(database: MongoDatabase, taken: Sequence[Taken]) -> None:
    """Give up business keys that this call took."""
    for one in taken:
        await database.run(
            lambda o=one: database.business.delete_one({"_id": o.key, "token": o.token})  # type: ignore[misc]
        )


async def business_holder(database: MongoDatabase, key: str) -> Held | None:
    """Who holds the key now."""
    if not storable(key):
        return None
    entry = await database.run(lambda: database.business.find_one({"_id": key}))
    while entry is not None:
        holder = entry["holder"]
        doc = await database.run(lambda h=holder: database.jobs.find_one({"_id": h}, VIEW))  # type: ignore[misc]
        if doc is None or doc.get("void"):
            return None
        if doc.get("outbox") is not None:
            await pending.complete_outbox(database, holder, doc["outbox"])
            entry = await database.run(lambda: database.business.find_one({"_id": key}))
            continue
        if doc.get("hold") is not None and "status" not in doc:
            if not await pending.decided(database, holder, doc["hold"]):
                return None
            continue
        return Held(holder, STATUS[doc["status"]]) if holds(doc, key) else None
    return None


# -- idempotency keys -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Original:
    """The job that an idempotency key belongs to; `status` None: it has been purged."""

    id: UUID
    status: Status | None


@dataclass(frozen=True, slots=True)
class Reserved:
    """A key whose job was never inserted and whose reservation this call has taken over."""

    key: str
    id: UUID
    token: UUID


async def reserve(
    database: MongoDatabase, key: str, job_id: UUID, via: Document | None
) -> Reserved | Original:
    """Reserve an idempotency key for `job_id`, or take over a reservation that came to nothing.

    One round trip for a key that nobody ever used.
    """
    token = uuid4()
    mine: Document = {"_id": key, "job": job_id, "token": token}
    if via is not None:
        mine["via"] = via
    try:
        await database.run(lambda: database.idempotency.insert_one(mine))
    except StoreError as error:
        if not isinstance(error.__cause__, DuplicateKeyError):
            raise
    else:
        return Reserved(key, job_id, token)
    found = await original(database, key, token=token, via=via)
    return found if found is not None else await reserve(database, key, job_id, via)


async def original(
    database: MongoDatabase, key: str, *, token: UUID | None = None, via: Document | None = None
) -> Reserved | Original | None:
    """Whose key it is; with `token` an abandoned reservation is taken over, without it such a key is nobody's."""
    if not storable(key):
        return None
    entries = database.idempotency
    waiting = Waiting() if token is not None else None
    while True:
        entry = await database.run(lambda: entries.find_one({"_id": key}))
        if entry is None:
            return None
        if token is not None and entry["token"] == token:
            return Reserved(key, entry["job"], token)
        found = await _original(database, entry, waiting)
        if found is not None or token is None:
            return found
        change: Document = {"$set": {"token": token}}
        if via is not None:
            change["$set"]["via"] = via
        else:
            change["$unset"] = {"via": ""}
        was = entry["token"]
        await database.run(
            lambda w=was, c=change: entries.update_one({"_id": key, "token": w}, c)  # type: ignore[misc]
        )


async def settled_original(database: MongoDatabase, key: str) -> Reserved | Original | None:
    """Whose key it is, once that can be said; an abandoned reservation is answered and left as it is."""
    waiting = Waiting()
    entry = await database.run(lambda: database.idempotency.find_one({"_id": key}))
    if entry is None:
        return None
    found = await _original(database, entry, waiting)
    return found if found is not None else Reserved(key, entry["job"], entry["token"])


async def _original(database: MongoDatabase, entry: Document, waiting: Waiting | None) -> Original | None:
    """The job of a reservation; None if there is none, and (after waiting) none will come of it."""
    job_id: UUID = entry["job"]
    ended = False
    while True:
        doc = await database.run(lambda: database.jobs.find_one({"_id": job_id}, VIEW))
        if doc is not None and "status" in doc:
            return Original(job_id, STATUS[doc["status"]])
        if entry.get("gone"):
            return Original(job_id, None)
        hold = doc.get("hold") if doc is not None else None
        if waiting is None:
            if hold is not None and await pending.decided(database, job_id, hold):
                continue
            return None
        if ended and hold is None:
            return None
        on = hold or entry.get("via")
        if on is not None:
            ended = await pending.resolved(database, on, waiting)
        elif not await waiting.more():
            return None


async def unreserve(database: MongoDatabase, reserved: Sequence[Reserved]) -> None:
    """Give up reservations that this call has, of jobs that were not inserted."""
    for one in reserved:
        await database.run(
            lambda o=one: database.idempotency.delete_one({"_id": o.key, "token": o.token})  # type: ignore[misc]
        )


async def originals(database: MongoDatabase, wanted: Sequence[str]) -> dict[str, Any]:
    """The entries that exist among these keys, as they are."""
    rows = await database.run(lambda: find(database.idempotency, {"_id": {"$in": sorted(set(wanted))}}))
    return {row["_id"]: row for row in rows}
