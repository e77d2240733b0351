"""Every hot query runs on an index and reads no more than it must (specification, section 3).

At full size (``RATCHET_STORM_SCALE=1``) on 100,000 settled and 10,000 pending jobs, by default on a tenth.
Run with ``-s`` it prints what the server said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from conformance_tests.driver import at_once, new_job, request, returned
from ratchet.domain.job import JobType
from ratchet.domain.lifecycle import Status, Trigger
from ratchet.domain.settlement import Change, RunCallback, Settlement, Submit
from ratchet.spi.store import NodeInfo, RecoverRequest, Selection
from ratchet_mongo.choosing import branches, following, head
from ratchet_mongo.documents import Document
from ratchet_mongo.hot import HotQuery, hot_queries
from ratchet_mongo.indexes import INDEXES
from ratchet_mongo.plans import Plan
from ratchet_mongo.selections import ORDERS, Cursor, parts, where
from tests.conftest import NOT_RUN
from tests.mongo import servers
from tests.mongo.conftest import needs
from tests.mongo.explaining import (
    NOW,
    Recorder,
    add_pending,
    add_settled,
    add_the_rest,
    explained,
    questions,
)

pytestmark = pytest.mark.timeout(1800)  # at full size, on a busy machine

LIMIT = 50
EXECUTORS = ["threads", "async"]


@dataclass
class Filled:
    """A filled database, and what a claim cost while it was being filled.

    Attributes:
        claims: jobs settled -> keys and documents examined by all branches of a claim together.
        told: lines for the report.
    """

    store: Any
    recorder: Recorder
    claims: dict[int, tuple[int, int]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    @property
    def database(self) -> Any:
        return self.store.database

    def explained(self, name: str, command: Document) -> Plan:
        """The server's plan, noted for the report."""
        plan = explained(self.database, command)
        how = " ".join(sorted(plan.indexes)) or "none"
        self.told.append(f"{name:34} {plan.keys:7,} {plan.documents:7,} {plan.returned:7,}  {how}")
        return plan


def claim_branches(jobs: str, lane: str) -> Iterator[tuple[int, Document]]:
    """How many rows each look for a lane may read, and the look."""
    due, *others = head(NOW, {}, LIMIT + 1)
    heads = [{"$match": {"lane": lane, **due["$match"]}}, *others]
    for stages, rows in ((heads, LIMIT + 1), (following([lane], NOW, {}), 1)):
        yield rows, {"aggregate": jobs, "pipeline": stages[:-1], "cursor": {}}


@pytest.fixture(scope="module")
def filled(scaled: Callable[..., int]) -> Iterator[Filled]:
    """Filled in steps: first the pending jobs, then more and more settled ones, each step measured."""
    from pymongo import MongoClient

    from ratchet_mongo import MongoJobStore

    needs("explain")
    try:
        url = servers.database_url(f"t{UUID(int=57).hex}")
    except servers.NoServer as reason:
        pytest.skip(f"{NOT_RUN}mongodb: {reason}")
    recorder = Recorder()
    client: MongoClient[Document] = MongoClient(url, event_listeners=[recorder])
    client.drop_database(url.rpartition("/")[2])
    made = Filled(MongoJobStore.from_client(client, url.rpartition("/")[2]), recorder)
    made.store.counts()
    database = made.database
    add_pending(database, scaled(10_000))
    add_the_rest(database)
    settled = 0
    for wanted in (0, scaled(1_000), scaled(10_000), scaled(100_000)):
        add_settled(database, settled, wanted)
        settled = wanted
        looks = [
            explained(database, look)
            for branch in branches(EXECUTORS)
            for _, look in claim_branches(database.jobs.name, branch.lane)
        ]
        made.claims[wanted] = sum(plan.keys or 0 for plan in looks), sum(p.documents or 0 for p in looks)
    yield made
    _report(made, scaled(10_000))
    client.drop_database(database.name)
    client.close()


