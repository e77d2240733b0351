"""Whether to retry, asked before the budget is looked at (specification, section 7)."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol, runtime_checkable


@runtime_checkable
class RetryPolicy(Protocol):
    """Decides over all jobs of a node. One that raises counts as the default policy, and is logged.

    Contracts: RP-01 ... RP-05.
    """

    def should_retry(self, attempt: int, error: BaseException) -> bool:
        """False forbids a retry of the execution that just failed.

        Args:
            attempt: how many executions have failed, this one included (from 1).
            error: what it raised; `ratchet.errors.JobError` where the live exception is gone.
        """
        ...

    def delay(self, attempt: int) -> timedelta:
        """The delay before the next execution; zero: the job's own back-off decides."""
        ...
