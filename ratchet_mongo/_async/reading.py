"""Reading: single jobs, history, pages, counts and health. What is decided and not yet shown is completed first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from ratchet.domain.job import Job, JobType
from ratchet.domain.lifecycle import CLAIMABLE, Execution, Status
from ratchet.domain.priority import Priority
from ratchet.errors import UsageError
from ratchet.spi.store import Health, Order, Page, Selection
from ratchet_mongo._async import pending
from ratchet_mongo._async.database import MongoDatabase
from ratchet_mongo._async.flavour import aggregate
from ratchet_mongo._async.flavour import find as query
from ratchet_mongo._async.settling import show
from ratchet_mongo.documents import (
    JOB_VIEW,
    PRIORITY,
    STATUS,
    TYPE,
    Document,
    execution_from,
    job_from,
    spilled_range,
)
from ratchet_mongo.selections import (
    EVERY_STATUS,
    MOST,
    ORDERS,
    Cursor,
    Part,
    in_order,
    last_ties,
    parts,
    where,
)

_CHUNK: Final = 1000
_PENDING: Final = next(iter(CLAIMABLE)).value


async def get_many(database: MongoDatabase, job_ids: Sequence[UUID]) -> list[Job]:
    """See `ratchet.spi.store.JobStore.get_many`."""
    ids = sorted(set(job_ids))
    found: list[Job] = []
    for start in range(0, len(ids), _CHUNK):
        found += await _get_some(database, ids[start : start + _CHUNK])
    return found


async def _get_some(database: MongoDatabase, ids: list[UUID]) -> list[Job]:
    docs = await database.run(lambda: query(database.jobs, {"_id": {"$in": ids}}, JOB_VIEW))
    hidden = [doc["_id"] for doc in docs if "status" not in doc and "hold" in doc]
    if hidden and await show(database, hidden):
        return await _get_some(database, ids)
    held = [doc for doc in docs if "status" in doc and "hold" in doc]
    decided = False
    for doc in held:
        decided = await pending.decided(database, doc["_id"], doc["hold"]) or decided
    if decided:
        return await _get_some(database, ids)
    return [job_from(doc) for doc in docs if "status" in doc]


async def history(database: MongoDatabase, job_id: UUID) -> list[Execution]:
    """See `ratchet.spi.store.JobStore.history`. One round trip for a job of at most 20 ended claims."""
    doc = await database.run(lambda: database.jobs.find_one({"_id": job_id}, {"history": 1, "spilled": 1}))
    if doc is None:
        return []
    ended = {entry["claim_seq"]: entry for entry in doc.get("history", ())}
    if doc.get("spilled"):
        for entry in await database.run(lambda: query(database.executions, spilled_range(job_id))):
            ended.setdefault(entry["claim_seq"], entry)
    return [execution_from(ended[claim_seq], job_id) for claim_seq in sorted(ended)]


# -- pages ----------------------------------------------------------------------------------------


async def find(
    database: MongoDatabase, selection: Selection, order: Order, limit: int, cursor: str | None
) -> Page:
    """See `ratchet.spi.store.JobStore.find`."""
    if not 1 <= limit <= MOST:
        raise UsageError(f"a limit lies between 1 and {MOST}, not {limit}")
    if order not in ORDERS:
        raise UsageError(f"no such order: {order!r}; choose one of {', '.join(ORDERS)}")
    after = None if cursor is None else Cursor.decode(cursor, order)
    await pending.help_decided(database)
    docs: list[Document] = []
    for part in parts(where(selection), order, after):
        docs += await _part(database, part, limit + 1 - len(docs))
        if len(docs) > limit:
            break
    more = len(docs) > limit
    del docs[limit:]
    following = Cursor.after(docs[-1], order).encode() if more else None
    return Page([job_from(doc) for doc in docs], following)


async def _part(database: MongoDatabase, part: Part, limit: int) -> list[Document]:
    """The first jobs of a part."""
    docs = await database.run(lambda: query(database.jobs, part.where, JOB_VIEW, sort=part.sort, limit=limit))
    if not part.ties:
        return docs
    if len(docs) == limit:
        same = last_ties(part, docs)
        docs = [doc for doc in docs if doc["created_at"] != docs[-1]["created_at"]]
        docs += await _part(database, same, limit - len(docs))
    return in_order(docs)


async def count(database: MongoDatabase, selection: Selection) -> int:
    """See `ratchet.spi.store.JobStore.count`."""
    await pending.help_decided(database)
    chosen = where(selection)
    return int(await database.run(lambda: database.jobs.count_documents(chosen)))


async def counts(database: MongoDatabase) -> Mapping[Status, int]:
    """See `ratchet.spi.store.JobStore.counts`."""
    await pending.help_decided(database)
    return await _counts(database)


async def _counts(database: MongoDatabase) -> dict[Status, int]:
    stages: list[Document] = [
        {"$match": {"status": {"$in": EVERY_STATUS}}},
        {"$group": {"_id": "$status", "n": {"$sum": 1}}},
    ]
    found = await database.run(lambda: aggregate(database.jobs, stages))
    counted = {row["_id"]: row["n"] for row in found}
    return {status: counted.get(status.value, 0) for status in Status}


# -- health ---------------------------------------------------------------------------------------


async def health(database: MongoDatabase, window: timedelta) -> Health:
    """See `ratchet.spi.store.JobStore.health`; percentiles by nearest rank."""
    if window <= timedelta():
        raise UsageError("the window of health must be positive")
    await pending.help_decided(database)
    now = await database.now()
    by_status = await _counts(database)
    grouped: list[Document] = [
        {"$match": {"status": _PENDING}},
        {"$group": {"_id": {"priority": "$priority", "type": "$type"}, "n": {"$sum": 1}}},
    ]
    by_priority: Counter[Priority] = Counter()
    by_type: Counter[JobType] = Counter()
    for row in await database.run(lambda: aggregate(database.jobs, grouped)):
        by_priority[PRIORITY[row["_id"]["priority"]]] += row["n"]
        by_type[TYPE[row["_id"]["type"]]] += row["n"]
    first: list[Document] = [
        {"$match": {"lane": {"$exists": True}, "scheduled_time": {"$lte": now}}},
        {"$group": {"_id": None, "due": {"$min": "$scheduled_time"}}},
    ]
    oldest = await database.run(lambda: aggregate(database.jobs, first))
    ends = sorted(status.value for status in (Status.SUCCEEDED, Status.FAILED))
    recent: Document = {"ended_at": {"$gt": now - window}, "status": {"$in": ends}}
    rows = await database.run(lambda: query(database.jobs, recent, {"status": 1, "duration": 1, "_id": 0}))
    outcomes = Counter(STATUS[row["status"]] for row in rows)
    total = sum(outcomes.values())
    durations = sorted(row["duration"] for row in rows if "duration" in row)
    return Health(
        now=now,
        by_status=by_status,
        pending_by_priority={p: by_priority[p] for p in sorted(Priority)},
        pending_by_type={t: by_type[t] for t in JobType},
        oldest_due_age=now - oldest[0]["due"] if oldest else None,
        throughput=total / window.total_seconds(),
        success_rate=outcomes[Status.SUCCEEDED] / total if total else None,
        p50=_percentile(durations, 0.50),
        p95=_percentile(durations, 0.95),
        p99=_percentile(durations, 0.99),
        window=window,
    )


def _percentile(ordered: Sequence[Any], share: float) -> timedelta | None:
    if not ordered:
        return None
    return timedelta(milliseconds=ordered[max(math.ceil(share * len(ordered)) - 1, 0)])
