"""Ratchet: a persistent job scheduler. Submit a function call; it is stored, claimed by exactly one node,
executed, retried, observed, and never lost.

    >>> from ratchet import Scheduler
    >>> scheduler = Scheduler.from_url("memory://", allow=["textwrap"])
    >>> import textwrap
    >>> with scheduler:
    ...     scheduler.enqueue(textwrap.indent, "rows", "> ").submit().result(timeout=10)
    '> rows'
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ratchet.aio import AsyncJobHandle, AsyncScheduler
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

_HOME: Final = {
    "AsyncJobHandle": "ratchet.aio",
    "AsyncScheduler": "ratchet.aio",
    "AttemptEnd": "ratchet.domain.lifecycle",
    "Backoff": "ratchet.domain.retry",
    "CancellationRequested": "ratchet.errors",
    "DoNotRetry": "ratchet.errors",
    "Execution": "ratchet.domain.lifecycle",
    "ExecutionSettings": "ratchet.settings",
    "Job": "ratchet.domain.job",
    "JobCallbackFailed": "ratchet.domain.events",
    "JobCanceled": "ratchet.domain.events",
    "JobCanceling": "ratchet.domain.events",
    "JobCompleted": "ratchet.domain.events",
    "JobContext": "ratchet.context",
    "JobDlq": "ratchet.domain.events",
    "JobEvent": "ratchet.domain.events",
    "JobFailed": "ratchet.domain.events",
    "JobHandle": "ratchet.handle",
    "JobOptions": "ratchet.domain.options",
    "JobPaused": "ratchet.domain.events",
    "JobRequeued": "ratchet.domain.events",
    "JobResumed": "ratchet.domain.events",
    "JobRetrying": "ratchet.domain.events",
    "JobStarted": "ratchet.domain.events",
    "JobTimedOut": "ratchet.domain.events",
    "JobType": "ratchet.domain.job",
    "JobsBulkRetried": "ratchet.domain.events",
    "NodeSettings": "ratchet.settings",
    "PayloadSettings": "ratchet.settings",
    "PollingSettings": "ratchet.settings",
    "Priority": "ratchet.domain.priority",
    "RatchetError": "ratchet.errors",
    "RetryAfter": "ratchet.errors",
    "Scheduler": "ratchet.scheduler",
    "Selection": "ratchet.spi.store",
    "Settings": "ratchet.settings",
    "Status": "ratchet.domain.lifecycle",
    "TimeoutSettings": "ratchet.settings",
    "circuit_breaker": "ratchet.engine.targets",
    "current_job": "ratchet.context",
    "do_not_retry": "ratchet.errors",
}
"""Where each public name lives: imported at first use, so that a child process or a script loads only its share."""

__all__ = [
    "AsyncJobHandle",
    "AsyncScheduler",
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


def __getattr__(name: str) -> Any:
    """Import a public name at first use."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'ratchet' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Every public name."""
    return sorted({*globals(), *__all__})
