"""The table: every state a job can be in, every transition there is, and what each one writes.

This is the only place that knows. The stores interpret or translate `TABLE`, the documentation is
rendered from it, and the conformance suite makes one test of each state x trigger cell.

Two words that are not the same: a *settled* job has an outcome; a *final* one can never change
again. FAILED is settled but not final: it can be requeued by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol
from uuid import UUID

from ratchet.domain.value import ValueObject
from ratchet.errors import UsageError


class Status(StrEnum):
    """The seven states (specification, section 1)."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    WAITING = "WAITING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class Trigger(StrEnum):
    """The verbs that move a job; the same word in the table, the SPI, the events and the docs."""

    CLAIM = "claim"
    SUCCEED = "succeed"
    RETRY = "retry"
    FAIL = "fail"
    DEFER = "defer"
    RELEASE = "release"
    RECOVER = "recover"
    CRASH_FAIL = "crash-fail"
    PAUSE = "pause"
    RESUME = "resume"
    UNBLOCK = "unblock"
    BATCH_SETTLE = "batch-settle"
    SIGNAL = "signal"
    SIGNAL_TIMEOUT = "signal-timeout"
    CANCEL = "cancel"
    CANCEL_RUNNING = "cancel-running"
    REQUEUE = "requeue"
    REPLACE = "replace"


class AttemptEnd(StrEnum):
    """How a claim ended, as the execution history tells it (section 13)."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CRASHED = "CRASHED"
    RELEASED = "RELEASED"
    DEFERRED = "DEFERRED"
    CANCELED = "CANCELED"


class Condition(StrEnum):
    """What must hold beyond the source state."""

    NONE = "-"
    DUE = "due, and not a batch parent"
    OWNER_DEAD = "the owner is dead"
    BLOCKED = "a blocked step (scheduled_time is UNSCHEDULED)"
    NOT_BATCH_PARENT = "not a batch parent"
    BATCH_PARENT = "a batch parent"


class Value(StrEnum):
    """Where the value comes from that a transition writes into a field."""

    NULL = "cleared"
    ZERO = "0"
    INCREMENT = "+1"
    NOW = "store time"
    GIVEN = "given by the change"
    GIVEN_OR_KEPT = "given by the change, else kept"
    DUE = "store time + delay; kept without a delay"
    START = "end - duration"
    END = "store time - age"
    DURATION = "given by the change, else end - picked_at"
    QUEUE_WAIT = "start - scheduled_time, at least 0"
    OWNER = "the claiming incarnation"
    SOURCE = "the status it leaves"


class BusinessKey(StrEnum):
    """What becomes of the job's business key."""

    KEPT = "kept"
    FREED = "freed"
    TAKEN = "taken again, or DuplicateBusinessKey"
    MOVED = "moved to the new job"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Transition(ValueObject):
    """One row of the table.

    Attributes:
        trigger: the verb.
        sources: the states from which it is allowed.
        targets: where it may lead; empty: the status stays.
        fenced: True if the change must carry the claim's `claim_seq`.
        writes: field -> where its value comes from. Every transition also adds 1 to `version` and
            sets `updated_at`.
        business_key: what becomes of the key.
        ends: how the execution history records the claim that ends here; None if no claim ends.
            The change may say TIMED_OUT where the row says FAILED.
        consequences: True if it can have effects on other rows, so that it travels by `settle`.
        event: the word of the event, as section 12 names it; empty: none.
        condition: what must hold beyond the source state.
    """

    trigger: Trigger
    sources: tuple[Status, ...]
    targets: tuple[Status, ...]
    fenced: bool
    writes: Mapping[str, Value]
    business_key: BusinessKey
    ends: AttemptEnd | None = None
    consequences: bool = False
    event: str = ""
    condition: Condition = Condition.NONE

    @property
    def clears(self) -> tuple[str, ...]:
        """Fields that end without a value."""
        return tuple(name for name, value in self.writes.items() if value is Value.NULL)

    @property
    def counters(self) -> tuple[str, ...]:
        """Fields that count up or start again at 0."""
        return tuple(n for n, value in self.writes.items() if value in (Value.INCREMENT, Value.ZERO))

    @property
    def stamps(self) -> tuple[str, ...]:
        """Fields that receive a value."""
        cleared_or_counted = {*self.clears, *self.counters}
        return tuple(name for name in self.writes if name not in cleared_or_counted)


