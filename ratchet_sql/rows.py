"""Stored values and the domain's: one place that knows how each is written down."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from ratchet.domain.job import DEFAULT_TIMEOUT, Claim, Job, JobType, NewJob
from ratchet.domain.lifecycle import (
    UNSCHEDULED,
    AttemptEnd,
    Execution,
    Status,
    Trigger,
)
from ratchet.domain.priority import Priority
from ratchet.domain.retry import NO_BACKOFF, Backoff
from ratchet.errors import UsageError
from ratchet.spi.store import Node, NodeInfo

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MS: Final = timedelta(milliseconds=1)
US: Final = timedelta(microseconds=1)

STATUS: Final[Mapping[str, Status]] = {s.value: s for s in Status}
TYPE: Final[Mapping[str, JobType]] = {t.value: t for t in JobType}
PRIORITY: Final[tuple[Priority, ...]] = tuple(sorted(Priority))

# The order in which a statement answers the columns of a job, and `job_from` reads them.
JOB_COLUMNS: Final = (
    "id", "status", "target", "payload", "format", "type", "executor", "priority", "scheduled_time",
    "created_at", "updated_at", "params", "version", "claim_seq", "attempts", "crash_count", "max_retries",
    "backoff", "timeout", "tags", "idempotency_key", "business_key", "principal", "resource", "on_success",
    "on_failure", "metadata", "picked_by", "picked_at", "started_at", "ended_at", "duration", "queue_wait",
    "last_error", "result", "paused_from_status", "superseded_by", "signal",
)  # fmt: skip
CLAIM_COLUMNS: Final = (
    "id", "claim_seq", "target", "payload", "format", "executor", "attempts", "crash_count", "max_retries",
    "backoff", "timeout", "priority", "type", "scheduled_time", "params", "tags", "business_key",
    "principal", "resource", "on_success", "on_failure", "metadata", "signal",
)  # fmt: skip
INSERT_COLUMNS: Final = (
    "id", "status", "target", "payload", "format", "type", "executor", "priority", "scheduled_time",
    "created_at", "updated_at", "params", "max_retries", "backoff", "timeout", "tags", "idempotency_key",
    "business_key", "principal", "resource", "on_success", "on_failure", "metadata", "version", "claim_seq",
    "picked_by", "picked_at",
)  # fmt: skip
# What a transition needs to know of a job: `ratchet.domain.lifecycle.Row`, the owner and the key.
GUARD_COLUMNS: Final = (
    "id", "status", "version", "claim_seq", "attempts", "crash_count", "scheduled_time", "picked_at",
    "type", "picked_by", "business_key",
)  # fmt: skip
EXECUTION_COLUMNS: Final = (
    "job_id", "claim_seq", "attempt", "ended_as", "ended_by", "node", "picked_at", "started_at", "ended_at",
    "duration", "error",
)  # fmt: skip
CALLBACK_COLUMNS: Final = ("job_id", "claim_seq", "name", "owner", "target", "argument")
NODE_COLUMNS: Final = (
    "incarnation", "name", "host", "boot_id", "pid_namespace", "pid", "pid_started", "state", "detail",
    "started_at", "last_heartbeat",
)  # fmt: skip

Stored = list[Any]
"""A row as a statement answers it, one JSON array."""


def to_ms(instant: datetime) -> int:
    """An aware instant as it is stored."""
    return (instant - EPOCH) // MS


def from_ms(ms: int) -> datetime:
    """The instant that was stored; exact, which dividing by 1000.0 is not for years far ahead."""
    return EPOCH + timedelta(milliseconds=ms)


def optional_ms(ms: int | None) -> datetime | None:
    """As `from_ms`, where there may be none."""
    return None if ms is None else EPOCH + timedelta(milliseconds=ms)


def uuid_from(text: str) -> UUID:
    """The id that was stored (twice as fast as `UUID(text)`, which allows for other spellings)."""
    return UUID(int=int(text.replace("-", ""), 16))


NEVER: Final = to_ms(UNSCHEDULED)
"""The due time of a blocked step."""


_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


def cleaned(text: str) -> str:
    """The text with every NUL and lone surrogate, which no row may hold, as U+FFFD (section 2, limits).

    One such character would make not only its own row unreadable, but every answer that the row is part of.
    """
    return text if text.isascii() and "\0" not in text else _UNSTORABLE.sub("\ufffd", text)


def _refuse_unstorable(row: Stored) -> None:
    for value in row:
        if type(value) is str and not (value.isascii() and "\0" not in value) and _UNSTORABLE.search(value):
            raise UsageError(f"a NUL character or a lone surrogate cannot be stored: {value[:100]!a}")


def column_value(value: object) -> str | int | None:
    """A field of a job, as the domain made it, as its column keeps it (`timeout` aside)."""
    if isinstance(value, str):
        return cleaned(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, datetime):
        return (value - EPOCH) // MS
    if isinstance(value, timedelta):
        return value // MS
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"no column takes a {type(value).__name__}")


def encode_tags(tags: frozenset[str]) -> str:
    """Tags as a JSON array, ascending; empty text for none."""
    return json.dumps(sorted(tags), ensure_ascii=False) if tags else ""


@lru_cache(maxsize=1024)
def decode_tags(text: str) -> frozenset[str]:
    """What `encode_tags` wrote."""
    return frozenset(json.loads(text)) if text else frozenset()


def encode_map(values: Mapping[str, str]) -> str:
    """A mapping of texts as a JSON object; empty text for none."""
    return json.dumps(dict(values)) if values else ""


def decode_map(text: str) -> dict[str, str]:
    """What `encode_map` wrote."""
    return json.loads(text) if text else {}


@lru_cache(maxsize=256)
def _decode_backoff(text: str) -> Backoff:
    return Backoff.decode(text)


def decode_backoff(text: str) -> Backoff:
    """What `Backoff.encode` wrote."""
    return _decode_backoff(text) if text else NO_BACKOFF


def new_row(
    new: NewJob, due: datetime, now: datetime, now_ms: int, business_key: str | None, *, claimed: bool = False
) -> Stored:
    """A submitted job in the order of INSERT_COLUMNS; unstorable text is a `UsageError`.

    Args:
        new: the job.
        due: its due time.
        now, now_ms: store time.
        business_key: its own, or one that it takes over.
        claimed: by `claim_for`, in this instant.
    """
    row: Stored = [
        str(new.id),
        Status.RUNNING.value if claimed else new.start.value,
        new.target,
        new.payload,
        new.format,
        new.type.value,
        new.executor,
        int(new.priority),
        now_ms if due is now else to_ms(due),
        now_ms,
        now_ms,
        encode_map(new.params),
        new.max_retries,
        new.backoff.encode(),
        new.timeout // US,
        encode_tags(new.tags),
        new.idempotency_key,
        business_key,
        new.principal,
        new.resource,
        new.on_success,
        new.on_failure,
        encode_map(new.metadata),
        int(claimed),
        int(claimed),
        new.claim_for if claimed else None,
        now_ms if claimed else None,
    ]
    _refuse_unstorable([*row, *new.tags] if new.tags else row)
    return row


def job_from(row: Stored) -> Job:
    """The job of a row in the order of JOB_COLUMNS."""
    (
        id_, status, target, payload, format_, type_, executor, priority, scheduled_time, created_at, updated_at,
        params, version, claim_seq, attempts, crash_count, max_retries, backoff, timeout, tags, idempotency_key,
        business_key, principal, resource, on_success, on_failure, metadata, picked_by, picked_at, started_at,
        ended_at, duration, queue_wait, last_error, result, paused_from_status, superseded_by, signal,
    ) = row  # fmt: skip
    return Job(
        id=uuid_from(id_),
        status=STATUS[status],
        target=target,
        payload=payload,
        format=format_,
        type=TYPE[type_],
        executor=executor,
        priority=PRIORITY[priority],
        scheduled_time=from_ms(scheduled_time),
        created_at=from_ms(created_at),
        updated_at=from_ms(updated_at),
        params=decode_map(params),
        version=version,
        claim_seq=claim_seq,
        attempts=attempts,
        crash_count=crash_count,
        max_retries=max_retries,
        backoff=decode_backoff(backoff),
        timeout=timedelta(microseconds=timeout),
        tags=decode_tags(tags),
        idempotency_key=idempotency_key,
        business_key=business_key,
        principal=principal,
        resource=resource,
        on_success=on_success,
        on_failure=on_failure,
        metadata=decode_map(metadata),
        picked_by=picked_by,
        picked_at=optional_ms(picked_at),
        started_at=optional_ms(started_at),
        ended_at=optional_ms(ended_at),
        duration=None if duration is None else timedelta(milliseconds=duration),
        queue_wait=None if queue_wait is None else timedelta(milliseconds=queue_wait),
        last_error=last_error,
        result=result,
        paused_from_status=None if paused_from_status is None else STATUS[paused_from_status],
        superseded_by=None if superseded_by is None else uuid_from(superseded_by),
        signal=signal,
    )


def claim_from(row: Stored, picked_at: datetime) -> Claim:
    """The claim of a row in the order of CLAIM_COLUMNS, read after the update."""
    (
        id_, claim_seq, target, payload, format_, executor, attempts, crash_count, max_retries, backoff, timeout,
        priority, type_, scheduled_time, params, tags, business_key, principal, resource, on_success, on_failure,
        metadata, signal,
    ) = row  # fmt: skip
    return Claim(
        job_id=uuid_from(id_),
        claim_seq=claim_seq,
        target=target,
        payload=payload,
        format=format_,
        executor=executor,
        attempts=attempts,
        crash_count=crash_count,
        max_retries=max_retries,
        backoff=decode_backoff(backoff),
        timeout=timedelta(microseconds=timeout),
        priority=PRIORITY[priority],
        type=TYPE[type_],
        scheduled_time=from_ms(scheduled_time),
        picked_at=picked_at,
        params=decode_map(params),
        tags=decode_tags(tags),
        business_key=business_key,
        principal=principal,
        resource=resource,
        on_success=on_success,
        on_failure=on_failure,
        metadata=decode_map(metadata),
        signal=signal,
    )


def unreadable_claim(row: Stored, picked_at: datetime) -> Claim:
    """The claim of a row that `claim_from` cannot read: its payload is none, so that the job fails as poison.

    Raises:
        ValueError: not even its id can be read.
    """
    found = dict(zip(CLAIM_COLUMNS, row, strict=True))
    return Claim(
        job_id=uuid_from(found["id"]),
        claim_seq=found["claim_seq"],
        target=found["target"],
        payload="",
        format=1,
        executor=found["executor"],
        attempts=found["attempts"],
        crash_count=found["crash_count"],
        max_retries=0,
        backoff=NO_BACKOFF,
        timeout=DEFAULT_TIMEOUT,
        priority=Priority.NORMAL,
        type=JobType.SINGLE,
        scheduled_time=picked_at,
        picked_at=picked_at,
        params={},
        tags=frozenset(),
        business_key=found["business_key"],
        principal=None,
        resource=None,
        on_success=None,
        on_failure=found["on_failure"],
        metadata={},
    )


class GuardRow:
    """A job as far as a transition looks at it: `ratchet.domain.lifecycle.Row`."""

    __slots__ = (
        "attempts", "business_key", "claim_seq", "crash_count", "id", "is_batch_parent", "picked_at",
        "picked_by", "scheduled_time", "status", "version",
    )  # fmt: skip

    def __init__(self, row: Stored) -> None:
        (
            id_,
            status,
            self.version,
            self.claim_seq,
            self.attempts,
            self.crash_count,
            due,
            picked,
            type_,
            owner,
            key,
        ) = row
        self.id: str = id_
        self.status: Status = STATUS[status]
        self.scheduled_time: datetime = EPOCH + timedelta(milliseconds=due)
        self.picked_at: datetime | None = None if picked is None else EPOCH + timedelta(milliseconds=picked)
        self.is_batch_parent: bool = type_ == JobType.BATCH
        self.picked_by: str | None = owner
        self.business_key: str | None = key


def execution_row(ended: Execution, job_id: str) -> Stored:
    """An ended claim in the order of EXECUTION_COLUMNS."""
    return [
        job_id,
        ended.claim_seq,
        ended.attempt,
        ended.end.value,
        ended.trigger.value,
        ended.node,
        None if ended.picked_at is None else to_ms(ended.picked_at),
        to_ms(ended.started_at),
        to_ms(ended.ended_at),
        ended.duration // MS,
        None if ended.error is None else cleaned(ended.error),
    ]


def execution_from(row: Stored) -> Execution:
    """The ended claim of a row in the order of EXECUTION_COLUMNS."""
    job_id, claim_seq, attempt, ended_as, ended_by, node, picked_at, started_at, ended_at, duration, error = (
        row
    )
    return Execution(
        job_id=uuid_from(job_id),
        claim_seq=claim_seq,
        attempt=attempt,
        end=AttemptEnd(ended_as),
        trigger=Trigger(ended_by),
        node=node,
        picked_at=optional_ms(picked_at),
        started_at=from_ms(started_at),
        ended_at=from_ms(ended_at),
        duration=timedelta(milliseconds=duration),
        error=error,
    )


def node_row(info: NodeInfo, now_ms: int) -> Stored:
    """A heartbeat in the order of NODE_COLUMNS; the last two count only at the first one."""
    return [
        cleaned(info.incarnation),
        cleaned(info.name),
        cleaned(info.host),
        info.boot_id,
        info.pid_namespace,
        info.pid,
        info.pid_started,
        info.state,
        encode_map(info.detail),
        now_ms,
        now_ms,
    ]


def node_from(row: Stored, now_ms: int) -> Node:
    """The registered node of a row in the order of NODE_COLUMNS."""
    (
        incarnation, name, host, boot_id, pid_namespace, pid, pid_started, state, detail, started_at, last,
    ) = row  # fmt: skip
    return Node(
        info=NodeInfo(
            incarnation=incarnation,
            name=name,
            host=host,
            boot_id=boot_id,
            pid_namespace=pid_namespace,
            pid=pid,
            pid_started=pid_started,
            state=state,
            detail=decode_map(detail),
        ),
        started_at=from_ms(started_at),
        last_heartbeat=from_ms(last),
        age=timedelta(milliseconds=now_ms - last),
    )


def dumps(rows: Sequence[object]) -> str:
    """Rows as the one JSON parameter of a statement."""
    return _dumps(rows)


_dumps: Final[Callable[[object], str]] = json.JSONEncoder(separators=(",", ":")).encode
