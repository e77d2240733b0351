"""What answers of the server mean, as findings for ``ratchet doctor``. Pure.

The server is asked by `ratchet_mongo._async.checking`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from ratchet.spi.doctor import Finding, Level
from ratchet_mongo.documents import Document
from ratchet_mongo.hot import HotQuery
from ratchet_mongo.indexes import INDEXES, Index
from ratchet_mongo.plans import Plan

OLDEST: Final = (6, 0)


class Deployment(Enum):
    """What kind of deployment a server belongs to."""

    STANDALONE = "a standalone server"
    REPLICA_SET = "a replica set"
    SHARDED = "a sharded cluster"


def deployment_of(hello: Document) -> Deployment:
    """From the server's answer to ``hello``."""
    if hello.get("msg") == "isdbgrid":
        return Deployment.SHARDED
    return Deployment.REPLICA_SET if "setName" in hello else Deployment.STANDALONE


def version(told: str) -> Finding:
    """Of the server's version, like ``7.0.14``."""
    numbers = tuple(int(part) for part in told.split(".")[:2] if part.isdecimal())
    if numbers >= OLDEST:
        return Finding("server", Level.OK, f"MongoDB {told}")
    return Finding(
        "server", Level.ERROR, f"MongoDB {told} is too old; Ratchet needs 6.0 or newer: upgrade the server"
    )


def deployment(kind: Deployment) -> Iterator[Finding]:
    """What the kind of deployment means for durability, transactions and wake-ups."""
    if kind is Deployment.STANDALONE:
        yield Finding(
            "deployment",
            Level.WARNING,
            "a standalone server: what was acknowledged is as safe as its disk; in production make it a replica set",
        )
        yield Finding("transactions", Level.OK, "none: submit(unit=...) is refused; nothing else needs them")
        yield Finding(
            "change streams", Level.OK, "none: nodes look for new work once a second while they have room"
        )
        return
    yield Finding("deployment", Level.OK, kind.value)
    yield Finding("transactions", Level.OK, "available to submit(unit=...); nothing else needs them")
    yield Finding("change streams", Level.OK, "available: nodes hear of new work at once")


# -- indexes --------------------------------------------------------------------------------------


def specification(index: Index) -> Document:
    """An index as `differences` compares it."""
    return {"key": [list(pair) for pair in index.keys], "only": dict(index.only or {})}


def _found(description: Mapping[str, Any]) -> Document:
    """The same of what the server describes."""
    only = description.get("partialFilterExpression") or {}
    return {
        "key": [[name, int(way)] for name, way in description["key"]],
        "only": {name: dict(test) if isinstance(test, Mapping) else test for name, test in only.items()},
    }


def differing(index: Index, description: Mapping[str, Any]) -> bool:
    """True if the server has another index under this name."""
    plain = all(
        description.get(name) in (None, False) for name in ("unique", "sparse", "hidden", "collation")
    )
    return _found(description) != specification(index) or not plain or "expireAfterSeconds" in description


def remedy(collection: str, name: str) -> str:
    """What to do about an index that is not as it must be; the next start makes it anew."""
    return (
        f"drop it, db.getCollection({collection!r}).dropIndex({name!r}), and the next node or submitter that "
        "starts makes the right one"
    )


def indexes(
    names: Mapping[str, str], found: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> Iterator[Finding]:
    """Compare the indexes that are there with those that there should be.

    Args:
        names: from ``jobs`` to the collection's name.
        found: collection's name -> index's name -> the server's description, its key as pairs.
    """
    wrong = list(_wrong(names, found))
    missing = [i for i in INDEXES if i.name not in found.get(names[i.collection], {})]
    if len(missing) == len(INDEXES):
        told = "none is there yet; the first node or submitter makes them. If there should be jobs here, see to the URL"
        yield Finding("indexes", Level.WARNING, told)
    elif missing:
        listed = ", ".join(f"{names[index.collection]}.{index.name}" for index in missing)
        told = f"not there yet: {listed}; the next node or submitter that starts makes them"
        yield Finding("indexes", Level.WARNING, told)
    for told in wrong:
        yield Finding("indexes", Level.ERROR, told)
    if not missing and not wrong:
        yield Finding("indexes", Level.OK, f"all {len(INDEXES)} are there, as they must be")


def _wrong(names: Mapping[str, str], found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    for index in INDEXES:
        collection = names[index.collection]
        description = found.get(collection, {}).get(index.name)
        if description is not None and differing(index, description):
            yield f"index {index.name} of {collection} is not the one it must be; {remedy(collection, index.name)}"
    ours = {(names[index.collection], index.name) for index in INDEXES}
    for collection, described in found.items():
        for name, description in described.items():
            if (collection, name) in ours or name == "_id_":
                continue
            if description.get("unique"):
                yield f"a unique index that is not Ratchet's, {name} of {collection}, makes writes fail; drop it"
            if "expireAfterSeconds" in description:
                yield f"a TTL index that is not Ratchet's, {name} of {collection}, deletes what is needed; drop it"


def conflict(name: str, collection: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    """The sentence for indexes that cannot be made because of what is there.

    Args:
        name: ``jobs`` or another of `Index.collection`.
        collection: its name in the database.
        found: index's name -> the server's description.
    """
    wanted = {index.name: index for index in INDEXES if index.collection == name}
    for there, description in found.items():
        if there in wanted:
            if differing(wanted[there], description):
                return f"index {there} of {collection} is not the one it must be; {remedy(collection, there)}"
        elif any(_found(description) == specification(index) for index in wanted.values()):
            return f"index {there} of {collection} stands where Ratchet needs its own; {remedy(collection, there)}"
    return (
        f"the indexes of {collection} cannot be made because of others that are there; run `ratchet doctor`"
    )


def sharding(name: str, description: Document | None) -> str | None:
    """What is wrong with how a collection is sharded; None: nothing.

    Args:
        name: of the collection.
        description: its document in ``config.collections``; None: it is not sharded.
    """
    key = [] if description is None or description.get("dropped") else list(description.get("key", {}))
    if not key or key == ["_id"]:
        return None
    shard_key = ", ".join(key)
    return (
        f"{name} is sharded by {shard_key}, and every write names _id alone; reshard it by {{_id: 'hashed'}}, or "
        "unshard it"
    )


# -- plans ----------------------------------------------------------------------------------------


def plans(explained: Sequence[tuple[HotQuery, Plan]]) -> Iterator[Finding]:
    """What the planner does with the hot queries."""
    bad = list(_bad(explained))
    for told in bad:
        yield Finding("plans", Level.ERROR, told)
    if all(plan.stages == {"EOF"} for _, plan in explained):
        yield Finding("plans", Level.OK, "nothing is stored yet that a query could read")
    elif not bad:
        yield Finding("plans", Level.OK, f"all {len(explained)} hot queries use an index")


def _bad(explained: Iterable[tuple[HotQuery, Plan]]) -> Iterator[str]:
    for query, plan in explained:
        how = (
            "reads a whole collection"
            if plan.scans
            else "sorts in memory"
            if query.sorted and plan.sorts
            else None
        )
        if how is not None:
            yield (
                f"{query.name} {how} instead of using the index {query.index}; see that it is there and not hidden, "
                "and remove query settings and index filters that keep the planner from it"
            )
