"""The queries that nodes and listings repeat, as commands to explain; each must run on an index. Pure.

``ratchet doctor`` has them explained. The tests explain these and, whatever it may be, all that the store sends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from ratchet.domain.lifecycle import ROWS, Status, Trigger
from ratchet.spi.store import Order, Selection
from ratchet_mongo.choosing import Branch, branches, following, head
from ratchet_mongo.documents import Document
from ratchet_mongo.selections import parts, where

_RUNNING: Final = ROWS[Trigger.CLAIM].targets[0].value
_SOME: Final = UUID(int=0)
_LIMIT: Final = 50


@dataclass(frozen=True, slots=True)
class HotQuery:
    """One query.

    Attributes:
        name: for people.
        index: the one that was made for it.
        command: what `explain` takes.
        sorted: an index must answer it in order; False: no order is asked for.
    """

    name: str
    index: str
    command: Document
    sorted: bool = True


def hot_queries(
    collection: Callable[[str], str], now: datetime, *, lane: Branch | None = None
) -> list[HotQuery]:
    """All of them.

    Args:
        collection: from ``jobs`` to the collection's name.
        now: store time.
        lane: whose jobs are claimed.
    """
    jobs = collection("jobs")
    return [
        *_claim(jobs, now, lane or Branch("threads", 2)),
        *_sweeps(jobs, collection("operations"), now),
        *_keys(collection("business_keys"), collection("idempotency_keys"), jobs),
        *_pages(jobs),
    ]


def _claim(jobs: str, now: datetime, lane: Branch) -> list[HotQuery]:
    lanes = [branch.lane for branch in branches([lane.executor])]
    looks: tuple[tuple[str, Document, list[Document]], ...] = (
        ("claim", {"lane": lane.lane}, head(now, {}, _LIMIT + 1)),
        ("claim: the next", {}, following(lanes, now, {})),
    )
    found = []
    for name, of, stages in looks:
        match, sort, limit = (next(iter(stage.values())) for stage in stages[:3])
        command = {"find": jobs, "filter": {**of, **match}, "sort": sort, "limit": limit}
        found.append(HotQuery(name, "claim", command))
    return found


def _sweeps(jobs: str, operations: str, now: datetime) -> list[HotQuery]:
    owned: Document = {"status": _RUNNING, "picked_by": "a node"}
    there: Document = {"$exists": True}
    queries: list[tuple[str, str, str, Document]] = [
        ("held claims", "running", jobs, owned),
        (
            "orphans without a heartbeat",
            "running",
            jobs,
            {**owned, "picked_at": {"$lt": now - timedelta(minutes=1)}},
        ),
        ("callbacks of an owner", "callbacks", jobs, {"callbacks.owner": "a node"}),
        ("settlements to complete", "outbox", jobs, {"outbox.at": there}),
        ("members of an operation", "hold", jobs, {"hold.id": _SOME}),
        ("jobs not decided upon", "hold", jobs, {"hold.id": there, "hold.at": {"$lt": now}}),
        ("operations to complete", "committed", operations, {"state": "committed"}),
        ("operations that were given up", "age", operations, {"at": {"$lt": now}}),
    ]
    found = [HotQuery(name, index, {"find": of, "filter": f}, sorted=False) for name, index, of, f in queries]
    for name, index, key, only in (
        ("owners of running jobs", "running", "picked_by", {"status": _RUNNING}),
        ("owners of callbacks", "callbacks", "callbacks.owner", {"callbacks.owner": there}),
    ):
        found.append(HotQuery(name, index, {"distinct": jobs, "key": key, "query": only}, sorted=False))
    return found


def _keys(business: str, idempotency: str, jobs: str) -> list[HotQuery]:
    return [
        HotQuery(name, "_id_", {"find": of, "filter": {"_id": key}, "limit": 1}, sorted=False)
        for name, of, key in (
            ("a business key", business, "a key"),
            ("an idempotency key", idempotency, "a key"),
            ("a job", jobs, _SOME),
        )
    ]


def _pages(jobs: str) -> list[HotQuery]:
    failed = frozenset({Status.FAILED})
    pages: list[tuple[str, str, Selection, Order]] = [
        ("page: all, newest first", "created", Selection(), "created_desc"),
        ("page: all, oldest first", "created", Selection(), "created_asc"),
        ("page: all, by end", "ended", Selection(), "ended_desc"),
        ("page: all, by due time", "scheduled", Selection(), "scheduled_asc"),
        ("page: all, by id", "_id_", Selection(), "id_asc"),
        ("page: of a status", "status", Selection(statuses=frozenset({Status.PENDING})), "created_desc"),
        ("page: the dead-letter queue", "failed_ended", Selection(statuses=failed), "ended_desc"),
        ("bulk requeue: failed jobs", "failed", Selection(statuses=failed), "id_asc"),
        ("page: of a tag", "tags", Selection(tags=frozenset({"t"})), "created_desc"),
        ("page: of a business key", "business_key", Selection(business_key="k"), "created_desc"),
        ("page: of a principal", "principal", Selection(principal="p"), "created_desc"),
    ]
    found = []
    for name, index, selection, order in pages:
        first = parts(where(selection), order, None)[0]
        command = {"find": jobs, "filter": first.where, "sort": dict(first.sort), "limit": _LIMIT + 1}
        found.append(HotQuery(name, index, command))
    return found
