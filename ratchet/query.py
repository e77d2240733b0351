"""Reading: pages of jobs, one job with its history, the state of the queue and the nodes (section 13)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from ratchet.domain.job import Job, JobType
from ratchet.domain.lifecycle import Execution, Status
from ratchet.domain.options import check_id
from ratchet.domain.priority import Priority
from ratchet.errors import UsageError
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


_MEMBERS: Final[Mapping[str, type]] = {
    "ids": UUID, "statuses": Status, "types": JobType, "priorities": Priority, "tags": str
}  # fmt: skip


def checked(selection: Selection | None) -> Selection:
    """A selection that a store can take; None: all jobs.

    Raises:
        UsageError: something else, or a field with something else in it.
    """
    if selection is None:
        return Selection()
    if not isinstance(selection, Selection):
        raise UsageError(
            f"jobs are chosen by a Selection, like Selection(tags={{'nightly'}}), not {type(selection).__name__}"
        )
    for name, kind in _MEMBERS.items():
        values = getattr(selection, name)
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise UsageError(f"Selection.{name} is a set, not {type(values).__name__}")
        for value in values:
            if not isinstance(value, kind):
                raise UsageError(f"Selection.{name} takes {kind.__name__}, not {value!r}")
    for name in ("business_key", "principal", "target", "error"):
        text = getattr(selection, name)
        if text is not None and not isinstance(text, str):
            raise UsageError(f"Selection.{name} is text, not {type(text).__name__}")
    for name in ("created_from", "created_before", "ended_from", "ended_before"):
        instant = getattr(selection, name)
        if instant is not None and (not isinstance(instant, datetime) or instant.utcoffset() is None):
            raise UsageError(f"Selection.{name} is an aware datetime, not {instant!r}")
    return selection


def check_limit(limit: object) -> None:
    """Refuse what is no whole number; a store knows its bounds."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise UsageError(f"a limit is a whole number, not {limit!r}")


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
            UsageError: no `Selection`, a bad limit or a foreign cursor.
        """
        check_limit(limit)
        return self._store.find(checked(selection), order=order, limit=limit, cursor=cursor)

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
        return self._store.count(checked(selection))

    def counts(self) -> Mapping[Status, int]:
        """How many jobs are in each state."""
        return self._store.counts()

    def detail(self, job_id: UUID) -> JobDetail | None:
        """One job with its execution history; None if unknown."""
        job = self._store.get(check_id(job_id))
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
