"""Tells waiting handles that their jobs have settled: one reader for all of them, however many wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID

from ratchet.domain.lifecycle import SETTLED
from ratchet.errors import JobPurged, StoreTransientError
from ratchet.handle import FIRST_LOOK, SLOWEST_LOOK
from ratchet.spi.store import Selection

if TYPE_CHECKING:
    from ratchet.aio.bridge import Bridge
    from ratchet.domain.job import Job
    from ratchet.engine.ending import Waiters
    from ratchet.spi.store import JobStore

FEW: Final = 20
"""Up to so many jobs are read whole; of more only those that have settled, so that payloads do not travel."""

CHUNK: Final = 500
COMPLETE_EVERY: Final = 2.0
"""Seconds between two looks for jobs that are gone altogether, where many are waited for."""


class Watcher:
    """Of one event loop. It reads while somebody waits: soon at first, then every 100 ms, and at once when
    something settles in this process. No thread is held while waiting.

    Args:
        store: answers the store, which may change under a scheduler (tests).
        waiters: answers what tells of local settlements.
        bridge: where the reads run.
    """

    def __init__(self, store: Callable[[], JobStore], waiters: Callable[[], Waiters], bridge: Bridge) -> None:
        self._store, self._waiters, self._bridge = store, waiters, bridge
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[UUID, set[asyncio.Future[Job]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._fresh = False
        self._complete_at = 0.0

    async def settled(self, job_id: UUID) -> Job:
        """The job, once it has settled.

        Raises:
            JobPurged: it has been deleted.
            StorePermanentError: the store cannot be read until somebody acts.
        """
        future: asyncio.Future[Job] = self._loop.create_future()
        self._waiting.setdefault(job_id, set()).add(future)
        self._fresh = True
        self._news.set()
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._run(), name="ratchet-watcher")
        try:
            return await future
        finally:
            futures = self._waiting.get(job_id)
            if futures is not None:
                futures.discard(future)
                if not futures:
                    del self._waiting[job_id]

    def _poke(self) -> None:
        """Something settled in this process (called on any thread)."""
        if not self._news.is_set():
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._news.set)

    async def _run(self) -> None:
        waiters = self._waiters()
        waiters.listen(self._poke)
        look = FIRST_LOOK
        try:
            while self._waiting:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), look)
                self._news.clear()
                if self._fresh:
                    look, self._fresh = FIRST_LOOK, False
                began = time.monotonic()
                await self._look(tuple(self._waiting))
                # Never more than half of one thread's time, however many jobs are waited for.
                look = max(min(look * 1.5, SLOWEST_LOOK), time.monotonic() - began)
        finally:
            waiters.unlisten(self._poke)
            for futures in self._waiting.values():  # only if this task was cancelled: nobody would tell them
                for future in futures:
                    future.cancel()

    async def _look(self, ids: Sequence[UUID]) -> None:
        thorough = len(ids) <= FEW or time.monotonic() >= self._complete_at
        try:
            settled, gone = await self._bridge.run(lambda: _read(self._store(), ids, thorough=thorough))
        except StoreTransientError:
            return  # the caller's own timeout decides how long to hope
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            for job_id in ids:
                self._tell(job_id, error)
            return
        if thorough:
            self._complete_at = time.monotonic() + COMPLETE_EVERY
        for job in settled:
            self._tell(job.id, job)
        for job_id in gone:
            self._tell(job_id, JobPurged(f"job {job_id} has been deleted; nothing is known of its result"))

    def _tell(self, job_id: UUID, answer: Job | Exception) -> None:
        for future in self._waiting.pop(job_id, ()):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def _read(store: JobStore, ids: Sequence[UUID], *, thorough: bool) -> tuple[list[Job], list[UUID]]:
    """(those that have settled, those that are gone)."""
    if len(ids) <= FEW:
        found = store.get_many(ids)
        known = {job.id for job in found}
        return [job for job in found if job.is_settled], [job_id for job_id in ids if job_id not in known]
    settled: list[Job] = []
    gone: list[UUID] = []
    for start in range(0, len(ids), CHUNK):
        chunk = frozenset(ids[start : start + CHUNK])
        settled += store.find(Selection(ids=chunk, statuses=SETTLED), order="id_asc", limit=CHUNK).jobs
        if thorough and store.count(Selection(ids=chunk)) < len(chunk):
            known = {job.id for job in store.get_many(list(chunk))}
            gone += [job_id for job_id in chunk if job_id not in known]
    return settled, gone
