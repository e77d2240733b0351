"""Every hot query runs on an index and reads no more than it must (specification, section 3)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from ratchet.domain.ids import new_id
from ratchet.domain.lifecycle import Status
from ratchet.spi.store import Selection
from ratchet_mongo._sync.database import OPTIONS
from ratchet_mongo.choosing import branches, following, head
from ratchet_mongo.documents import Document
from ratchet_mongo.indexes import INDEXES
from ratchet_mongo.moves import GUARD_VIEW
from ratchet_mongo.selections import ORDERS, Cursor, parts, where
from tests.conftest import NOT_RUN
from tests.mongo import servers

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LIMIT = 50


def filled(database: Any, *, settled: int, pending: int) -> None:
    """Many settled jobs, fewer pending ones of all priorities, some running, some with callbacks."""

    def job(number: int, **fields: Any) -> Document:
        base = {
            "_id": new_id(), "target": "m:f", "payload": "[]", "format": 1, "type": "SINGLE",
            "executor": "threads", "priority": number % 5, "created_at": NOW - timedelta(seconds=number),
            "updated_at": NOW, "scheduled_time": NOW - timedelta(seconds=number), "version": 0, "claim_seq": 1,
            "attempts": 0, "crash_count": 0, "max_retries": 0, "timeout": 1, "fence": 0,
        }  # fmt: skip
        return base | fields

    docs = [
        job(n, status=Status.SUCCEEDED.value, ended_at=NOW - timedelta(seconds=n), picked_by=f"n{n % 7}")
        for n in range(settled)
    ]
    for n in range(pending):
        lane = f"{'threads' if n % 2 else 'async'}/{n % 5}"
        later = timedelta(days=1) if n % 3 == 0 else timedelta()
        fields: Document = {"lane": lane, "executor": lane[:-2], "tags": ["t"], "business_key": f"k{n}"}
        docs.append(
            job(
                n,
                status=Status.PENDING.value,
                **fields | {"scheduled_time": NOW + later - timedelta(seconds=n)},
            )
        )
    docs += [
        job(n, status=Status.RUNNING.value, picked_by=f"n{n % 3}", picked_at=NOW - timedelta(seconds=n))
        for n in range(200)
    ]
    docs += [
        job(
            n,
            status=Status.FAILED.value,
            ended_at=NOW,
            callbacks=[
                {"owner": "dead", "claim_seq": 1, "name": "on_failure", "target": "t", "argument": ""}
            ],
        )
        for n in range(20)
    ]
    for start in range(0, len(docs), 5000):
        database.jobs.insert_many(docs[start : start + 5000])


@pytest.fixture(scope="module")
def database() -> Iterator[Any]:
    """A filled database."""
    from ratchet_mongo import MongoJobStore

    try:
        url = servers.database_url(f"t{new_id().hex}")
    except servers.NoServer as reason:
        pytest.skip(f"{NOT_RUN}mongodb: {reason}")
    store = MongoJobStore.from_url(url)
    store.counts()
    full = os.environ.get("RATCHET_STORM_SCALE") == "1.0"
    filled(store.database, settled=100_000 if full else 5_000, pending=10_000 if full else 1_000)
    yield store.database
    store.close()


def explained(database: Any, command: Document) -> tuple[set[str], int, int, int]:
    """The stages of the winning plan; keys and documents examined; documents returned."""
    found = database.db.command(
        "explain", command, verbosity="executionStats", codec_options=OPTIONS["codec_options"]
    )
    if "stages" in found:
        found = found["stages"][0]["$cursor"]
    plan, stats = found["queryPlanner"]["winningPlan"], found["executionStats"]
    return _stages(plan), stats["totalKeysExamined"], stats["totalDocsExamined"], stats["nReturned"]


def _stages(plan: Any) -> set[str]:
    if isinstance(plan, dict):
        found = {plan["stage"]} if isinstance(plan.get("stage"), str) else set()
        if "indexName" in plan:
            found.add(f"index:{plan['indexName']}")
        return found.union(*map(_stages, plan.values())) if plan else found
    if isinstance(plan, list):
        return set().union(*map(_stages, plan))
    return set()


def jobs(database: Any) -> str:
    return str(database.jobs.name)


@pytest.mark.parametrize("lane", [b.lane for b in branches(["threads", "async"])])
def test_a_claim_reads_the_head_of_each_lane(database: Any, lane: str) -> None:
    """Each branch of a claim is an index scan of at most limit + 1 keys, without a sort, however much is settled."""
    for stages, rows in ((head(NOW, {}, LIMIT + 1), LIMIT + 1), (following(NOW, {}), 1)):
        pipeline = [{"$match": {"lane": lane, **stages[0]["$match"]}}, *stages[1:3]]
        command = {"aggregate": jobs(database), "pipeline": pipeline, "cursor": {}}
        plan, keys, docs, _ = explained(database, command)
        assert "index:claim" in plan
        assert not plan & {"COLLSCAN", "SORT"}
        assert keys <= rows + 1
        assert docs <= rows + 1


QUERIES: dict[str, tuple[str, Document]] = {
    "orphans of an owner": ("running", {"status": Status.RUNNING.value, "picked_by": "n1"}),
    "claims without a heartbeat": (
        "running",
        {
            "status": Status.RUNNING.value,
            "picked_by": "n1",
            "picked_at": {"$lt": NOW - timedelta(seconds=100)},
        },
    ),
    "callbacks of an owner": ("callbacks", {"callbacks.owner": "dead"}),
    "settlements to complete": ("outbox", {"outbox.at": {"$exists": True}}),
    "members of an operation": ("hold", {"hold.id": UUID(int=1)}),
}


@pytest.mark.parametrize("name", QUERIES)
def test_sweeps_read_only_what_they_return(database: Any, name: str) -> None:
    """Orphan scans, callbacks and sweeps examine as many keys and documents as they return."""
    index, query = QUERIES[name]
    plan, keys, docs, returned = explained(database, {"find": jobs(database), "filter": query})
    assert f"index:{index}" in plan
    assert not plan & {"COLLSCAN", "SORT"}
    assert keys <= returned + 1
    assert docs <= returned


def test_guards_are_read_by_id(database: Any) -> None:
    """The jobs of a settlement are read by `_id` alone."""
    ids = [doc["_id"] for doc in database.jobs.find({}, {"_id": 1}).limit(LIMIT)]
    command = {"find": jobs(database), "filter": {"_id": {"$in": ids}}, "projection": GUARD_VIEW}
    plan, keys, docs, returned = explained(database, command)
    assert "COLLSCAN" not in plan
    assert returned == LIMIT
    assert keys <= 2 * LIMIT + 1
    assert docs <= LIMIT


SELECTIONS = {
    "all": Selection(),
    "one status": Selection(statuses=frozenset({Status.SUCCEEDED})),
    "tag": Selection(tags=frozenset({"t"})),
    "business key": Selection(business_key="k7"),
}


HOT: dict[str, set[Any]] = {"all": set(ORDERS) - {"created_asc"}, "one status": {"created_desc"}}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", SELECTIONS)
def test_pages_are_read_in_the_order_of_an_index(database: Any, name: str, order: Any) -> None:
    """No page scans the collection; the usual ones are not sorted either: everything, and a status by creation."""
    for part in parts(where(SELECTIONS[name]), order, None):
        command = {
            "find": jobs(database), "filter": part.where, "sort": dict(part.sort), "limit": LIMIT,
        }  # fmt: skip
        plan, keys, _, _ = explained(database, command)
        assert "COLLSCAN" not in plan
        hot = HOT.get(name, set())
        if order in hot and part.where.get("ended_at", "") is not None:
            assert "SORT" not in plan
            assert keys <= LIMIT + 1


def test_a_second_page_starts_where_the_first_ended(database: Any) -> None:
    """The cursor is a bound of the index scan: no page gets dearer than the first."""
    doc = next(iter(database.jobs.find({}).sort([("created_at", -1), ("_id", 1)]).skip(3000).limit(1)))
    cursor = Cursor.after(doc, "created_desc")
    (part,) = parts(where(Selection()), "created_desc", cursor)
    # The server that stands in gives up its bounds beside a condition that is not in the index; MongoDB keeps them.
    bounded = {name: value for name, value in part.where.items() if name != "status"}
    command = {"find": jobs(database), "filter": bounded, "sort": dict(part.sort), "limit": LIMIT}
    plan, keys, _, _ = explained(database, command)
    assert not plan & {"COLLSCAN", "SORT"}
    assert keys <= LIMIT + 2


def test_partial_filters_are_legal_on_every_server() -> None:
    """No partial filter uses $ne, $nin or $not, which real servers refuse; nothing but `_id` is unique."""

    def operators(value: Any) -> set[str]:
        if isinstance(value, dict):
            return {k for k in value if k.startswith("$")}.union(*map(operators, value.values()))
        return set()

    for index in INDEXES:
        assert operators(index.only or {}) <= {"$exists", "$in", "$gt", "$gte", "$lt", "$lte"}
        assert all(value is True for key, value in _exists(index.only or {}))


def _exists(only: Any) -> list[tuple[str, Any]]:
    return [
        (key, value["$exists"])
        for key, value in only.items()
        if isinstance(value, dict) and "$exists" in value
    ]


def test_concurrent_starts_create_the_indexes_once(open_store: Callable[..., Any]) -> None:
    """Eight handles that start at the same moment on an empty database all work, and each index is there once."""
    from conformance_tests.driver import at_once, returned

    stores = [open_store() for _ in range(8)]
    returned(at_once(*(store.counts for store in stores)))
    names = set(stores[0].database.jobs.index_information())
    assert names == {index.name for index in INDEXES if index.collection == "jobs"} | {"_id_"}
