"""Stored documents and the domain's values: one place that knows how each is written down.

A job is one document. What the table clears is absent, not null. Fields beyond those of `Job`:

==============  ==================================================================================
``lane``        executor and priority, only while the job can be claimed; what the claim index holds
``fence``       raised by whoever takes a settled job's business key or reservation from it
``write``       token of the last write, by which a writer whose answer was lost knows its own
``claim_token`` token of the claim call that took the job
``history``     the last `KEPT` ended claims; older ones are in their own collection (``spilled``)
``callbacks``   pending callbacks with their owner
``outbox``      consequences of the settlement that are not yet carried out; completed by anybody
``hold``        the operation, or the settlement, that decides whether this document exists (no
                ``status`` yet) or is changed (a status); nobody else changes it meanwhile
``reveal``      the fields that such a document gets when it is decided that it exists
``void``        a placeholder: an insert of this id that was given up for dead must not arrive late
``completed``   inserted by somebody else than who reserved the id; deleting it leaves a void
==============  ==================================================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, TypeAlias
from uuid import UUID

from ratchet.domain.insertion import due_time
from ratchet.domain.job import Claim, Job, JobType, NewJob
from ratchet.domain.lifecycle import (
    CLAIMABLE,
    UNSCHEDULED,
    AttemptEnd,
    Execution,
    Status,
    Trigger,
)
from ratchet.domain.priority import Priority
from ratchet.domain.retry import NO_BACKOFF, Backoff
from ratchet.errors import PayloadTooLarge, UsageError
from ratchet.spi.store import Node, NodeInfo

Document: TypeAlias = dict[str, Any]

MS: Final = timedelta(milliseconds=1)
US: Final = timedelta(microseconds=1)
KEPT: Final = 20
"""Ended claims that stay in the job's document."""
MAX_TEXT: Final = 4 * 1024 * 1024 + 512 * 1024
"""Bytes of text that one write may bring into a document. There are three that bring much, each in place of its
like: submission, signal, outcome. With `KEPT` errors they stay below the 16 MB that the server takes."""
MAX_ERROR: Final = 64 * 1024
"""Bytes of an error text, of which the history keeps many; the engine's have 2,000 characters."""

STATUS: Final[Mapping[str, Status]] = {s.value: s for s in Status}
TYPE: Final[Mapping[str, JobType]] = {t.value: t for t in JobType}
PRIORITY: Final[tuple[Priority, ...]] = tuple(sorted(Priority))

JOB_VIEW: Final = {"history": 0, "callbacks": 0}
"""Projection: all that a `Job` needs."""
CLAIM_VIEW: Final = {"callbacks": 0, "claim_token": 0, "write": 0}
"""Projection: all that a `Claim` and the end of the claim need."""

# -- text that cannot be stored -------------------------------------------------------------------

_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


def storable(text: str) -> bool:
    """False for text with a NUL or a lone surrogate, which no key, tag or name may have (section 2)."""
    return (text.isascii() and "\0" not in text) or not _UNSTORABLE.search(text)


def cleaned(text: str) -> str:
    """The text with every NUL and lone surrogate as U+FFFD, as errors are stored."""
    return text if storable(text) else _UNSTORABLE.sub("\ufffd", text)