_P, _R, _U, _W = Status.PENDING, Status.RUNNING, Status.PAUSED, Status.WAITING
_S, _F, _C = Status.SUCCEEDED, Status.FAILED, Status.CANCELED

_RETURNED: Final = {"picked_by": Value.NULL, "picked_at": Value.NULL}
_TIMED: Final = {
    "started_at": Value.START,
    "ended_at": Value.END,
    "duration": Value.DURATION,
    "queue_wait": Value.QUEUE_WAIT,
}


def _row(
    trigger: Trigger,
    sources: tuple[Status, ...],
    targets: tuple[Status, ...],
    writes: Mapping[str, Value],
    *,
    fenced: bool = False,
    key: BusinessKey = BusinessKey.KEPT,
    ends: AttemptEnd | None = None,
    consequences: bool = False,
    event: str = "",
    condition: Condition = Condition.NONE,
) -> Transition:
    frozen = MappingProxyType(dict(writes))
    return Transition(trigger, sources, targets, fenced, frozen, key, ends, consequences, event, condition)


TABLE: Final[tuple[Transition, ...]] = (
    _row(
        Trigger.CLAIM, (_P,), (_R,),
        {"claim_seq": Value.INCREMENT, "picked_by": Value.OWNER, "picked_at": Value.NOW},
        event="started", condition=Condition.DUE,
    ),
    _row(
        Trigger.SUCCEED, (_R,), (_S,), {"result": Value.GIVEN, **_TIMED},
        fenced=True, key=BusinessKey.FREED, ends=AttemptEnd.SUCCEEDED, consequences=True, event="completed",
    ),
    _row(
        Trigger.RETRY, (_R,), (_P,),
        {"attempts": Value.INCREMENT, "last_error": Value.GIVEN, "scheduled_time": Value.DUE, **_RETURNED},
        fenced=True, ends=AttemptEnd.FAILED, event="retrying",
    ),
    _row(
        Trigger.FAIL, (_R,), (_F,), {"attempts": Value.GIVEN_OR_KEPT, "last_error": Value.GIVEN, **_TIMED},
        fenced=True, key=BusinessKey.FREED, ends=AttemptEnd.FAILED, consequences=True, event="failed",
    ),
    _row(
        Trigger.DEFER, (_R,), (_P,), {"scheduled_time": Value.DUE, **_RETURNED},
        fenced=True, ends=AttemptEnd.DEFERRED,
    ),
    _row(Trigger.RELEASE, (_R,), (_P,), _RETURNED, fenced=True, ends=AttemptEnd.RELEASED),
    _row(
        Trigger.RECOVER, (_R,), (_P,), {"crash_count": Value.INCREMENT, **_RETURNED},
        fenced=True, ends=AttemptEnd.CRASHED, condition=Condition.OWNER_DEAD,
    ),
    _row(
        Trigger.CRASH_FAIL, (_R,), (_F,), {"last_error": Value.GIVEN, **_TIMED},
        fenced=True, key=BusinessKey.FREED, ends=AttemptEnd.CRASHED, consequences=True, event="failed",
        condition=Condition.OWNER_DEAD,
    ),
    _row(
        Trigger.PAUSE, (_P,), (_U,), {"paused_from_status": Value.SOURCE},
        event="paused", condition=Condition.NOT_BATCH_PARENT,
    ),
    _row(Trigger.RESUME, (_U,), (_P,), {"paused_from_status": Value.NULL}, event="resumed"),
    _row(Trigger.UNBLOCK, (_P, _U), (), {"scheduled_time": Value.NOW}, condition=Condition.BLOCKED),
    _row(
        Trigger.BATCH_SETTLE, (_P,), (_S, _F), {"result": Value.GIVEN, "ended_at": Value.END},
        key=BusinessKey.FREED, consequences=True, event="batch completed", condition=Condition.BATCH_PARENT,
    ),
    _row(
        Trigger.SIGNAL, (_W,), (_P,), {"signal": Value.GIVEN, "scheduled_time": Value.NOW}, event="signaled",
    ),
    _row(
        Trigger.SIGNAL_TIMEOUT, (_W,), (_F,), {"last_error": Value.GIVEN, "ended_at": Value.END},
        key=BusinessKey.FREED, consequences=True, event="signal timed out",
    ),
    _row(
        Trigger.CANCEL, (_P, _U, _W), (_C,), {"ended_at": Value.END},
        key=BusinessKey.FREED, consequences=True, event="canceled",
    ),
    _row(
        Trigger.CANCEL_RUNNING, (_R,), (_C,), _TIMED,
        key=BusinessKey.FREED, ends=AttemptEnd.CANCELED, consequences=True, event="canceling",
    ),
    _row(
        Trigger.REQUEUE, (_F,), (_P,),
        {
            "attempts": Value.ZERO, "crash_count": Value.ZERO, "last_error": Value.NULL, "result": Value.NULL,
            "started_at": Value.NULL, "ended_at": Value.NULL, "duration": Value.NULL, "queue_wait": Value.NULL,
            "scheduled_time": Value.NOW, **_RETURNED,
        },
        key=BusinessKey.TAKEN, event="requeued",
    ),
    _row(
        Trigger.REPLACE, (_P, _U, _W), (_C,), {"superseded_by": Value.GIVEN, "ended_at": Value.END},
        key=BusinessKey.MOVED, consequences=True, event="canceled",
    ),
)  # fmt: skip

