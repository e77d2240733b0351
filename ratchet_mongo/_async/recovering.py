"""Recovery: claims and callbacks whose owner is dead, and the nodes that say they are alive.

Round trips of a pass that finds nothing: two, and three of the sweep that comes with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID, uuid4

from pymongo import ReturnDocument

from ratchet.domain.job import CallbackKind
from ratchet.domain.lifecycle import ROWS, Trigger, refusal
from ratchet.domain.settlement import Change
from ratchet.errors import StoreError
from ratchet.spi.store import Node, NodeInfo, Orphan, PendingCallback, RecoverRequest, Recovery
from ratchet_mongo._async import pending
from ratchet_mongo._async.database import MongoDatabase
from ratchet_mongo._async.flavour import find
from ratchet_mongo._async.settling import write
from ratchet_mongo.documents import Document, cleaned, node_fields, node_from
from ratchet_mongo.moves import GUARD_VIEW, Guard, move

_RUNNING: Final = ROWS[Trigger.CLAIM].targets[0].value


async def recover(database: MongoDatabase, request: RecoverRequest) -> Recovery:
    """See `ratchet.spi.store.JobStore.recover`."""
    errors: list[str] = []
    try:
        await pending.sweep(database)
    except StoreError as error:
        errors.append(f"what others left unfinished could not be completed: {error}")
    found = await _orphans(database, request, errors)
    more = len(found) >= request.limit
    exhausted = [_orphan(job, job.crash_count) for job in found if job.crash_count >= request.crash_budget]
    below = [job for job in found if job.crash_count < request.crash_budget]
    database.step("orphans selected")
    recovered: list[Orphan] = []
    try:
        recovered = await _take_back(database, below)
    except StoreError:
        # Something is wrong with one of them, or with the database: one by one, so that it costs no other.
        for job in below:
            try:
                recovered += await _take_back(database, [job])
            except StoreError as error:
                errors.append(f"job {job.id}, claim {job.claim_seq}: {error}")
    return Recovery(recovered, exhausted, more, tuple(errors))


async def _heartbeats(database: MongoDatabase) -> dict[str, datetime]:
    docs = await database.run(lambda: find(database.nodes, {}, {"last_heartbeat": 1}))
    return {doc["_id"]: doc["last_heartbeat"] for doc in docs}


async def _orphans(database: MongoDatabase, request: RecoverRequest, errors: list[str]) -> list[Guard]:
    """Running jobs whose owner is dead, at most as many as asked for; one that makes no sense is an error."""
    now = await database.now()
    owners = await database.run(lambda: database.jobs.distinct("picked_by", {"status": _RUNNING}))
    last = await _heartbeats(database)
    found: list[Guard] = []
    for owner in sorted(str(owner) for owner in owners):
        left = request.limit - len(found)
        if left <= 0:
            break
        where: Document = {"status": _RUNNING, "picked_by": owner}
        if owner in request.never:
            continue
        if owner not in request.known_gone:
            if request.only_known_gone:
                continue
            if owner not in last:
                where["picked_at"] = {"$lt": now - request.grace}  # each claim by its own age
            elif now - last[owner] <= request.grace:
                continue
        docs = await database.run(
            lambda w=where, n=left: find(database.jobs, w, GUARD_VIEW, limit=n)  # type: ignore[misc]
        )
        for doc in docs:
            try:
                found.append(Guard(doc))
            except (KeyError, ValueError, TypeError) as error:
                errors.append(f"job {doc['_id']}: its document cannot be read: {error!r}")
    return found


async def _take_back(database: MongoDatabase, seen: Sequence[Guard]) -> list[Orphan]:
    """Row ``recover`` for those that are still as they were seen: same claim, same owner."""
    now = await database.now()
    moves = []
    for job in seen:
        change = Change(Trigger.RECOVER, job.id, job.claim_seq)
        if refusal(job, change, now) is None:
            moves.append(move(job, change, now, uuid4()))
    return [_orphan(one.guard, one.guard.crash_count + 1) for one in await write(database, moves)]


def _orphan(job: Guard, crash_count: int) -> Orphan:
    return Orphan(job.id, job.claim_seq, crash_count, job.picked_by or "")


async def held(database: MongoDatabase, incarnation: str) -> list[tuple[UUID, int]]:
    """See `ratchet.spi.store.JobStore.held`."""
    where = {"picked_by": cleaned(incarnation), "status": _RUNNING}
    docs = await database.run(lambda: find(database.jobs, where, {"claim_seq": 1}))
    return [(doc["_id"], doc["claim_seq"]) for doc in docs]


# -- callbacks ------------------------------------------------------------------------------------


async def take_callbacks(
    database: MongoDatabase, incarnation: str, grace: timedelta, limit: int
) -> list[PendingCallback]:
    """See `ratchet.spi.store.JobStore.take_callbacks`."""
    if limit <= 0:
        return []
    there: Document = {"callbacks.owner": {"$exists": True}}
    owners = await database.run(lambda: database.jobs.distinct("callbacks.owner", there))
    if not owners:
        return []
    now = await database.now()
    last = await _heartbeats(database)
    me = cleaned(incarnation)
    taken: list[PendingCallback] = []
    for owner in sorted(owners):
        if owner == me or (owner in last and now - last[owner] <= grace):
            continue
        where: Document = {"callbacks.owner": owner}
        left = limit - len(taken)
        docs = await database.run(
            lambda w=where, n=left: find(database.jobs, w, {"callbacks": 1}, limit=n)  # type: ignore[misc]
        )
        for doc in docs:
            for told in doc["callbacks"]:
                if told["owner"] == owner and len(taken) < limit and await _adopt(database, doc, told, me):
                    database.step("callback taken")
                    taken.append(
                        PendingCallback(
                            doc["_id"], told["claim_seq"], told["name"], told["target"], told["argument"]
                        )
                    )
        if len(taken) >= limit:
            break
    return taken


async def _adopt(database: MongoDatabase, doc: Document, told: Document, me: str) -> bool:
    """Make a callback this incarnation's; False if somebody else has been faster, or it is done."""
    one: Document = {"claim_seq": told["claim_seq"], "name": told["name"], "owner": told["owner"]}
    token = uuid4()
    changed = await database.run(
        lambda: database.jobs.update_one(
            {"_id": doc["_id"], "callbacks": {"$elemMatch": one}},
            {"$set": {"callbacks.$.owner": me, "callbacks.$.token": token}},
        )
    )
    if changed.matched_count:
        return True
    # Or a first try without an answer has done it, which its token tells.
    mine = {**one, "owner": me, "token": token}
    again = await database.run(
        lambda: database.jobs.find_one({"_id": doc["_id"], "callbacks": {"$elemMatch": mine}}, {"_id": 1})
    )
    return again is not None