def size(text: str) -> int:
    """Bytes of the text in UTF-8, also of text that cannot be stored."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def check_text(values: Iterable[object], *, what: str, limit: int = MAX_TEXT) -> None:
    """`UsageError` for text that cannot be stored, `PayloadTooLarge` for more of it than a document holds."""
    total = 0
    for value in values:
        if isinstance(value, str):
            if not storable(value):
                raise UsageError(f"a NUL character or a lone surrogate cannot be stored: {value[:100]!a}")
            total += size(value)
    if total > limit:
        raise PayloadTooLarge(what, total, limit)


# -- values ---------------------------------------------------------------------------------------


def encode_map(values: Mapping[str, str]) -> str | None:
    """A mapping of texts as JSON text: its keys may hold what no field name may."""
    return json.dumps(dict(values)) if values else None


def decode_map(text: str | None) -> dict[str, str]:
    """What `encode_map` wrote."""
    return json.loads(text) if text else {}


@lru_cache(maxsize=256)
def _decode_backoff(text: str) -> Backoff:
    return Backoff.decode(text)


def decode_backoff(text: str | None) -> Backoff:
    """What `Backoff.encode` wrote."""
    return _decode_backoff(text) if text else NO_BACKOFF


def stored(value: object) -> Any:
    """A field of a job, as the table made it, as its document keeps it (`timeout` aside)."""
    if isinstance(value, Status):
        return value.value
    if isinstance(value, str):
        return cleaned(value)
    if isinstance(value, timedelta):
        return value // MS
    return value


def milliseconds(value: int | None) -> timedelta | None:
    """A stored duration."""
    return None if value is None else timedelta(milliseconds=value)


def lane_of(status: Status, type_: JobType, executor: str, priority: int, due: datetime) -> str | None:
    """Where a job waits for its claim; None if it cannot be claimed as it is, however long one waits."""
    if status not in CLAIMABLE or type_ is JobType.BATCH or due == UNSCHEDULED:
        return None
    return lane(executor, priority)


def lane(executor: str, priority: int) -> str:
    """The lane of an executor and a priority."""
    return f"{executor}/{int(priority)}"


# -- jobs -----------------------------------------------------------------------------------------


def new_document(
    new: NewJob, now: datetime, *, token: UUID, business_key: str | None, claimed: bool = False
) -> Document:
    """A submitted job as it is stored, with the claim of `claim_for` or without; unstorable text is a `UsageError`."""
    due = due_time(new, now)
    fields: dict[str, Any] = {
        "_id": new.id,
        "status": new.start.value,
        "lane": lane_of(new.start, new.type, new.executor, new.priority, due),
        "target": new.target,
        "payload": new.payload,
        "format": new.format,
        "type": new.type.value,
        "executor": new.executor,
        "priority": int(new.priority),
        "scheduled_time": due,
        "created_at": now,
        "updated_at": now,
        "params": encode_map(new.params),
        "version": 0,
        "claim_seq": 0,
        "attempts": 0,
        "crash_count": 0,
        "max_retries": new.max_retries,
        "backoff": new.backoff.encode() or None,
        "timeout": new.timeout // US,
        "tags": sorted(new.tags) or None,
        "idempotency_key": new.idempotency_key,
        "business_key": business_key,
        "principal": new.principal,
        "resource": new.resource,
        "on_success": new.on_success,
        "on_failure": new.on_failure,
        "metadata": encode_map(new.metadata),
        "fence": 0,
        "write": token,
    }
    if claimed:
        first = {"status": Status.RUNNING.value, "lane": None, "version": 1, "claim_seq": 1, "picked_at": now}
        fields |= {**first, "picked_by": cleaned(new.claim_for or "")}
    check_text((*fields.values(), *new.tags), what=f"job {new.id}")
    return {name: value for name, value in fields.items() if value is not None}


_SHOWN_LATER: Final = ("status", "lane")


def hidden(document: Document, hold: Document) -> Document:
    """The document as nobody sees or claims it, until `hold` is decided."""
    shown = {name: document[name] for name in _SHOWN_LATER if name in document}
    kept = {name: value for name, value in document.items() if name not in _SHOWN_LATER}
    return {**kept, "hold": hold, "reveal": shown}


def job_from(doc: Document) -> Job:
    """The job of a document."""
    get = doc.get
    paused_from = get("paused_from_status")
    return Job(
        id=doc["_id"],
        status=STATUS[doc["status"]],
        target=doc["target"],
        payload=doc["payload"],
        format=doc["format"],
        type=TYPE[doc["type"]],
        executor=doc["executor"],
        priority=PRIORITY[doc["priority"]],
        scheduled_time=doc["scheduled_time"],
        created_at=doc["created_at"],
        updated_at=doc["updated_at"],
        params=decode_map(get("params")),
        version=doc["version"],
        claim_seq=doc["claim_seq"],
        attempts=doc["attempts"],
        crash_count=doc["crash_count"],
        max_retries=doc["max_retries"],
        backoff=decode_backoff(get("backoff")),
        timeout=timedelta(microseconds=doc["timeout"]),
        tags=frozenset(get("tags", ())),
        idempotency_key=get("idempotency_key"),
        business_key=get("business_key"),
        principal=get("principal"),
        resource=get("resource"),
        on_success=get("on_success"),
        on_failure=get("on_failure"),
        metadata=decode_map(get("metadata")),
        picked_by=get("picked_by"),
        picked_at=get("picked_at"),
        started_at=get("started_at"),
        ended_at=get("ended_at"),
        duration=milliseconds(get("duration")),
        queue_wait=milliseconds(get("queue_wait")),
        last_error=get("last_error"),
        result=get("result"),
        paused_from_status=None if paused_from is None else STATUS[paused_from],
        superseded_by=get("superseded_by"),
        signal=get("signal"),
    )


def claim_from(doc: Document) -> Claim:
    """The claim of a document, read after the update that took it."""
    get = doc.get
    return Claim(
        job_id=doc["_id"],
        claim_seq=doc["claim_seq"],
        target=doc["target"],
        payload=doc["payload"],
        format=doc["format"],
        executor=doc["executor"],
        attempts=doc["attempts"],
        crash_count=doc["crash_count"],
        max_retries=doc["max_retries"],
        backoff=decode_backoff(get("backoff")),
        timeout=timedelta(microseconds=doc["timeout"]),
        priority=PRIORITY[doc["priority"]],
        type=TYPE[doc["type"]],
        scheduled_time=doc["scheduled_time"],
        picked_at=doc["picked_at"],
        params=decode_map(get("params")),
        tags=frozenset(get("tags", ())),
        business_key=get("business_key"),
        principal=get("principal"),
        resource=get("resource"),
        on_success=get("on_success"),
        on_failure=get("on_failure"),
        metadata=decode_map(get("metadata")),
        signal=get("signal"),
    )


# -- history --------------------------------------------------------------------------------------


def execution_document(ended: Execution) -> Document:
    """An ended claim as it is kept in its job's document."""
    fields: dict[str, Any] = {
        "claim_seq": ended.claim_seq,
        "attempt": ended.attempt,
        "end": ended.end.value,
        "trigger": ended.trigger.value,
        "node": ended.node,
        "picked_at": ended.picked_at,
        "started_at": ended.started_at,
        "ended_at": ended.ended_at,
        "duration": ended.duration // MS,
        "error": None if ended.error is None else cleaned(ended.error),
    }
    return {name: value for name, value in fields.items() if value is not None}


