"""Reads what the server's ``explain`` answers: which stages and indexes, how much was examined. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ratchet_mongo.documents import Document


@dataclass(frozen=True, slots=True)
class Plan:
    """A winning plan.

    Attributes:
        stages: by name, like ``IXSCAN``; on a sharded cluster those of all shards.
        indexes: by name.
        keys, documents, returned: how many were examined and answered; None without execution.
    """

    stages: frozenset[str]
    indexes: frozenset[str]
    keys: int | None = None
    documents: int | None = None
    returned: int | None = None

    @property
    def scans(self) -> bool:
        """True if whole collections are read."""
        return "COLLSCAN" in self.stages

    @property
    def sorts(self) -> bool:
        """True if anything is sorted in memory; merging sorted branches is not that."""
        return "SORT" in self.stages


def plan_of(answer: Document) -> Plan:
    """The winning plan of an ``explain``, of a query or of an aggregate that begins with one."""
    if "stages" in answer:
        answer = answer["stages"][0]["$cursor"]
    found = list(
        _nodes(answer.get("queryPlanner", answer))
    )  # an aggregate on a cluster answers shard by shard
    stats = answer.get("executionStats", {})
    return Plan(
        frozenset(node["stage"] for node in found if isinstance(node.get("stage"), str)),
        frozenset(node["indexName"] for node in found if "indexName" in node),
        stats.get("totalKeysExamined"),
        stats.get("totalDocsExamined"),
        stats.get("nReturned"),
    )


def _nodes(plan: Any) -> Iterator[Document]:
    """The stages of a plan, whatever its shape; what lost against it is left out."""
    if isinstance(plan, dict):
        yield plan
        for name, value in plan.items():
            if name not in ("rejectedPlans", "executionStats", "parsedQuery"):
                yield from _nodes(value)
    elif isinstance(plan, list):
        for each in plan:
            yield from _nodes(each)
