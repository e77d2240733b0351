"""Ratchet: a persistent job scheduler. Submit a function call; it is stored, claimed by exactly one node,
executed, retried, observed, and never lost.

    >>> from ratchet import Scheduler
    >>> scheduler = Scheduler.from_url("memory://", allow=["operator"])
    >>> import operator
    >>> with scheduler:
    ...     scheduler.enqueue(operator.add, 2, 3).submit().result(timeout=10)
    5
"""

from ratchet.context import JobContext, current_job
from ratchet.domain.events import (
    JobCallbackFailed,
    JobCanceled,
    JobCanceling,
    JobCompleted,
    JobDlq,
    JobEvent,
    JobFailed,
    JobPaused,
    JobRequeued,
    JobResumed,
    JobRetrying,
    JobsBulkRetried,
    JobStarted,
    JobTimedOut,
)
from ratchet.domain.job import Job, JobType
from ratchet.domain.lifecycle import AttemptEnd, Execution, Status
from ratchet.domain.options import JobOptions
from ratchet.domain.priority import Priority
from ratchet.domain.retry import Backoff
from ratchet.engine.targets import circuit_breaker
from ratchet.errors import CancellationRequested, DoNotRetry, RatchetError, RetryAfter, do_not_retry
from ratchet.handle import JobHandle
from ratchet.scheduler import Scheduler
from ratchet.settings import (
    ExecutionSettings,
    NodeSettings,
    PayloadSettings,
    PollingSettings,
    Settings,
    TimeoutSettings,
)
from ratchet.spi.store import Selection

__version__ = "0.1.0"

__all__ = [
    "AttemptEnd",
    "Backoff",
    "CancellationRequested",
    "DoNotRetry",
    "Execution",
    "ExecutionSettings",
    "Job",
    "JobCallbackFailed",
    "JobCanceled",
    "JobCanceling",
    "JobCompleted",
    "JobContext",
    "JobDlq",
    "JobEvent",
    "JobFailed",
    "JobHandle",
    "JobOptions",
    "JobPaused",
    "JobRequeued",
    "JobResumed",
    "JobRetrying",
    "JobStarted",
    "JobTimedOut",
    "JobType",
    "JobsBulkRetried",
    "NodeSettings",
    "PayloadSettings",
    "PollingSettings",
    "Priority",
    "RatchetError",
    "RetryAfter",
    "Scheduler",
    "Selection",
    "Settings",
    "Status",
    "TimeoutSettings",
    "circuit_breaker",
    "current_job",
    "do_not_retry",
]
