"""What a claim asks for, and which of the candidates it takes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from ratchet.domain.priority import Priority, claim_order
from ratchet.spi.store import ClaimRequest
from ratchet_mongo.documents import Document, lane, storable


@dataclass(frozen=True, slots=True)
class Branch:
    """One executor and priority."""

    executor: str
    priority: int

    @property
    def lane(self) -> str:
        """Its value of the field ``lane``."""
        return lane(self.executor, self.priority)


def branches(executors: Iterable[str]) -> list[Branch]:
    """All that may have candidates."""
    return [Branch(executor, int(p)) for executor in executors for p in Priority if storable(executor)]


def filters(request: ClaimRequest) -> Document:
    """The request's own filters; empty without any."""
    found: Document = {}
    if request.require_tags or request.exclude_tags:
        tags: Document = {}
        if request.require_tags:
            possible = all(map(storable, request.require_tags))  # no job has a tag that cannot be stored
            tags["$all"] = sorted(request.require_tags) if possible else []
        if request.exclude_tags:
            tags["$nin"] = sorted(t for t in request.exclude_tags if storable(t))
        found["tags"] = tags
    if request.types:
        found["type"] = {"$in": sorted(t.value for t in request.types)}
    if request.leave_out:
        found["$nor"] = [{"target": t, "format": f} for t, f in sorted(request.leave_out)]
    return found


def head(now: datetime, wanted: Document, rows: int) -> list[Document]:
    """The stages behind a lane's ``$match``: its first `rows` due jobs."""
    return [
        {"$match": {"scheduled_time": {"$lte": now}, **wanted}},
        {"$sort": {"scheduled_time": 1, "_id": 1}},
        {"$limit": rows},
        {"$project": {"scheduled_time": 1}},
    ]


def following(lanes: Sequence[str], now: datetime, wanted: Document) -> list[Document]:
    """The first job of these lanes that is not yet due."""
    return [
        {"$match": {"lane": {"$in": list(lanes)}, "scheduled_time": {"$gt": now}, **wanted}},
        {"$sort": {"scheduled_time": 1, "_id": 1}},
        {"$limit": 1},
        {"$project": {"scheduled_time": 1}},
    ]


def pipeline(
    lanes: Sequence[Branch], now: datetime, wanted: Document, rows: int, jobs: str
) -> list[Document]:
    """Candidates of all lanes, and when the next job is due, in one aggregate over the jobs.

    It begins with the next one: one merge of index scans, a key of each lane. ``$facet`` makes one document of
    it also where there is none. To each lane then the head of its due jobs is joined, a bounded index scan.
    ``$unionWith`` would say the same of the heads; the servers that stand in for MongoDB in the tests read the
    whole collection for each branch of one, and once for a join.
    """
    # A literal: the name of an executor that begins with a dollar would be that of a field.
    entries = [{"lane": b.lane, "executor": b.executor, "priority": b.priority} for b in lanes]
    return [
        *following([b.lane for b in lanes], now, wanted),
        {"$facet": {"next": [{"$limit": 1}]}},
        {"$set": {"branch": {"$literal": entries}}},
        {"$unwind": "$branch"},
        {
            "$lookup": {
                "from": jobs,
                "localField": "branch.lane",
                "foreignField": "lane",
                "pipeline": head(now, wanted, rows),
                "as": "due",
            }
        },
    ]


@dataclass(slots=True)
class Choice:
    """Which candidates are claimed, in claim order; what is left; and when the next one is due."""

    ids: list[UUID] = field(default_factory=list)
    more: bool = False
    next_due: datetime | None = None


def choose(
    found: Iterable[dict[str, Any]], request: ClaimRequest, limits: dict[str, int], now: datetime
) -> Choice:
    """Merge the lanes by effective priority, within the limits."""
    due: list[tuple[Any, str, UUID]] = []
    choice = Choice()
    for entry in found:
        branch = entry["branch"]
        for later in entry["next"]:
            if choice.next_due is None or later["scheduled_time"] < choice.next_due:
                choice.next_due = later["scheduled_time"]
        for row in entry["due"]:
            order = claim_order(
                branch["priority"], row["scheduled_time"], row["_id"], now, request.boost_interval
            )
            due.append((order, branch["executor"], row["_id"]))
    due.sort()
    left = dict(limits)
    for _, executor, job_id in due:
        if len(choice.ids) < request.limit and left[executor]:
            left[executor] -= 1
            choice.ids.append(job_id)
        else:
            choice.more = True
            if len(choice.ids) >= request.limit:
                break
    return choice
