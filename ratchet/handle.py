"""What a submission gives back: a job's id, and ways to follow it to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from uuid import UUID

from ratchet.domain.lifecycle import Status
from ratchet.domain.options import seconds_of
from ratchet.engine.ending import decode_result
from ratchet.errors import JobCanceledError, JobFailedError, JobNotFound, JobPurged, StoreTransientError

if TYPE_CHECKING:
    from ratchet.domain.job import Job
    from ratchet.engine.ending import Waiters
    from ratchet.spi.store import JobStore

R_co = TypeVar("R_co", covariant=True)
FIRST_LOOK = 0.002
SLOWEST_LOOK = 0.1


@dataclass(frozen=True, slots=True)
class JobHandle(Generic[R_co]):
    """A submitted job.

    Attributes:
        id: its id.
        created: False if its idempotency key was taken: then this is the original job.
    """

    id: UUID
    created: bool
    _store: JobStore
    _waiters: Waiters
    _decode: Callable[[str], object]

    @property
    def status(self) -> Status | None:
        """The job's state now, read from the store; None if it has been purged."""
        job = self._store.get(self.id)
        return None if job is None else job.status

    def job(self) -> Job | None:
        """The whole stored job now; None if it has been purged."""
        return self._store.get(self.id)

    def result(self, timeout: float | timedelta | None = None) -> R_co:
        """Wait for the job to settle and answer what its body returned; from any process.

        Args:
            timeout: how long to wait, in seconds or as a timedelta; None: for ever.

        Raises:
            JobFailedError: it failed permanently.
            JobCanceledError: it was canceled or replaced.
            JobPurged: it has been deleted.
            ResultNotStored: it succeeded with a result too large to keep.
            TimeoutError: it has not settled in time.
            UsageError: a timeout that is negative or no number.
        """
        job = self.wait(timeout)
        return cast("R_co", result_of(job, self._decode))

    def wait(self, timeout: float | timedelta | None = None) -> Job:
        """Wait for the job to settle, however it ends, and answer it.

        Raises:
            JobPurged: it has been deleted.
            TimeoutError: it has not settled in time.
        """
        seconds = None if timeout is None else seconds_of("timeout", timeout)
        end = None if seconds is None else time.monotonic() + seconds
        look = FIRST_LOOK
        while True:
            job = self._look(end)
            if job is not None and job.is_settled:
                return job
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                state = "unreachable" if job is None else job.status
                raise TimeoutError(f"job {self.id} has not settled after {seconds:g} s; it is {state}")
            self._waiters.wait(look if left is None else min(look, left))
            look = min(look * 1.5, SLOWEST_LOOK)

    def _look(self, end: float | None) -> Job | None:
        try:
            job = self._store.get(self.id)
        except StoreTransientError:
            if end is not None and time.monotonic() >= end:
                raise
            return None
        if job is None:
            raise JobPurged(f"job {self.id} has been deleted; nothing is known of its result")
        return job

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}{'' if self.created else ' (existing)'}>"


def result_of(job: Job, decode: Callable[[str], object]) -> Any:
    """What a settled job's body returned.

    Raises:
        JobFailedError, JobCanceledError, ResultNotStored: as `JobHandle.result`.
    """
    match job.status:
        case Status.SUCCEEDED:
            return cast("Any", decode_result(decode, job.result))
        case Status.FAILED:
            raise JobFailedError(job.id, job.last_error)
        case Status.CANCELED:
            raise JobCanceledError(job.id, job.superseded_by)
        case _:
            raise JobNotFound(f"job {job.id} has not settled; it is {job.status}")