def _report(made: Filled, pending: int) -> None:
    version = made.store.database.server_version()
    print(f"\n\n{max(made.claims):,} settled and {pending:,} pending jobs; the server calls itself {version}")
    print(f"\na claim of {LIMIT}, all {len(branches(EXECUTORS))} branches together, two looks each")
    print(f"{'settled':>10} {'keys':>7} {'docs':>7}")
    for settled, (keys, docs) in made.claims.items():
        print(f"{settled:10,} {keys:7,} {docs:7,}")
    print(f"\n{'query':34} {'keys':>7} {'docs':>7} {'found':>7}  index")
    print("\n".join(made.told))


# -- claims ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", [branch.lane for branch in branches(EXECUTORS)])
def test_a_claim_reads_the_head_of_each_lane(filled: Filled, lane: str) -> None:
    """Each branch of a claim is an index scan of at most limit + 1 keys, without a sort, however much is settled."""
    for rows, look in claim_branches(filled.database.jobs.name, lane):
        plan = filled.explained(f"claim of {lane}, {'due' if rows > 1 else 'next'}", look)
        assert plan.indexes == {"claim"}
        assert not plan.scans
        assert not plan.sorts
        assert plan.returned == rows
        assert plan.keys == plan.documents == rows


def test_a_claim_costs_the_same_however_much_is_settled(filled: Filled) -> None:
    """From no settled job to a great many, a claim examines exactly as many keys and documents."""
    assert len(filled.claims) == 4
    assert len(set(filled.claims.values())) == 1
    keys, documents = next(iter(filled.claims.values()))
    assert 0 < keys <= len(branches(EXECUTORS)) * (LIMIT + 1 + 1)
    assert documents <= keys


# -- what is repeated -----------------------------------------------------------------------------


def all_hot_queries() -> list[HotQuery]:
    return hot_queries(lambda name: f"ratchet_{name}", NOW)


# Owners are few, and the planner may read those of running jobs from either index: both hold only these.
ALSO = {"owners of running jobs": "status"}


@pytest.mark.parametrize("query", all_hot_queries(), ids=lambda query: query.name)
def test_hot_queries_read_what_they_return(filled: Filled, query: HotQuery) -> None:
    """Each hot query runs on its index, unsorted, and examines no more keys and documents than it returns, and one."""
    plan = filled.explained(query.name, query.command)
    assert plan.indexes <= {query.index, ALSO.get(query.name)}
    assert plan.indexes
    assert not plan.scans
    assert not plan.sorts
    assert plan.keys is not None
    assert plan.documents is not None
    assert plan.returned  # of each there is something, or the figures would say nothing
    assert plan.keys <= plan.returned + 1
    assert plan.documents <= plan.returned


