"""What a submission gives back to asyncio code: a job's id, and ways to follow it to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast
from uuid import UUID

from ratchet.domain.options import seconds_of
from ratchet.errors import JobPurged
from ratchet.handle import result_of

if TYPE_CHECKING:
    from ratchet.domain.job import Job
    from ratchet.domain.lifecycle import Status

R_co = TypeVar("R_co", covariant=True)


class Reader(Protocol):
    """What a handle needs of its scheduler."""

    @property
    def settled(self) -> Callable[[UUID], Awaitable[Job]]:
        """Waits until a job has settled."""
        ...

    @property
    def decode(self) -> Callable[[str], object]:
        """Decodes a stored result."""
        ...

    async def get(self, job_id: UUID) -> Job | None:
        """Reads a job."""
        ...


@dataclass(frozen=True, slots=True)
class AsyncJobHandle(Generic[R_co]):
    """A submitted job.

    Attributes:
        id: its id.
        created: False if its idempotency key was taken: then this is the original job.
    """

    id: UUID
    created: bool
    _reader: Reader

    async def status(self) -> Status | None:
        """The job's state now, read from the store; None if it has been purged."""
        job = await self._reader.get(self.id)
        return None if job is None else job.status

    async def job(self) -> Job | None:
        """The whole stored job now; None if it has been purged."""
        return await self._reader.get(self.id)

    async def result(self, timeout: float | timedelta | None = None) -> R_co:  # noqa: ASYNC109 - as in the sync handle
        """Wait for the job to settle and answer what its body returned; from any process.

        Any number of handles may wait at once: none of them holds a thread. A task that is cancelled
        here leaves the job as it is.

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
        job = await self.wait(timeout)
        return cast("R_co", result_of(job, self._reader.decode))

    async def wait(self, timeout: float | timedelta | None = None) -> Job:  # noqa: ASYNC109 - as in the sync handle
        """Wait for the job to settle, however it ends, and answer it.

        Raises:
            JobPurged: it has been deleted.
            TimeoutError: it has not settled in time.
        """
        seconds = None if timeout is None else seconds_of("timeout", timeout)
        if seconds is not None and seconds <= 0:
            job = await self._reader.get(self.id)
            if job is None:
                raise JobPurged(f"job {self.id} has been deleted; nothing is known of its result")
            if job.is_settled:
                return job
            raise TimeoutError(f"job {self.id} has not settled; it is {job.status}")
        try:
            async with asyncio.timeout(seconds):
                return await self._reader.settled(self.id)
        except TimeoutError:
            raise TimeoutError(f"job {self.id} has not settled after {seconds:g} s") from None

    def __repr__(self) -> str:
        return f"<AsyncJobHandle {self.id}{'' if self.created else ' (existing)'}>"
