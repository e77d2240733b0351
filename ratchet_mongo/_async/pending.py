"""What was begun and is not finished: operations on many jobs, and settlements with further consequences.

Each is decided by one atomic write: the operation's record turns ``committed``, or the settling job's own
document takes the outbox along. Before that write nobody sees a part; after it anybody who meets a part
completes all of it, and so does a sweep. Completing is safe to repeat and safe to be late with: it shows
documents that are there and hidden, and never inserts one.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Protocol
from uuid import UUID

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from ratchet.errors import StoreError
from ratchet_mongo._async.database import MongoDatabase
from ratchet_mongo._async.flavour import find
from ratchet_mongo.documents import Document

OPEN: Final = "open"
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
OPERATION: Final = "operation"
SETTLEMENT: Final = "settlement"
INSERT: Final = "insert"
REQUEUE: Final = "requeue"

_ABANDONED_AFTER: Final = timedelta(seconds=10)
"""Age at which the sweep calls off what nobody has decided; whoever is that slow begins again."""
_SWEEP_LIMIT: Final = 100
_IN_PLACE: Final = {"write": 1, "void": 1, "status": 1, "hold": 1, "idempotency_key": 1}
_HIDDEN: Final[Document] = {"status": {"$exists": False}}


class Patience(Protocol):
    """Waits a little, and says when it has been enough."""

    async def more(self) -> bool:
        """Wait; False once there is no more patience."""
        ...


class NoPatience:
    """For sweeps."""

    async def more(self) -> bool:
        """Never."""
        return False


async def resolved(database: MongoDatabase, hold: Document, patience: Patience) -> bool:
    """Bring to an end what `hold` names; False if its owner may still be at it: ask again.

    Completed if it was decided, called off if it was not and patience has run out.
    """
    if hold["kind"] == OPERATION:
        record = await database.run(lambda: database.operations.find_one({"_id": hold["id"]}))
        if record is None:
            await _discard(database, hold["id"])
        elif record["state"] == COMMITTED:
            await complete_operation(database, record)
        elif record["state"] == OPEN and await patience.more():
            return False
        else:
            return await abort_operation(database, record)
        return True
    job_id, token = hold["job"], hold["id"]
    settling = await database.run(lambda: database.jobs.find_one({"_id": job_id}, {"outbox": 1, "fence": 1}))
    if settling is not None:
        outbox = settling.get("outbox")
        if outbox is not None and outbox["id"] == token:
            await complete_outbox(database, job_id, outbox)
            return True
        if await patience.more():
            return False
        # The settlement is guarded by the fence that it read, so that from now on it cannot be written.
        fenced = await database.run(
            lambda: database.jobs.update_one(
                {"_id": job_id, "fence": settling["fence"], "outbox.id": {"$ne": token}},
                {"$inc": {"fence": 1}},
            )
        )
        if not fenced.matched_count:
            return False
    await _discard(database, token)
    return True


async def decided(database: MongoDatabase, job_id: UUID, hold: Document) -> bool:
    """True if the document is worth another look: what holds it was decided, and has been completed."""
    if hold["kind"] == OPERATION:
        record = await database.run(lambda: database.operations.find_one({"_id": hold["id"]}))
        if record is not None:
            if record["state"] != COMMITTED:
                return False
            await complete_operation(database, record)
            return True
    else:
        settling = await database.run(lambda: database.jobs.find_one({"_id": hold["job"]}, {"outbox": 1}))
        outbox = (settling or {}).get("outbox")
        if outbox is not None and outbox["id"] == hold["id"]:
            await complete_outbox(database, hold["job"], outbox)
            return True
    same = await database.run(
        lambda: database.jobs.find_one({"_id": job_id, "hold.id": hold["id"]}, {"_id": 1})
    )
    return same is None


async def _discard(database: MongoDatabase, token: UUID) -> None:
    """Remove the hidden documents of something that was called off, and unlock the others."""
    await database.run(lambda: database.jobs.delete_many({"hold.id": token, **_HIDDEN}))
    await database.run(lambda: database.jobs.update_many({"hold.id": token}, {"$unset": {"hold": ""}}))


async def place(
    database: MongoDatabase, doc: Document, patience: Patience, *, over_void: bool
) -> Document | None:
    """Insert a job's document; None once it is there, else what is there in its place.

    Args:
        database: where.
        doc: with the token of this write in ``write``.
        patience: for a document of the same id whose owner may still be at it.
        over_void: take the place of a placeholder.
    """
    job_id, jobs = doc["_id"], database.jobs
    while True:
        try:
            await database.run(lambda: jobs.insert_one(doc))
        except StoreError as error:
            if not isinstance(error.__cause__, DuplicateKeyError):
                raise
        else:
            return None
        there: Document | None = await database.run(lambda: jobs.find_one({"_id": job_id}, _IN_PLACE))
        if there is None:
            continue
        if there.get("write") == doc["write"]:
            return None
        if there.get("void") and over_void:
            replaced = await database.run(lambda: jobs.replace_one({"_id": job_id, "void": True}, doc))
            if replaced.matched_count:
                return None
        elif "hold" in there and "status" not in there:
            await resolved(database, there["hold"], patience)
        else:
            return there


# -- operations -----------------------------------------------------------------------------------


async def begin_operation(database: MongoDatabase, record: Document) -> None:
    """Record an operation; a second try whose first one had no answer changes nothing."""
    await database.run(
        lambda: database.operations.update_one({"_id": record["_id"]}, {"$setOnInsert": record}, upsert=True)
    )
    database.step("operation recorded")


async def complete_operation(database: MongoDatabase, record: Document) -> None:
    """Carry out a committed operation."""
    token, jobs = record["_id"], database.jobs
    for step in record["steps"]:
        where = {"hold.id": token, **step["where"]}
        await database.run(lambda w=where, s=step: jobs.update_many(w, s["update"]))  # type: ignore[misc]
        database.step("operation carried on")
    await database.run(lambda: database.operations.delete_one({"_id": token}))


async def abort_operation(database: MongoDatabase, record: Document) -> bool:
    """Call off an operation that is not committed; True if it is certain that nothing of it will ever be seen.

    Without a record somebody else has brought it to an end, and which one cannot be told any more: whoever began it
    must not give back what it took. Keys without a job free themselves.
    """
    token = record["_id"]
    if record["state"] == OPEN:
        await database.run(
            lambda: database.operations.update_one(
                {"_id": token, "state": OPEN}, {"$set": {"state": ABORTED}}
            )
        )
        current = await database.run(lambda: database.operations.find_one({"_id": token}, {"state": 1}))
        if current is None:
            await _discard(database, token)
            return False
        if current["state"] == COMMITTED:
            return False
        database.step("operation called off")
    await _discard(database, token)
    await database.run(lambda: database.operations.delete_one({"_id": token}))
    return True


async def commit_operation(database: MongoDatabase, token: UUID) -> Document | None:
    """Decide an operation; its record. None: somebody called it off, or has completed it already."""
    record: Document | None = await database.run(
        lambda: database.operations.find_one_and_update(
            {"_id": token, "state": {"$in": [OPEN, COMMITTED]}},
            {"$set": {"state": COMMITTED}},
            return_document=ReturnDocument.AFTER,
        )
    )
    return record


# -- settlements ----------------------------------------------------------------------------------


async def complete_outbox(database: MongoDatabase, job_id: UUID, outbox: Document) -> None:
    """Carry out the consequences that a settled job's document names."""
    token, jobs = outbox["id"], database.jobs
    for entry in outbox["submits"]:
        if entry.get("moves") is not None:
            change = {"$set": {"holder": entry["job"], "token": entry["token"]}, "$unset": {"via": ""}}
            await database.run(
                lambda e=entry, c=change: database.business.update_one(  # type: ignore[misc]
                    {"_id": e["moves"], "holder": job_id}, c
                )
            )
            database.step("key moved")
        await database.run(
            lambda e=entry: jobs.update_one(  # type: ignore[misc]
                {"_id": e["job"], "hold.id": token},
                {"$set": e["reveal"], "$unset": {"hold": "", "reveal": ""}},
            )
        )
        database.step("submitted job shown")
    await database.run(
        lambda: jobs.update_one({"_id": job_id, "outbox.id": token}, {"$unset": {"outbox": ""}})
    )


