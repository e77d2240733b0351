"""A job as it is asked for, as it is stored, and the few words it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal, TypeAlias
from uuid import UUID

from ratchet.domain.lifecycle import SETTLED, Status
from ratchet.domain.priority import Priority
from ratchet.domain.retry import NO_BACKOFF, Backoff
from ratchet.domain.value import ValueObject

CallbackKind: TypeAlias = Literal["on_success", "on_failure"]


class JobType(StrEnum):
    """What a job is to its workflow. A BATCH parent does no work and is never claimed."""

    SINGLE = "SINGLE"
    CHAIN_STEP = "CHAIN_STEP"
    BRANCH = "BRANCH"
    BATCH = "BATCH"
    BATCH_CHILD = "BATCH_CHILD"
    RECURRING_FIRE = "RECURRING_FIRE"


DEFAULT_TIMEOUT = timedelta(minutes=30)
MAX_TIMEOUT = timedelta(days=10_000)
"""Of one execution. Some 27 years: whatever is longer is a mistake, and a wait for it overflows."""
MAX_RETRIES = 2**31 - 1
"""What a 32-bit column holds."""
MAX_KEY = 255
MAX_TAG = 64


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class NewJob(ValueObject):
    """A job as it is submitted: checked and encoded, not yet stored.

    Attributes:
        id: UUIDv7.
        target: ``module:qualname`` or a registered name.
        payload: the arguments as codec text (opaque ASCII).
        format: the version of that text.
        params: name -> codec text.
        executor: where the body runs: ``threads``, ``async`` or ``processes``; decided at submission.
        delay: from store time to the due time; None and `at` None: due now.
        at: the due time that the user gave.
        start: PENDING, or WAITING for a signal.
        metadata: further facts as text.
        claim_for: the incarnation that would run it at once; see `ratchet.spi.store.JobStore.insert`.
    """

    id: UUID
    target: str
    payload: str
    format: int = 1
    params: Mapping[str, str] = field(default_factory=dict)
    type: JobType = JobType.SINGLE
    executor: str = "threads"
    priority: Priority = Priority.NORMAL
    delay: timedelta | None = None
    at: datetime | None = None
    start: Status = Status.PENDING
    max_retries: int = 0
    backoff: Backoff = NO_BACKOFF
    timeout: timedelta = DEFAULT_TIMEOUT
    tags: frozenset[str] = frozenset()
    idempotency_key: str | None = None
    business_key: str | None = None
    principal: str | None = None
    resource: str | None = None
    on_success: str | None = None
    on_failure: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    claim_for: str | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Job(ValueObject):
    """A job as it is stored. Field meanings are those of `NewJob`; what the table writes is named there.

    Attributes:
        scheduled_time: due when <= store time.
        picked_by: the incarnation that holds (or, of a settled job, held) the claim.
        claim_seq: how many claims there were; the latest is the fence.
        version: how many transitions there were.
        attempts: executions charged as failures.
        crash_count: executions lost with their node.
        result: codec text, or a marker where the result was too large.
        signal: the delivered signal as codec text.
    """

    id: UUID
    status: Status
    target: str
    payload: str
    format: int
    type: JobType
    executor: str
    priority: Priority
    scheduled_time: datetime
    created_at: datetime
    updated_at: datetime
    params: Mapping[str, str] = field(default_factory=dict)
    version: int = 0
    claim_seq: int = 0
    attempts: int = 0
    crash_count: int = 0
    max_retries: int = 0
    backoff: Backoff = NO_BACKOFF
    timeout: timedelta = DEFAULT_TIMEOUT
    tags: frozenset[str] = frozenset()
    idempotency_key: str | None = None
    business_key: str | None = None
    principal: str | None = None
    resource: str | None = None
    on_success: str | None = None
    on_failure: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    picked_by: str | None = None
    picked_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    duration: timedelta | None = None
    queue_wait: timedelta | None = None
    last_error: str | None = None
    result: str | None = None
    paused_from_status: Status | None = None
    superseded_by: UUID | None = None
    signal: str | None = None

    @property
    def is_batch_parent(self) -> bool:
        """True for a job that only stands for its children."""
        return self.type is JobType.BATCH

    @property
    def is_settled(self) -> bool:
        """True once an outcome is recorded."""
        return self.status in SETTLED


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Claim(ValueObject):
    """What a worker holds: the right to execute one attempt, and what it needs for that.

    `claim_seq` is the fence: every write that follows carries it.
    """

    job_id: UUID
    claim_seq: int
    target: str
    payload: str
    format: int
    executor: str
    attempts: int
    crash_count: int
    max_retries: int
    backoff: Backoff
    timeout: timedelta
    priority: Priority
    type: JobType
    scheduled_time: datetime
    picked_at: datetime
    params: Mapping[str, str]
    tags: frozenset[str]
    business_key: str | None
    principal: str | None
    resource: str | None
    on_success: str | None
    on_failure: str | None
    metadata: Mapping[str, str]
    signal: str | None = None