def execution_from(doc: Document, job_id: UUID) -> Execution:
    """The ended claim that `execution_document` wrote."""
    return Execution(
        job_id=job_id,
        claim_seq=doc["claim_seq"],
        attempt=doc["attempt"],
        end=AttemptEnd(doc["end"]),
        trigger=Trigger(doc["trigger"]),
        node=doc.get("node"),
        picked_at=doc.get("picked_at"),
        started_at=doc["started_at"],
        ended_at=doc["ended_at"],
        duration=timedelta(milliseconds=doc["duration"]),
        error=doc.get("error"),
    )


def spilled_id(job_id: UUID, claim_seq: int) -> str:
    """The key of an ended claim outside its job's document: those of one job are neighbours, in order."""
    return f"{job_id.hex}:{claim_seq:010d}"


def spilled_range(job_id: UUID) -> Document:
    """A filter for all ended claims of a job outside its document."""
    return {"_id": {"$gte": f"{job_id.hex}:", "$lt": f"{job_id.hex};"}}


# -- nodes ----------------------------------------------------------------------------------------


def node_fields(info: NodeInfo) -> Document:
    """What a heartbeat writes, times aside."""
    return {
        "name": cleaned(info.name),
        "host": cleaned(info.host),
        "boot_id": cleaned(info.boot_id),
        "pid_namespace": cleaned(info.pid_namespace),
        "pid": info.pid,
        "pid_started": info.pid_started,
        "state": info.state,
        "detail": encode_map(info.detail) or "",
    }


def node_from(doc: Document, now: datetime) -> Node:
    """A registered node."""
    return Node(
        info=NodeInfo(
            incarnation=doc["_id"],
            name=doc["name"],
            host=doc["host"],
            boot_id=doc["boot_id"],
            pid_namespace=doc["pid_namespace"],
            pid=doc["pid"],
            pid_started=doc["pid_started"],
            state=doc["state"],
            detail=decode_map(doc["detail"]),
        ),
        started_at=doc["started_at"],
        last_heartbeat=doc["last_heartbeat"],
        age=now - doc["last_heartbeat"],
    )


def whole(instant: datetime) -> datetime:
    """Cut to milliseconds, in UTC."""
    instant = instant.astimezone(UTC)
    return instant.replace(microsecond=instant.microsecond // 1000 * 1000)