ROWS: Final[Mapping[Trigger, Transition]] = MappingProxyType({row.trigger: row for row in TABLE})

CLAIMABLE: Final = frozenset({_P})
SETTLED: Final = frozenset({_S, _F, _C})
FINAL: Final = frozenset({_S, _C})
HOLDS_BUSINESS_KEY: Final = frozenset(Status) - SETTLED
CANCELABLE: Final = frozenset(ROWS[Trigger.CANCEL].sources)
REPLACEABLE: Final = frozenset(ROWS[Trigger.REPLACE].sources)
STARTS: Final = frozenset({_P, _W})

UNSCHEDULED: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""The scheduled time of a step whose predecessor has not succeeded: never due."""

LATEST: Final = UNSCHEDULED - timedelta(seconds=1)
"""The latest time that can be asked for; anything beyond is clamped to it (section 2)."""


class Row(Protocol):
    """What a transition reads of a stored job; `ratchet.domain.job.Job` has it, a store's own row may."""

    @property
    def status(self) -> Status: ...
    @property
    def version(self) -> int: ...
    @property
    def claim_seq(self) -> int: ...
    @property
    def attempts(self) -> int: ...
    @property
    def crash_count(self) -> int: ...
    @property
    def scheduled_time(self) -> datetime: ...
    @property
    def picked_at(self) -> datetime | None: ...
    @property
    def is_batch_parent(self) -> bool: ...


class Asked(Protocol):
    """What a transition reads of a change; `ratchet.domain.settlement.Change` is the one there is."""

    @property
    def trigger(self) -> Trigger: ...
    @property
    def claim_seq(self) -> int | None: ...
    @property
    def version(self) -> int | None: ...
    @property
    def target(self) -> Status | None: ...
    @property
    def incarnation(self) -> str | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def delay(self) -> timedelta | None: ...
    @property
    def duration(self) -> timedelta | None: ...
    @property
    def age(self) -> timedelta: ...
    @property
    def timed_out(self) -> bool: ...


