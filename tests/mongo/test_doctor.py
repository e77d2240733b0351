"""``ratchet doctor`` on MongoDB: a sound database, indexes that others changed, and servers that refuse to tell."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from pymongo.errors import OperationFailure

from ratchet import Scheduler
from ratchet.cli import main
from ratchet.errors import StorePermanentError
from ratchet.spi.doctor import Level
from ratchet.spi.store import NodeInfo
from ratchet_mongo import examining
from ratchet_mongo.documents import Document
from ratchet_mongo.examining import Deployment
from ratchet_mongo.plans import plan_of
from tests.field_cases.kit import wait_until
from tests.mongo.conftest import server_or_skip
from tests.mongo.explaining import Recorder

CHECKS = {
    "server", "deployment", "transactions", "change streams", "write concern", "indexes", "plans", "reachable",
    "clock", "capabilities", "nodes",
}  # fmt: skip


def doctor(capsys: pytest.CaptureFixture[str], url: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    """The exit code, and check -> (level, sentence)s."""
    capsys.readouterr()
    code = main(["doctor", "--json", "--url", url])
    found: dict[str, list[tuple[str, str]]] = {}
    for each in json.loads(capsys.readouterr().out)["findings"]:
        found.setdefault(each["name"], []).append((each["level"], each["told"]))
    return code, found


@pytest.mark.mongodb_needs("explain")
def test_a_sound_database_is_well(
    open_store: Callable[..., Any], mongo_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every check of a database with a live node is ok on a replica set, and the exit code is 0."""
    open_store().heartbeat(NodeInfo(incarnation="i1", name="n1"))
    code, found = doctor(capsys, mongo_url)
    assert code == 0
    assert set(found) == CHECKS
    kind = examining.deployment_of(open_store().database.client.admin.command("hello"))
    odd = {name for name, told in found.items() if any(level != "ok" for level, _ in told)}
    assert odd == ({"deployment"} if kind is Deployment.STANDALONE else set())