def everything(store: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What nodes and submitters do again and again, a little of each."""
    jobs = [new_job(idempotency_key=f"e{n}", business_key=f"e{n}") for n in range(3)]
    yield "submit with keys", lambda: store.insert(jobs[:1])
    yield "submit a list", lambda: store.insert(jobs[1:])
    yield "submit again", lambda: store.insert(jobs[:1])
    yield "look up keys", lambda: [store.find_by_key(idempotency="e0"), store.find_by_key(business="e1")]
    yield "heartbeat", lambda: store.heartbeat(NodeInfo(incarnation="me", name="me"))
    claims: list[Any] = []
    wanted = {"threads": 5, "async": 5}
    yield "claim", lambda: claims.extend(store.claim(request("me", limits=wanted, limit=8)).claims)
    yield "claim by tag", lambda: store.claim(request("me", limit=1, require_tags=frozenset({"t"})))
    yield "claim by type", lambda: store.claim(request("me", limit=1, types=frozenset({JobType.SINGLE})))
    yield "held", lambda: store.held("me")
    yield "read", lambda: [store.get(jobs[0].id), store.get_many([claim.job_id for claim in claims])]

    def ended(trigger: Trigger, n: int, **fields: Any) -> Change:
        return Change(trigger, claims[n].job_id, claims[n].claim_seq, **fields)

    told = RunCallback("on_success", "t", "a")
    yield (
        "settle",
        lambda: store.settle_many(
            [
                Settlement(ended(Trigger.SUCCEED, 0), (told,)),
                Settlement(ended(Trigger.RETRY, 1, delay=timedelta(), attempts=1)),
                Settlement(ended(Trigger.FAIL, 2, error="e", attempts=1)),
            ]
        ),
    )
    yield (
        "settle with a successor",
        lambda: store.settle(Settlement(ended(Trigger.SUCCEED, 3), (Submit(new_job()),))),
    )
    yield "settle again", lambda: store.settle(Settlement(ended(Trigger.SUCCEED, 0)))
    yield "callback done", lambda: store.callback_done(claims[0].job_id, claims[0].claim_seq, "on_success")
    yield "take callbacks", lambda: store.take_callbacks("me", grace=timedelta(seconds=60), limit=2)
    yield (
        "recover",
        lambda: store.recover(RecoverRequest(grace=timedelta(seconds=60), crash_budget=3, limit=5)),
    )
    yield "pause", lambda: store.apply(Change(Trigger.PAUSE, jobs[1].id))
    yield "requeue", lambda: store.apply(Change(Trigger.REQUEUE, claims[2].job_id))
    yield "requeue many", lambda: store.apply_where(Selection(), Trigger.REQUEUE, limit=3, on_conflict="skip")
    yield "history", lambda: store.history(claims[0].job_id)
    yield "page", lambda: store.find(Selection(), limit=LIMIT)
    yield "delete", lambda: store.delete([claims[0].job_id])


WHOLE = {"ratchet_nodes"}
"""Collections that are asked for as a whole: one document for each running node."""


def test_whatever_the_store_sends_is_on_an_index(filled: Filled) -> None:
    """Nothing that nodes and submitters send scans a collection or sorts, or reads much more than it returns."""
    seen = 0
    for name, action in everything(filled.store):
        with filled.recorder.recording() as sent:
            action()
        assert sent, name
        for command in sent:
            for question in questions(command):
                seen += 1
                if _names_one(question):
                    continue
                plan = explained(filled.database, question)
                assert not plan.sorts, (name, question)
                if next(iter(question.values())) in WHOLE:
                    continue
                assert not plan.scans, (name, question)
                assert plan.keys is not None
                assert plan.returned is not None
                assert plan.documents is not None
                # `_id: {$in: ...}` looks one key beyond each; owners are answered once, however many jobs they run.
                most = 2 * max(plan.returned, _ids(question)) + 2
                assert plan.keys <= most, (name, question, plan)
                assert plan.documents <= most, (name, question, plan)
    assert seen > 100


def _names_one(question: Document) -> bool:
    """True for a look by one `_id` with a guard, which cannot read more than one document.

    MongoDB tries the indexes that fit for a few steps, and the one by `_id` has ended after the first; the
    server that stands in does not try, and may explain an index of the guard's fields instead.
    """
    return isinstance(question.get("filter", {}).get("_id"), UUID | str)


def _ids(question: Document) -> int:
    wanted = question.get("filter", {}).get("_id")
    return len(wanted["$in"]) if isinstance(wanted, dict) and "$in" in wanted else 1


# -- pages ----------------------------------------------------------------------------------------

SELECTIONS = {
    "all": Selection(),
    "one status": Selection(statuses=frozenset({Status.SUCCEEDED})),
    "two statuses": Selection(statuses=frozenset({Status.SUCCEEDED, Status.PENDING})),
    "tag": Selection(tags=frozenset({"t7"})),
    "two tags": Selection(tags=frozenset({"t", "t7"})),
    "business key": Selection(business_key="k7"),
    "principal": Selection(principal="p7"),
}
BY_CREATION = {"created_desc", "created_asc"}
IN_ORDER: dict[str, set[Any]] = dict.fromkeys(SELECTIONS, BY_CREATION) | {"all": set(ORDERS)}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", SELECTIONS)
def test_pages_are_read_in_the_order_of_an_index(filled: Filled, name: str, order: Any) -> None:
    """No page scans the collection; whatever is chosen, by creation nothing is sorted, and everything by any order."""
    part = parts(where(SELECTIONS[name]), order, None)[0]
    command: Document = {"find": filled.database.jobs.name, "filter": part.where}
    command |= {"sort": dict(part.sort), "limit": LIMIT}
    plan = filled.explained(f"page: {name}, {order}", command)
    assert not plan.scans
    if order in IN_ORDER[name]:
        assert not plan.sorts
        assert plan.keys is not None
        assert plan.keys <= LIMIT + 1 or name == "two tags"


@pytest.mark.parametrize("order", ["created_desc", "created_asc"])
def test_a_second_page_starts_where_the_first_ended(filled: Filled, order: Any) -> None:
    """The cursor is a bound of the index scan: no page gets dearer than the first."""
    way = ORDERS[order][1]
    jobs = filled.database.jobs
    doc = next(iter(jobs.find({}).sort([("created_at", way), ("_id", 1)]).skip(1000).limit(1)))
    for part in parts(where(Selection()), order, Cursor.after(doc, order)):
        # The server that stands in gives up its bounds beside a condition that is not in the index; MongoDB does not.
        bounded = {name: value for name, value in part.where.items() if name != "status"}
        command = {"find": jobs.name, "filter": bounded, "sort": dict(part.sort), "limit": LIMIT}
        plan = filled.explained(f"second page, {order}", command)
        assert not plan.scans
        assert not plan.sorts
        assert plan.keys is not None
        assert plan.keys <= LIMIT + 2


# -- the indexes themselves -----------------------------------------------------------------------


def test_partial_filters_are_legal_on_every_server() -> None:
    """Partial filters use only what real servers take from 6.0 on, and no index is unique, which shards refuse."""
    allowed = {"$exists", "$in", "$or", "$eq", "$gt", "$gte", "$lt", "$lte"}

    def operators(value: Any) -> set[str]:
        if isinstance(value, dict):
            return {k for k in value if k.startswith("$")}.union(*map(operators, value.values()))
        if isinstance(value, list):
            return set().union(*map(operators, value))
        return set()

    for index in INDEXES:
        assert operators(index.only or {}) <= allowed, index.name
        assert all(value is True for key, value in _exists(index.only or {})), index.name
        assert not hasattr(index, "unique")


def _exists(only: Any) -> list[tuple[str, Any]]:
    return [
        (key, value["$exists"])
        for key, value in only.items()
        if isinstance(value, dict) and "$exists" in value
    ]


def test_indexes_are_made_without_options_that_not_every_deployment_takes(
    open_store: Callable[..., Any],
) -> None:
    """On the server no index is unique, sparse or expiring: nothing that a collection sharded by `_id` refuses."""
    store = open_store()
    store.counts()
    for index in INDEXES:
        made = store.database.db[f"ratchet_{index.collection}"].index_information()[index.name]
        assert set(made) <= {"v", "key", "partialFilterExpression"}


def test_every_index_serves_a_hot_query() -> None:
    """No index is kept for nothing: each is the one of some hot query."""
    assert {index.name for index in INDEXES} == {query.index for query in all_hot_queries()} - {"_id_"}


def test_concurrent_starts_create_the_indexes_once(open_store: Callable[..., Any]) -> None:
    """Eight handles that start at the same moment on an empty database all work, and each index is there once."""
    stores = [open_store() for _ in range(8)]
    returned(at_once(*(store.counts for store in stores)))
    names = set(stores[0].database.jobs.index_information())
    assert names == {index.name for index in INDEXES if index.collection == "jobs"} | {"_id_"}
