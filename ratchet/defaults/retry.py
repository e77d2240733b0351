"""The default retry policy: leaves everything to the job's own options."""

from __future__ import annotations

from datetime import timedelta


class DefaultRetryPolicy:
    """Forbids nothing and imposes no delay."""

    def should_retry(self, attempt: int, error: BaseException) -> bool:
        """Always True: the job's `max_retries` decides."""
        return True

    def delay(self, attempt: int) -> timedelta:
        """Always zero: the job's back-off decides."""
        return timedelta()
