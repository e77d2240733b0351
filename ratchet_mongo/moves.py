"""One lifecycle row applied to one stored job, as a guarded update. Pure: nothing is written here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from ratchet.domain.job import JobType
from ratchet.domain.lifecycle import (
    CLAIMABLE,
    ROWS,
    SETTLED,
    BusinessKey,
    Status,
    Trigger,
    assign,
    execution,
)
from ratchet.domain.settlement import Change, Effect, RunCallback
from ratchet.errors import CapabilityMissing, UsageError
from ratchet.spi.store import Settled
from ratchet_mongo.documents import (
    KEPT,
    MAX_ERROR,
    STATUS,
    TYPE,
    Document,
    check_text,
    cleaned,
    execution_document,
    lane_of,
    milliseconds,
    size,
    spilled_id,
    stored,
)

SETTLES: Final = frozenset(
    trigger
    for trigger, row in ROWS.items()
    if row.consequences or (row.ends and trigger is not Trigger.RECOVER)
)
"""The triggers that travel by `settle`."""
APPLIES: Final = frozenset(ROWS) - SETTLES - {Trigger.CLAIM, Trigger.RECOVER}
"""The triggers that travel by `apply`."""

GUARD_VIEW: Final = dict.fromkeys(
    (
        "status", "version", "claim_seq", "attempts", "crash_count", "scheduled_time", "picked_at", "type",
        "executor", "priority", "picked_by", "business_key", "fence", "history", "hold", "outbox", "write",
        "queue_wait", "updated_at",
    ),
    1,
)  # fmt: skip
"""Projection: what `Guard` reads."""

_ZERO: Final = timedelta()


class Guard:
    """A stored job as far as a transition looks at it: `ratchet.domain.lifecycle.Row`, its owner, its locks."""

    __slots__ = (
        "attempts", "business_key", "claim_seq", "crash_count", "executor", "fence", "history", "hold", "id",
        "outbox", "picked_at", "picked_by", "priority", "queue_wait", "scheduled_time", "status", "type",
        "updated_at", "version", "write",
    )  # fmt: skip

    def __init__(self, doc: Document) -> None:
        get = doc.get
        self.id: UUID = doc["_id"]
        self.status: Status = STATUS[doc["status"]]
        self.version: int = doc["version"]
        self.claim_seq: int = doc["claim_seq"]
        self.attempts: int = doc["attempts"]
        self.crash_count: int = doc["crash_count"]
        self.scheduled_time: datetime = doc["scheduled_time"]
        self.updated_at: datetime = doc["updated_at"]
        self.picked_at: datetime | None = get("picked_at")
        self.picked_by: str | None = get("picked_by")
        self.type: JobType = TYPE[doc["type"]]
        self.executor: str = doc["executor"]
        self.priority: int = doc["priority"]
        self.business_key: str | None = get("business_key")
        self.queue_wait: timedelta | None = milliseconds(get("queue_wait"))
        self.fence: int = doc["fence"]
        self.history: Sequence[Document] = get("history", ())
        self.hold: Document | None = get("hold")
        self.outbox: Document | None = get("outbox")
        self.write: UUID | None = get("write")

    @property
    def is_batch_parent(self) -> bool:
        """True for a job that only stands for its children."""
        return self.type is JobType.BATCH

    @property
    def is_locked(self) -> bool:
        """True if something that was begun on it must be completed, or undone, first."""
        return self.hold is not None or self.outbox is not None


def check(change: Change, effects: Sequence[Effect], capabilities: frozenset[str]) -> None:
    """Refuse what can never be settled, before anything is written."""
    if change.trigger not in SETTLES:
        raise UsageError(f"{change.trigger} does not travel by settle; use apply, claim or recover")
    targets = ROWS[change.trigger].targets
    if len(targets) > 1 and change.target not in targets:
        raise UsageError(f"{change.trigger} must name its target, one of {', '.join(targets)}")
    for effect in effects:
        if effect.capability is not None and effect.capability not in capabilities:
            raise CapabilityMissing(effect.capability)
    check_size(change, effects)


def check_size(change: Change, effects: Sequence[Effect] = ()) -> None:
    """Refuse text that cannot be stored, and more of it than a document holds, before anything is written.

    Raises:
        UsageError: a NUL or a lone surrogate; errors are cleaned of them instead.
        PayloadTooLarge: see `ratchet_mongo.documents.MAX_TEXT` and `MAX_ERROR`.
    """
    what = f"{change.trigger} of job {change.job_id}"
    error = () if change.error is None else (cleaned(change.error),)
    arguments = [cleaned(each.argument) for each in effects if isinstance(each, RunCallback)]
    check_text(error, what=f"the error of {what}", limit=MAX_ERROR)
    check_text((change.result, change.signal, *error, *arguments), what=what)


@dataclass(slots=True)
class Move:
    """A decided change of one job.

    Attributes:
        guard: the job as it was read, or as it was claimed.
        where: the filter of the update; `_id` first, then status, claim and version.
        update: what is written, all of it in one atomic update.
        fields: what the table said, by name of the job's field.
        spill: ended claims that no longer fit into the document, to be stored elsewhere before.
        token: marks this write.
        text: bytes of text that it brings.
    """

    guard: Guard
    where: Document
    update: Document
    fields: dict[str, object]
    token: UUID
    now: datetime
    spill: list[Document] = field(default_factory=list)
    text: int = 0

    def settled(self) -> Settled:
        """The answer once it is written."""
        return Settled(
            self.guard.id,
            self.fields["status"],  # type: ignore[arg-type]
            self.guard.version + 1,
            self.now,
            self.fields.get("scheduled_time", self.guard.scheduled_time),  # type: ignore[arg-type]
            self.fields.get("queue_wait", _ZERO),  # type: ignore[arg-type]
        )


def move(
    guard: Guard,
    change: Change,
    now: datetime,
    token: UUID,
    *,
    callbacks: Sequence[RunCallback] = (),
    outbox: Document | None = None,
) -> Move:
    """Decide a change that was not refused."""
    fields = assign(guard, change, now)
    where: Document = {
        "_id": guard.id,
        "status": guard.status.value,
        "claim_seq": guard.claim_seq,
        "version": guard.version,
    }
    if outbox is not None or ROWS[change.trigger].business_key is BusinessKey.TAKEN:
        # What was looked up about keys holds only as long as nobody has taken one from this job since.
        where["fence"] = guard.fence
    changes: Document = {"write": token}
    cleared: Document = {}
    for name, value in fields.items():
        if value is None:
            cleared[name] = ""
        else:
            changes[name] = stored(value)
    status: Status = fields["status"]  # type: ignore[assignment]
    due: datetime = fields.get("scheduled_time", guard.scheduled_time)  # type: ignore[assignment]
    lane = lane_of(status, guard.type, guard.executor, guard.priority, due)
    if lane is not None:
        changes["lane"] = lane
    elif guard.status in CLAIMABLE:
        cleared["lane"] = ""
    if outbox is not None:
        changes["outbox"] = outbox
    update: Document = {"$set": changes}
    pushed: dict[str, Any] = {}
    texts = (change.result, change.error, change.signal, *(told.argument for told in callbacks))
    decided = Move(guard, where, update, fields, token, now, text=sum(size(text) for text in texts if text))
    ended = execution(guard, change, now, job_id=guard.id, node=guard.picked_by)
    if ended is not None:
        over = len(guard.history) + 1 - KEPT
        if over > 0:
            decided.spill = [
                {**entry, "_id": spilled_id(guard.id, entry["claim_seq"])} for entry in guard.history[:over]
            ]
            changes["spilled"] = True
        pushed["history"] = {"$each": [execution_document(ended)], "$slice": -KEPT}
    if callbacks:
        pushed["callbacks"] = {"$each": [_callback(guard, told) for told in callbacks]}
    if cleared:
        update["$unset"] = cleared
    if pushed:
        update["$push"] = pushed
    return decided


def _callback(guard: Guard, told: RunCallback) -> Document:
    return {
        "claim_seq": guard.claim_seq,
        "name": told.name,
        "owner": guard.picked_by or "",
        "target": cleaned(told.target),
        "argument": cleaned(told.argument),
    }


def frees(trigger: Trigger) -> bool:
    """True if the row gives up the job's business key."""
    return ROWS[trigger].business_key in (BusinessKey.FREED, BusinessKey.MOVED)


def holds(doc: Document, key: str) -> bool:
    """True if the job of `doc` holds the business key now."""
    status = doc.get("status")
    return status is not None and STATUS[status] not in SETTLED and doc.get("business_key") == key