def refusal(job: Row, change: Asked, now: datetime) -> str | None:
    """Why `change` may not be applied to `job` as it is now; None if it may.

    The answer of every store comes from here or from a guard translated from the same row, so that
    a stale write is refused alike everywhere. Whether an owner is dead is for the store to judge.
    """
    row = ROWS[change.trigger]
    if job.status not in row.sources:
        return f"{row.trigger} is not allowed from {job.status}"
    if row.fenced and change.claim_seq is None:
        return f"{row.trigger} needs the claim_seq of its claim"
    if change.claim_seq is not None and change.claim_seq != job.claim_seq:
        return f"claim {change.claim_seq} is over; the job is at claim {job.claim_seq}"
    if change.version is not None and change.version != job.version:
        return f"version {change.version} was seen; the job is at version {job.version}"
    match row.condition:
        case Condition.DUE if job.is_batch_parent or job.scheduled_time > now:
            return "not due" if not job.is_batch_parent else "a batch parent is never claimed"
        case Condition.BLOCKED if job.scheduled_time != UNSCHEDULED:
            return "the step is not blocked"
        case Condition.NOT_BATCH_PARENT if job.is_batch_parent:
            return "a batch parent does no work of its own"
        case Condition.BATCH_PARENT if not job.is_batch_parent:
            return "not a batch parent"
        case _:
            return None


def target_of(job: Row, change: Asked) -> Status:
    """The status that `change` leads to."""
    targets = ROWS[change.trigger].targets
    if not targets:
        return job.status
    if len(targets) == 1:
        return targets[0]
    if change.target is None or change.target not in targets:
        raise UsageError(f"{change.trigger} must name its target, one of {', '.join(targets)}")
    return change.target


_MS: Final = timedelta(milliseconds=1)
_NO_TIME: Final = timedelta()
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


