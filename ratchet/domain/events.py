"""What listeners are told, after the commit it describes (specification, section 12).

Events are local to the node where they happen and are not replayed: the stored job is the truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """What every event has.

    Attributes:
        job_id: the job.
        attempt: the number of the attempt, from 1; 0 where none has begun.
        at: when, by store time.
        node: the name of the node where it happened.
    """

    job_id: UUID
    attempt: int
    at: datetime
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(JobEvent):
    """The body is about to run."""

    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTimedOut(JobEvent):
    """The deadline passed and that was written; retrying or failed follows."""

    timeout: timedelta
    elapsed: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCompleted(JobEvent):
    """The job succeeded."""

    duration: timedelta
    queue_wait: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRetrying(JobEvent):
    """The attempt failed; the next one is due at `scheduled_time`."""

    error: str
    scheduled_time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed(JobEvent):
    """The job failed for good. `JobDlq` follows."""

    error: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDlq(JobEvent):
    """The job is in the dead-letter queue: exactly one for every job that becomes FAILED."""

    error: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequeued(JobEvent):
    """A failed job was put back by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCanceling(JobEvent):
    """A running job was canceled; its body is asked to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCanceled(JobEvent):
    """The job is canceled; of a running one: its body has ended."""

    superseded_by: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPaused(JobEvent):
    """The job was suspended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResumed(JobEvent):
    """The job is queued again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCallbackFailed(JobEvent):
    """A callback raised; the job's outcome is untouched."""

    callback: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsBulkRetried:
    """`retry_all` put several failed jobs back.

    Attributes:
        job_ids: which.
        skipped: how many were left because of a conflict.
    """

    job_ids: tuple[UUID, ...]
    skipped: int
    at: datetime
    node: str