@pytest.mark.mongodb_needs("explain")
def test_looking_makes_nothing(
    open_store: Callable[..., Any], mongo_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A database that is not there, perhaps because of a misspelt name, is told and not made."""
    code, found = doctor(capsys, mongo_url)
    assert code == 0
    assert found["indexes"][0][0] == "warning"
    assert "see to the URL" in found["indexes"][0][1]
    assert open_store().database.db.list_collection_names() == []


@pytest.mark.mongodb_needs("explain")
def test_a_standalone_server_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """On a standalone server the doctor warns, and says that there are no transactions and no change streams."""
    code, found = doctor(capsys, server_or_skip(standalone=True).url("doctor"))
    assert code == 0
    assert found["deployment"][0][0] == "warning"
    assert found["transactions"][0][1].startswith("none")
    assert found["change streams"][0][1].startswith("none")


def replaced(jobs: Any, name: str, keys: Any, **options: Any) -> None:
    jobs.drop_index(name)
    jobs.create_index(keys, name=name, **options)


CLAIM = [("lane", 1), ("scheduled_time", 1), ("_id", 1)]
SPOILED: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "missing": (lambda jobs: jobs.drop_index("created"), "plans", "sorts in memory"),
    "other keys": (lambda jobs: replaced(jobs, "claim", [("lane", 1)]), "indexes", "dropIndex('claim')"),
    "other filter": (lambda jobs: replaced(jobs, "claim", CLAIM), "indexes", "dropIndex('claim')"),
    "unique": (lambda jobs: jobs.create_index("target", unique=True), "indexes", "makes writes fail"),
    "ttl": (lambda jobs: jobs.create_index("created_at", expireAfterSeconds=9), "indexes", "deletes"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_what_others_did_to_the_indexes_is_found(
    open_store: Callable[..., Any], mongo_url: str, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """A missing, changed, unique or expiring index is an error that says what to do, with exit code 1."""
    spoil, check, words = SPOILED[name]
    store = open_store()
    store.counts()
    spoil(store.database.jobs)
    code, found = doctor(capsys, mongo_url)
    assert code == 1
    assert any(level == "error" and words in told for level, told in found[check])


@pytest.mark.mongodb_needs("explain")
def test_a_start_makes_missing_indexes(open_store: Callable[..., Any]) -> None:
    """The first use by a new process makes an index that is missing, and its quick checks find nothing wrong."""
    store = open_store()
    store.counts()
    store.database.jobs.drop_index("claim")
    found = open_store().checks(quick=True)
    assert {each.level for each in found} == {Level.OK}
    assert "claim" in store.database.jobs.index_information()


@pytest.mark.parametrize("name", ["claim", "of somebody else"])
def test_a_start_refuses_a_conflicting_index(open_store: Callable[..., Any], name: str) -> None:
    """An index that is in the way, by its name or its definition, is named with the command that removes it."""
    store = open_store()
    store.counts()
    jobs = store.database.jobs
    jobs.drop_index("claim")
    if name == "claim":
        jobs.create_index([("lane", 1)], name=name)
    else:
        jobs.create_index(CLAIM, name=name, partialFilterExpression={"lane": {"$exists": True}})
    with pytest.raises(StorePermanentError, match=rf"dropIndex\('{name}'\)"):
        open_store().counts()
    jobs.drop_index(name)
    assert open_store().counts()


class Refusing:
    """A database whose server answers one command with an error."""

    def __init__(self, db: Any, command: str, code: int) -> None:
        self._db, self._command, self._code = db, command, code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def command(self, command: Any, *arguments: Any, **options: Any) -> Any:
        if command == self._command:
            raise OperationFailure("refused", self._code)
        return self._db.command(command, *arguments, **options)


@pytest.mark.parametrize("code", [13, 59, 303])
def test_a_server_without_explain_is_no_obstacle(
    open_store: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Where `explain` is forbidden or unknown, the doctor says that nothing was checked, and a start says nothing."""
    from ratchet_mongo._sync.database import MongoDatabase

    store = open_store()
    store.counts()
    db = store.database.db
    monkeypatch.setattr(MongoDatabase, "db", property(lambda _: Refusing(db, "explain", code)))
    (plans,) = (each for each in store.checks() if each.name == "plans")
    assert plans.level is Level.WARNING
    assert {each.level for each in store.checks(quick=True)} == {Level.OK}


def test_no_majority_is_an_error(open_store: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where writes are not acknowledged by a majority, that is an error of its own."""
    from pymongo.collection import Collection

    store = open_store()
    store.counts()

    def late(*arguments: Any, **options: Any) -> Any:
        raise OperationFailure("waiting for replication timed out", 100)

    monkeypatch.setattr(Collection, "delete_one", late)
    (concern,) = (each for each in store.checks() if each.name == "write concern")
    assert concern.level is Level.ERROR


def test_a_start_takes_eight_round_trips(mongo_url: str) -> None:
    """What a starting node has checked costs it eight round trips, whatever is stored."""
    from pymongo import MongoClient

    from ratchet_mongo import MongoJobStore

    recorder = Recorder()
    client: MongoClient[Document] = MongoClient(mongo_url, event_listeners=[recorder])
    with client:
        store = MongoJobStore.from_client(client, mongo_url.rpartition("/")[2])
        store.counts()
        store.now()
        with recorder.recording() as sent:
            store.checks(quick=True)
    assert len(sent) == 8


@pytest.mark.parametrize(
    ("told", "level"),
    [
        ("5.0.31", Level.ERROR),
        ("4.4.0", Level.ERROR),
        ("6.0.0", Level.OK),
        ("6.0.14-rc1", Level.OK),
        ("8.2.11", Level.OK),
        ("10.0.0", Level.OK),
    ],
)
def test_versions(told: str, level: Level) -> None:
    """Servers below 6.0 are an error."""
    assert examining.version(told).level is level


@pytest.mark.parametrize(
    ("hello", "kind"),
    [
        ({"isWritablePrimary": True}, Deployment.STANDALONE),
        ({"setName": "rs0"}, Deployment.REPLICA_SET),
        ({"msg": "isdbgrid"}, Deployment.SHARDED),
    ],
)
def test_kinds_of_deployment(hello: Document, kind: Deployment) -> None:
    """What a server says of itself tells which kind of deployment it belongs to."""
    assert examining.deployment_of(hello) is kind


@pytest.mark.parametrize(
    ("description", "wrong"),
    [
        (None, False),
        ({"key": {"_id": 1}}, False),
        ({"key": {"_id": "hashed"}}, False),
        ({"key": {"status": 1}}, True),
        ({"key": {"_id": 1, "status": 1}}, True),
        ({"key": {"status": 1}, "dropped": True}, False),
    ],
)
def test_shard_keys(description: Document | None, wrong: bool) -> None:
    """A collection is not sharded, or by `_id` alone; anything else is told with the remedy."""
    told = examining.sharding("ratchet_jobs", description)
    assert (told is not None) == wrong
    assert told is None or "hashed" in told


PLAN = {"stage": "FETCH", "inputStage": {"stage": "IXSCAN", "indexName": "claim"}}
LOST = {"stage": "SORT", "inputStage": {"stage": "COLLSCAN"}}


@pytest.mark.parametrize(
    "answer",
    [
        {"queryPlanner": {"winningPlan": PLAN, "rejectedPlans": [LOST]}},
        {"queryPlanner": {"winningPlan": {"queryPlan": PLAN, "slotBasedPlan": {"stages": "[1] scan"}}}},
        {
            "stages": [
                {"$cursor": {"queryPlanner": {"winningPlan": PLAN, "rejectedPlans": [LOST]}}},
                {"$x": {}},
            ]
        },
        {
            "queryPlanner": {
                "winningPlan": {
                    "stage": "SHARD_MERGE",
                    "shards": [{"shardName": "a", "winningPlan": PLAN, "rejectedPlans": [LOST]}],
                }
            }
        },
        {"shards": {"a": {"queryPlanner": {"winningPlan": PLAN, "rejectedPlans": [LOST]}}}},
    ],
    ids=["classic", "slots", "aggregate", "sharded", "sharded aggregate"],
)
def test_plans_are_read_in_every_shape(answer: Document) -> None:
    """Of an explanation only the winning plan counts, whatever engine or cluster it comes from."""
    plan = plan_of(answer)
    assert plan.indexes == {"claim"}
    assert {"FETCH", "IXSCAN"} <= plan.stages
    assert not plan.scans
    assert not plan.sorts


@pytest.mark.mongodb_needs("explain")
@pytest.mark.parametrize("spoiled", [False, True])
def test_a_node_says_at_its_start_what_is_not_well(
    open_store: Callable[..., Any], caplog: pytest.LogCaptureFixture, spoiled: bool
) -> None:
    """A real node on a sound database starts without a word; where an index would delete jobs it warns, and runs."""
    store = open_store()
    store.counts()
    if spoiled:
        store.database.jobs.create_index("created_at", name="mine", expireAfterSeconds=10**8)
    with (
        caplog.at_level(logging.DEBUG, logger="ratchet.doctor"),
        Scheduler(open_store(), allow=["json"]) as scheduler,
    ):
        assert scheduler.enqueue(json.dumps, 1).submit().result(timeout=20) == "1"
        wait_until(lambda: "the store was checked" in caplog.text, 20, "the look at the store")
    said = [each for each in caplog.records if each.name == "ratchet.doctor"]
    told = [each.getMessage() for each in said if each.levelno >= logging.WARNING]
    assert len(told) == spoiled
    assert all("mine of ratchet_jobs" in each for each in told)


def test_a_node_does_not_start_where_its_indexes_cannot_be_made(open_store: Callable[..., Any]) -> None:
    """A conflicting index ends the start with the sentence that says which to drop."""
    store = open_store()
    store.counts()
    replaced(store.database.jobs, "claim", [("lane", 1)])
    scheduler = Scheduler(open_store(), allow=["json"])
    with pytest.raises(StorePermanentError, match=r"dropIndex\('claim'\)"):
        scheduler.start()
    scheduler.close()