def clamp(instant: datetime) -> datetime:
    """An instant as it is stored: UTC, whole milliseconds, not beyond LATEST (UNSCHEDULED stays)."""
    if instant == UNSCHEDULED:
        return instant
    if instant > LATEST:  # compared first: another zone's last hours of 9999 have no UTC form
        return LATEST
    if instant < _EARLIEST:
        return _EARLIEST
    instant = instant.astimezone(UTC)
    return instant.replace(microsecond=instant.microsecond // 1000 * 1000)


def after(now: datetime, delay: timedelta) -> datetime:
    """`now` + `delay`, rounded up to a millisecond (erring late), clamped; a negative delay is now."""
    if delay <= _NO_TIME:
        return now
    if delay > LATEST - now:  # asked first: rounding the longest delays up would overflow
        return LATEST
    return min(now + -(-delay // _MS) * _MS, LATEST)


def _whole(delta: timedelta) -> timedelta:
    """Cut to milliseconds."""
    odd = delta.microseconds % 1000
    return delta - timedelta(microseconds=odd) if odd else delta


def _timings(job: Row, change: Asked, now: datetime) -> tuple[datetime, datetime, timedelta, timedelta]:
    """started_at, ended_at, duration and queue_wait of the attempt that `change` ends (section 3)."""
    end = now - _whole(change.age) if change.age > _NO_TIME else now
    if change.duration is not None:
        duration = _whole(change.duration)
    elif job.picked_at is not None:
        duration = end - job.picked_at
    else:
        duration = _NO_TIME
    if duration < _NO_TIME:
        duration = _NO_TIME
    start = end - duration
    queue_wait = start - job.scheduled_time
    return start, end, duration, max(_NO_TIME, queue_wait)


_GIVEN_AS: Final[Mapping[str, str]] = MappingProxyType({"last_error": "error"})
_Rule = Callable[[Row, "Asked", datetime, str], object]

_RULES: Final[Mapping[Value, _Rule]] = {
    Value.NULL: lambda job, change, now, name: None,
    Value.ZERO: lambda job, change, now, name: 0,
    Value.INCREMENT: lambda job, change, now, name: getattr(job, name) + 1,
    Value.NOW: lambda job, change, now, name: now,
    Value.GIVEN: lambda job, change, now, name: getattr(change, _GIVEN_AS.get(name, name)),
    Value.GIVEN_OR_KEPT: lambda job, change, now, name: (
        getattr(job, name) if getattr(change, name) is None else getattr(change, name)
    ),
    Value.DUE: lambda job, change, now, name: (
        job.scheduled_time if change.delay is None else after(now, change.delay)
    ),
    Value.START: lambda job, change, now, name: _timings(job, change, now)[0],
    Value.END: lambda job, change, now, name: _timings(job, change, now)[1],
    Value.DURATION: lambda job, change, now, name: _timings(job, change, now)[2],
    Value.QUEUE_WAIT: lambda job, change, now, name: _timings(job, change, now)[3],
    Value.OWNER: lambda job, change, now, name: change.incarnation,
    Value.SOURCE: lambda job, change, now, name: job.status,
}


def _compile(row: Transition) -> tuple[tuple[tuple[str, _Rule], ...], bool]:
    """The rules of a row, and whether it writes all four timings, which then are computed once."""
    timed = row.writes.items() >= _TIMED.items()
    names = row.writes.keys() - _TIMED.keys() if timed else row.writes.keys()
    return tuple((name, _RULES[value]) for name, value in row.writes.items() if name in names), timed


_COMPILED: Final = {row.trigger: _compile(row) for row in TABLE}


def assign(job: Row, change: Asked, now: datetime) -> dict[str, object]:
    """The fields that `change` writes into `job`, with their new values.

    `now` is store time in whole milliseconds. The caller has asked `refusal` first. A store applies
    the answer as one guarded update (status, `version`, and `claim_seq` where fenced).
    """
    fields: dict[str, object] = {
        "status": target_of(job, change),
        "version": job.version + 1,
        "updated_at": now,
    }
    rules, timed = _COMPILED[change.trigger]
    for name, rule in rules:
        fields[name] = rule(job, change, now, name)
    if timed:
        (
            fields["started_at"],
            fields["ended_at"],
            fields["duration"],
            fields["queue_wait"],
        ) = _timings(job, change, now)
    return fields


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Execution(ValueObject):
    """One ended claim, as the history keeps it: keyed by (job, `claim_seq`), never changed (section 13).

    Attributes:
        job_id: the job.
        claim_seq: the claim that ended; history is ordered by it.
        attempt: `attempts` + 1 at the time.
        end: how it ended.
        trigger: the transition that ended it.
        node: the incarnation that held the claim.
        picked_at: when it was claimed.
        started_at: when the body began, as far as known.
        ended_at: when it ended.
        duration: how long the body ran.
        error: the sanitized error text, if there was one.
    """

    job_id: UUID
    claim_seq: int
    attempt: int
    end: AttemptEnd
    trigger: Trigger
    node: str | None
    picked_at: datetime | None
    started_at: datetime
    ended_at: datetime
    duration: timedelta
    error: str | None = field(default=None)


def execution(job: Row, change: Asked, now: datetime, *, job_id: UUID, node: str | None) -> Execution | None:
    """The history row that `change` inserts in the same unit; None if it ends no claim."""
    ends = ROWS[change.trigger].ends
    if ends is None:
        return None
    if ends is AttemptEnd.FAILED and change.timed_out:
        ends = AttemptEnd.TIMED_OUT
    start, end, duration, _ = _timings(job, change, now)
    return Execution(
        job_id=job_id,
        claim_seq=job.claim_seq,
        attempt=job.attempts + 1,
        end=ends,
        trigger=change.trigger,
        node=node,
        picked_at=job.picked_at,
        started_at=start,
        ended_at=end,
        duration=duration,
        error=change.error,
    )
