"""Reading: pages of jobs, one job with its history, the state of the queue and the nodes (section 13)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from ratchet.domain.job import Job
from ratchet.domain.lifecycle import Execution, Status
from ratchet.spi.store import Health, Node, Order, Page, Selection

if TYPE_CHECKING:
    from ratchet.spi.codec import PayloadCodec
    from ratchet.spi.store import JobStore

WINDOW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class JobDetail:
    """One job and how its claims ended.

    Attributes:
        job: the row; a claim still running is here.
        history: one entry per ended claim, oldest first.
    """

    job: Job
    history: Sequence[Execution]


class JobQuery:
    """What can be read. Nothing here changes anything."""

    def __init__(self, store: JobStore, codec: PayloadCodec) -> None:
        self._store, self._codec = store, codec

    def find(
        self,
        selection: Selection | None = None,
        *,
        order: Order = "created_desc",
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """One page of jobs.

        Args:
            selection: which; None: all.
            order: newest first by default; ties by id.
            limit: 1 to 1000.
            cursor: `Page.cursor` of the page before.

        Raises:
            UsageError: a bad limit or a foreign cursor.
        """
        return self._store.find(selection or Selection(), order=order, limit=limit, cursor=cursor)

    def iterate(self, selection: Selection | None = None, *, order: Order = "id_asc") -> Iterator[Job]:
        """Every job of the selection, page by page, in constant memory."""
        cursor = None
        while True:
            page = self.find(selection, order=order, limit=500, cursor=cursor)
            yield from page.jobs
            cursor = page.cursor
            if cursor is None:
                return

    def count(self, selection: Selection | None = None) -> int:
        """How many jobs match."""
        return self._store.count(selection or Selection())

    def counts(self) -> Mapping[Status, int]:
        """How many jobs are in each state."""
        return self._store.counts()

    def detail(self, job_id: UUID) -> JobDetail | None:
        """One job with its execution history; None if unknown."""
        job = self._store.get(job_id)
        return None if job is None else JobDetail(job, self._store.history(job_id))

    def arguments(self, job: Job) -> tuple[tuple[object, ...], dict[str, object]]:
        """The decoded arguments of a job."""
        return self._codec.decode_arguments(job.payload, job.format)

    def health(self, *, window: timedelta = WINDOW) -> Health:
        """Counts, the age of the oldest due job, and rates over the last `window`."""
        return self._store.health(window=window)

    def nodes(self) -> Sequence[Node]:
        """Every registered node, latest heartbeat first."""
        return self._store.nodes()
