"""Reading for asyncio code: the methods of `ratchet.query.JobQuery`, to be awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from ratchet.query import WINDOW, JobDetail, JobQuery

if TYPE_CHECKING:
    from ratchet.aio.bridge import Bridge
    from ratchet.domain.job import Job
    from ratchet.domain.lifecycle import Status
    from ratchet.spi.store import Health, Node, Order, Page, Selection


class AsyncJobQuery:
    """What can be read. Nothing here changes anything."""

    def __init__(self, query: Callable[[], JobQuery], bridge: Bridge) -> None:
        self._query, self._bridge = query, bridge

    async def find(
        self,
        selection: Selection | None = None,
        *,
        order: Order = "created_desc",
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """One page of jobs; as `JobQuery.find`."""
        query = self._query()
        return await self._bridge.run(lambda: query.find(selection, order=order, limit=limit, cursor=cursor))

    async def iterate(
        self, selection: Selection | None = None, *, order: Order = "id_asc"
    ) -> AsyncIterator[Job]:
        """Every job of the selection, page by page, in constant memory."""
        cursor = None
        while True:
            page = await self.find(selection, order=order, limit=500, cursor=cursor)
            for job in page.jobs:
                yield job
            cursor = page.cursor
            if cursor is None:
                return

    async def count(self, selection: Selection | None = None) -> int:
        """How many jobs match."""
        query = self._query()
        return await self._bridge.run(lambda: query.count(selection))

    async def counts(self) -> Mapping[Status, int]:
        """How many jobs are in each state."""
        return await self._bridge.run(self._query().counts)

    async def detail(self, job_id: UUID) -> JobDetail | None:
        """One job with its execution history; None if unknown."""
        query = self._query()
        return await self._bridge.run(lambda: query.detail(job_id))

    def arguments(self, job: Job) -> tuple[tuple[object, ...], dict[str, object]]:
        """The decoded arguments of a job; nothing is read."""
        return self._query().arguments(job)

    async def health(self, *, window: timedelta = WINDOW) -> Health:
        """Counts, the age of the oldest due job, and rates over the last `window`."""
        query = self._query()
        return await self._bridge.run(lambda: query.health(window=window))

    async def nodes(self) -> Sequence[Node]:
        """Every registered node, latest heartbeat first."""
        return await self._bridge.run(self._query().nodes)