async def callback_done(database: MongoDatabase, job_id: UUID, claim_seq: int, name: CallbackKind) -> None:
    """See `ratchet.spi.store.JobStore.callback_done`."""
    await database.run(
        lambda: database.jobs.update_one(
            {"_id": job_id}, {"$pull": {"callbacks": {"claim_seq": claim_seq, "name": name}}}
        )
    )


# -- nodes ----------------------------------------------------------------------------------------


async def heartbeat(database: MongoDatabase, info: NodeInfo) -> datetime:
    """See `ratchet.spi.store.JobStore.heartbeat`."""
    now = await database.now()
    change = {"$set": {**node_fields(info), "last_heartbeat": now}, "$setOnInsert": {"started_at": now}}
    await database.run(
        lambda: database.nodes.find_one_and_update(
            {"_id": cleaned(info.incarnation)}, change, upsert=True, return_document=ReturnDocument.AFTER
        )
    )
    return now


async def nodes(database: MongoDatabase) -> list[Node]:
    """See `ratchet.spi.store.JobStore.nodes`."""
    docs = await database.run(lambda: find(database.nodes, {}))
    now = await database.now()
    known = sorted((node_from(doc, now) for doc in docs), key=lambda node: node.info.incarnation)
    return sorted(known, key=lambda node: node.last_heartbeat, reverse=True)


async def forget_node(database: MongoDatabase, incarnation: str) -> bool:
    """See `ratchet.spi.store.JobStore.forget_node`."""
    # Looked at before: a deletion whose answer is lost finds nothing when it is tried again.
    there: Document = {"_id": cleaned(incarnation)}
    if await database.run(lambda: database.nodes.find_one(there, {"_id": 1})) is None:
        return False
    await database.run(lambda: database.nodes.delete_one(there))
    return True