# -- sweeps ---------------------------------------------------------------------------------------


async def help_decided(database: MongoDatabase) -> None:
    """Complete all that is decided, so that what is read next shows it."""
    committed = await database.run(lambda: find(database.operations, {"state": COMMITTED}))
    for record in committed:
        await complete_operation(database, record)
    settled = await database.run(
        lambda: find(database.jobs, {"outbox.at": {"$exists": True}}, {"outbox": 1}, limit=_SWEEP_LIMIT)
    )
    for doc in settled:
        await complete_outbox(database, doc["_id"], doc["outbox"])


async def sweep(database: MongoDatabase) -> None:
    """Complete what is decided, and call off what nobody has decided for long."""
    await help_decided(database)
    before = await database.now() - _ABANDONED_AFTER
    old = await database.run(lambda: find(database.operations, {"at": {"$lt": before}}, limit=_SWEEP_LIMIT))
    for record in old:
        await resolved(database, {"kind": OPERATION, "id": record["_id"]}, NoPatience())
    held = await database.run(
        lambda: find(
            database.jobs,
            {"hold.id": {"$exists": True}, "hold.at": {"$lt": before}},
            {"hold": 1},
            limit=_SWEEP_LIMIT,
        )
    )
    seen: set[UUID] = set()
    for doc in held:
        if doc["hold"]["id"] not in seen:
            seen.add(doc["hold"]["id"])
            await resolved(database, doc["hold"], NoPatience())
