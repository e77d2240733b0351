"""Claiming: one look at all lanes, one guarded update that stamps a token, one read of what carries it.

Round trips: one where nothing is due, else three, whatever the number of jobs. An answer that was lost
is asked for again: the same token on the same jobs claims nothing twice, and what it had claimed is read by
it. A stamp that arrives later still is a claim that its node does not know, which `held` brings to light.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final
from uuid import UUID, uuid4

from ratchet.domain.lifecycle import ROWS, Trigger
from ratchet.spi.store import Claimed, ClaimRequest
from ratchet_mongo._async.database import MongoDatabase
from ratchet_mongo._async.flavour import aggregate, find
from ratchet_mongo.choosing import branches, choose, filters, pipeline
from ratchet_mongo.documents import CLAIM_VIEW, Document, claim_from, cleaned
from ratchet_mongo.indexes import BY_ID
from ratchet_mongo.moves import Guard

_ROW: Final = ROWS[Trigger.CLAIM]
_PENDING: Final = _ROW.sources[0].value
_RUNNING: Final = _ROW.targets[0].value
_REMEMBERED: Final = 10_000


class Running:
    """Claims of this handle as they were read: what ends them needs no further look.

    Between a claim and its end nothing that a transition reads of a job can change: every change moves it
    out of RUNNING. So an end is decided from here, and the guard of its update says whether that was true.
    """

    def __init__(self) -> None:
        self._guards: OrderedDict[UUID, Guard] = OrderedDict()

    def remember(self, guard: Guard) -> None:
        """Keep a claim; the oldest are forgotten, which costs a look."""
        self._guards[guard.id] = guard
        while len(self._guards) > _REMEMBERED:
            try:
                self._guards.popitem(last=False)
            except KeyError:  # another thread was faster
                return

    def of(self, job_id: UUID, claim_seq: int | None) -> Guard | None:
        """The job at this claim, if it is known."""
        guard = self._guards.get(job_id)
        return guard if guard is not None and guard.claim_seq == claim_seq else None

    def forget(self, job_id: UUID) -> None:
        """The claim is over."""
        self._guards.pop(job_id, None)


async def claim(database: MongoDatabase, request: ClaimRequest, running: Running) -> Claimed:
    """See `ratchet.spi.store.JobStore.claim`."""
    now = await database.now()
    limits = {name: min(n, max(request.limit, 0)) for name, n in request.limits.items() if n > 0}
    lanes = branches(limits)
    if not lanes:
        return Claimed([], more=False, next_due=None, now=now)
    stages = pipeline(lanes, now, filters(request), max(limits.values()) + 1, database.jobs.name)
    found = await database.run(lambda: aggregate(database.jobs, stages))
    choice = choose(found, request, limits, now)
    if not choice.ids:
        return Claimed([], more=choice.more, next_due=choice.next_due, now=now)
    token = uuid4()
    chosen: Document = {"_id": {"$in": choice.ids}}
    due: Document = {**chosen, "status": _PENDING, "scheduled_time": {"$lte": now}, "lane": {"$exists": True}}
    stamp: Document = {
        "$set": {
            "status": _RUNNING,
            "picked_by": cleaned(request.incarnation),
            "picked_at": now,
            "updated_at": now,
            "claim_token": token,
        },
        "$inc": {"claim_seq": 1, "version": 1},
        "$unset": {"lane": ""},
    }
    await database.run(lambda: database.jobs.update_many(due, stamp, hint=BY_ID))
    database.step("claimed")
    mine = {**chosen, "claim_token": token, "status": _RUNNING}
    docs = {
        doc["_id"]: doc
        for doc in await database.run(lambda: find(database.jobs, mine, CLAIM_VIEW, hint=BY_ID))
    }
    claims = []
    for job_id in choice.ids:
        doc = docs.get(job_id)
        if doc is not None:
            running.remember(Guard(doc))
            claims.append(claim_from(doc))
    more = choice.more or len(claims) < len(choice.ids)
    return Claimed(claims, more=more, next_due=choice.next_due, now=now)
