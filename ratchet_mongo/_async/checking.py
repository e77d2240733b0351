"""What ``ratchet doctor``, and a running node, find out about a MongoDB database; see `ratchet_mongo.examining`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bson import ObjectId
from pymongo import WriteConcern

from ratchet.errors import StoreError, StorePermanentError
from ratchet.spi.doctor import Finding, Level
from ratchet_mongo import examining
from ratchet_mongo._async.database import OPTIONS, MongoDatabase
from ratchet_mongo.documents import Document
from ratchet_mongo.examining import Deployment
from ratchet_mongo.hot import HotQuery, hot_queries
from ratchet_mongo.indexes import INDEXES
from ratchet_mongo.plans import Plan, plan_of

_ACKNOWLEDGED_WITHIN: Final = 3_000
"""Milliseconds for a majority to acknowledge a write."""
_QUICK: Final = frozenset({"claim", "held claims", "a business key", "a job"})
"""The hot queries that a running node has explained: each costs it a round trip."""


async def checks(database: MongoDatabase, *, quick: bool) -> list[Finding]:
    """See `ratchet.spi.doctor.CheckedStore.checks`."""
    if not quick:
        database.leave_indexes()
    collections = {
        "jobs": database.jobs,
        "business_keys": database.business,
        "idempotency_keys": database.idempotency,
        "operations": database.operations,
        "executions": database.executions,
        "nodes": database.nodes,
    }
    names = {name: str(collection.name) for name, collection in collections.items()}
    found = [examining.version(await database.server_version())]
    client = database.client
    kind = examining.deployment_of(await database.run(lambda: client.admin.command("hello")))
    if not quick:
        found += examining.deployment(kind)
        found.append(await _acknowledged(database))
    indexed = {index.collection for index in INDEXES}
    looked_at = {name: each for name, each in collections.items() if not quick or name in indexed}
    found += examining.indexes(names, await _described(database, looked_at))
    if kind is Deployment.SHARDED:
        found += await _sharded(database, names)
    return found + await _plans(database, names, quick=quick)


async def _acknowledged(database: MongoDatabase) -> Finding:
    """Whether a majority acknowledges writes, asked with one that changes nothing."""
    concern = WriteConcern(w="majority", j=True, wtimeout=_ACKNOWLEDGED_WITHIN)
    nodes = database.nodes.with_options(write_concern=concern)
    nothing = ObjectId()  # nodes have texts for ids
    try:
        await database.run(lambda: nodes.delete_one({"_id": nothing}))
    except StoreError as error:
        return Finding(
            "write concern", Level.ERROR, f"no write is acknowledged by a majority, journaled: {error}"
        )
    return Finding("write concern", Level.OK, "every write is acknowledged by a majority, journaled")


async def _described(
    database: MongoDatabase, collections: Mapping[str, Any]
) -> dict[str, Mapping[str, Mapping[str, Any]]]:
    """The indexes of all collections, as the server describes them."""
    found = {}
    for collection in collections.values():
        found[collection.name] = await database.run(lambda c=collection: c.index_information())  # type: ignore[misc]
    return found


async def _sharded(database: MongoDatabase, names: Mapping[str, str]) -> list[Finding]:
    """How the collections are sharded, where one may look."""
    described = database.client.get_database("config", **OPTIONS)["collections"]
    wrong = []
    for name in names.values():
        try:
            entry = await database.run(lambda n=name: described.find_one({"_id": f"{database.name}.{n}"}))  # type: ignore[misc]
        except StorePermanentError:
            told = "this user may not read config.collections; see to it that none of Ratchet's is sharded but by _id"
            return [Finding("sharding", Level.WARNING, told)]
        wrong.append(examining.sharding(name, entry))
    found = [Finding("sharding", Level.ERROR, told) for told in wrong if told is not None]
    return found or [Finding("sharding", Level.OK, "no collection is sharded but by _id")]


async def _plans(database: MongoDatabase, names: Mapping[str, str], *, quick: bool) -> list[Finding]:
    explained: list[tuple[HotQuery, Plan]] = []
    for query in hot_queries(names.__getitem__, await database.now()):
        if quick and query.name not in _QUICK:
            continue
        try:
            explained.append((query, plan_of(await _explain(database, query.command))))
        except StorePermanentError as error:
            if quick:
                return []  # not every deployment offers it, and not to everybody
            told = f"the plans were not checked, because explain is not offered here: {error}"
            return [Finding("plans", Level.WARNING, told)]
    return list(examining.plans(explained))


async def _explain(database: MongoDatabase, command: Document) -> Document:
    """The plan that the server would choose; nothing is executed."""
    answer: Document = await database.run(
        lambda: database.db.command(
            "explain", command, verbosity="queryPlanner", codec_options=OPTIONS["codec_options"]
        )
    )
    return answer
