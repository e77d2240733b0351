"""Every index, beside the query that it serves. Partial ones keep out what their query never asks for.

A partial filter may use equality, ``$exists: true``, ranges and ``$in``; ``$ne``, ``$nin`` and ``$not`` are
refused by the server. Nothing but ``_id`` is unique: a unique index that does not begin with the shard
key is illegal on a sharded collection, which is why keys are documents of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ratchet.domain.lifecycle import ROWS, Trigger

_HELD: Final = ROWS[Trigger.CLAIM].targets[0].value


@dataclass(frozen=True, slots=True)
class Index:
    """One index.

    Attributes:
        collection: of which.
        name: as the server knows it.
        keys: fields and directions.
        serves: the query, for people.
        only: what is in it (partial filter); None: every document.
    """

    collection: str
    name: str
    keys: Sequence[tuple[str, int]]
    serves: str
    only: Mapping[str, Any] | None = field(default=None)


BY_ID: Final = "_id_"
"""Hint for what is asked by many ids with a guard: the guard's fields are in other indexes, too, among many others."""

_THERE: Final = {"$exists": True}

INDEXES: Final[tuple[Index, ...]] = (
    Index(
        "jobs",
        "claim",
        (("lane", 1), ("scheduled_time", 1), ("_id", 1)),
        "the head of a lane: due jobs of one executor and priority; and when the next one is due",
        {"lane": _THERE},
    ),
    Index(
        "jobs",
        "running",
        (("picked_by", 1), ("picked_at", 1)),
        "who runs something; what an incarnation holds; orphans",
        {"status": _HELD},
    ),
    Index(
        "jobs",
        "callbacks",
        (("callbacks.owner", 1),),
        "who has pending callbacks, and which",
        {"callbacks.owner": _THERE},
    ),
    Index("jobs", "outbox", (("outbox.at", 1),), "the sweep: settlements to complete", {"outbox.at": _THERE}),
    Index(
        "jobs",
        "hold",
        (("hold.id", 1), ("hold.at", 1)),
        "the members of an operation; the sweep: documents not decided upon",
        {"hold.id": _THERE},
    ),
    Index(
        "jobs",
        "created",
        (("created_at", -1), ("_id", 1)),
        "pages by creation, read backwards for the oldest first",
    ),
    Index(
        "jobs",
        "status",
        (("status", 1), ("created_at", -1), ("_id", 1)),
        "counts by status; pages of one status",
    ),
    Index("jobs", "scheduled", (("scheduled_time", 1), ("_id", 1)), "pages by due time"),
    Index(
        "jobs",
        "ended",
        (("ended_at", -1), ("_id", 1)),
        "pages by end; what settled in a window",
        {"ended_at": _THERE},
    ),
    Index(
        "jobs",
        "failed",
        (("status", 1), ("_id", 1)),
        "bulk requeue: failed jobs, oldest first",
        {"status": ROWS[Trigger.REQUEUE].sources[0].value},
    ),
    Index(
        "jobs",
        "failed_ended",
        (("status", 1), ("ended_at", -1), ("_id", 1)),
        "pages of the dead-letter queue, latest first",
        {"status": ROWS[Trigger.REQUEUE].sources[0].value},
    ),
    Index("jobs", "tags", (("tags", 1), ("created_at", -1), ("_id", 1)), "pages by tag", {"tags": _THERE}),
    Index(
        "jobs",
        "business_key",
        (("business_key", 1), ("created_at", -1), ("_id", 1)),
        "who ever held a business key",
        {"business_key": _THERE},
    ),
    Index(
        "jobs",
        "principal",
        (("principal", 1), ("created_at", -1), ("_id", 1)),
        "pages by principal",
        {"principal": _THERE},
    ),
    Index("operations", "age", (("at", 1),), "the sweep: bulk operations to complete or undo"),
    Index(
        "operations",
        "committed",
        (("state", 1),),
        "before whatever is read: operations that are decided and not yet carried out",
        {"state": "committed"},
    ),
)
