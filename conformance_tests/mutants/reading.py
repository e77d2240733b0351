"""Mutants that answer questions wrongly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from uuid import UUID

from conformance_tests.mutants.base import killed_by
from ratchet.defaults.memory import MemoryStore
from ratchet.domain.job import Job, NewJob
from ratchet.domain.lifecycle import Execution, Status
from ratchet.spi.capabilities import Capability
from ratchet.spi.store import Health, Inserted, Order, Page, Selection

_MILLISECOND = timedelta(milliseconds=1)


@killed_by("CELL-01")
class ReadsAreCached(MemoryStore):
    """A job that was read once is answered as it was then."""

    def get(self, job_id: UUID) -> Job | None:
        seen: dict[UUID, Job] = self.__dict__.setdefault("seen", {})
        job = seen.get(job_id) or super().get(job_id)
        if job is not None:
            seen[job_id] = job
        return job


@killed_by("GET-01")
class ManyReadsAreCut(MemoryStore):
    """Of many ids only the first 500 are read."""

    def get_many(self, job_ids: Sequence[UUID]) -> Sequence[Job]:
        return super().get_many(list(job_ids)[:500])


@killed_by("GET-01")
class ManyReadsRepeat(MemoryStore):
    """An id that is given twice is answered twice."""

    def get_many(self, job_ids: Sequence[UUID]) -> Sequence[Job]:
        return [job for job_id in job_ids if (job := self.get(job_id)) is not None]


@killed_by("COUNT-01")
class CountsLeaveOutZeros(MemoryStore):
    """A state in which there is no job is missing from the counts."""

    def counts(self) -> Mapping[Status, int]:
        return {status: number for status, number in super().counts().items() if number}


@killed_by("KEY-03")
class KeysIgnoreCase(MemoryStore):
    """A business key is found in another case."""

    def find_by_key(self, *, idempotency: str | None = None, business: str | None = None) -> Inserted | None:
        if business is not None and idempotency is None:
            for key in self._data.business:
                if key.casefold() == business.casefold():
                    business = key
        return super().find_by_key(idempotency=idempotency, business=business)


@killed_by("HISTORY-02")
class HistoryOfEverybody(MemoryStore):
    """The history of a job shows the claims of others."""

    def history(self, job_id: UUID) -> Sequence[Execution]:
        jobs = [UUID(int=key) for key in list(self._data.records)]
        return [row for each in jobs for row in super(HistoryOfEverybody, self).history(each)]


class _Selects(MemoryStore):
    """Reads another selection than it was asked for."""

    def selects(self, selection: Selection) -> Selection:
        return selection

    def find(
        self,
        selection: Selection,
        *,
        order: Order = "created_desc",
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        return super().find(self.selects(selection), order=order, limit=limit, cursor=cursor)

    def count(self, selection: Selection) -> int:
        return super().count(self.selects(selection))


@killed_by("FIND-06")
class TextIsAPattern(_Selects):
    """The wildcards of a target text are obeyed, not looked for."""

    def selects(self, selection: Selection) -> Selection:
        if selection.target is None:
            return selection
        pattern = f"*{selection.target.replace('_', '?').replace('%', '*')}*"
        jobs = [r.new for r in self._data.records.values() if fnmatchcase(r.new.target, pattern)]
        found = frozenset(new.id for new in jobs) or frozenset({UUID(int=0)})
        return replace(selection, target=None, ids=selection.ids & found if selection.ids else found)


@killed_by("FIND-04")
class AnyTagWillDo(_Selects):
    """A job that carries one of the given tags is found."""

    def selects(self, selection: Selection) -> Selection:
        if len(selection.tags) < 2:
            return selection
        found = frozenset(r.new.id for r in self._data.records.values() if selection.tags & r.new.tags)
        return replace(selection, tags=frozenset(), ids=found)


@killed_by("FIND-07")
class RangesIncludeTheirEnd(_Selects):
    """A job that was created at the end of a range is found."""

    def selects(self, selection: Selection) -> Selection:
        end = selection.created_before
        return selection if end is None else replace(selection, created_before=end + _MILLISECOND)


@killed_by("FIND-02")
class PrincipalIsIgnored(_Selects):
    """The jobs of every principal are found."""

    def selects(self, selection: Selection) -> Selection:
        return replace(selection, principal=None)


@killed_by("FIND-08")
class PageSkipsAJob(MemoryStore):
    """The first job behind a cursor is left out."""

    def find(
        self,
        selection: Selection,
        *,
        order: Order = "created_desc",
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        page = super().find(selection, order=order, limit=limit, cursor=cursor)
        return page if cursor is None else replace(page, jobs=page.jobs[1:])


@killed_by("FIND-14")
class CursorOfAnotherOrder(MemoryStore):
    """A cursor of one order is taken for one of another."""

    def find(
        self,
        selection: Selection,
        *,
        order: Order = "created_desc",
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        if cursor is not None and cursor.startswith("memory:"):
            _, _, rest = cursor.split(":", 2)
            cursor = f"memory:{order}:{rest}"
        return super().find(selection, order=order, limit=limit, cursor=cursor)


@killed_by("HEALTH-04")
class ThroughputIgnoresItsWindow(MemoryStore):
    """The throughput is of all time."""

    def health(self, *, window: timedelta) -> Health:
        answer = super().health(window=window)
        settled = answer.by_status[Status.SUCCEEDED] + answer.by_status[Status.FAILED]
        return replace(answer, throughput=settled / window.total_seconds() if window else 0.0)


@killed_by("HEALTH-03")
class OldestIsNotDue(MemoryStore):
    """The age of the oldest job counts jobs that are not due yet."""

    def health(self, *, window: timedelta) -> Health:
        answer = super().health(window=window)
        times = [record.scheduled_time for record in self._data.by_status[Status.PENDING]]
        return replace(answer, oldest_due_age=answer.now - min(times) if times else None)


@killed_by("INSERT-06")
class TimeHasMicroseconds(MemoryStore):
    """Store time is not cut to milliseconds."""

    def now(self) -> datetime:
        return self._data.clock.now()


@killed_by("STORE-03")
class ClosedStoreAnswers(MemoryStore):
    """A closed handle still works."""

    def close(self) -> None:
        self.__dict__["closed"] = True


@killed_by("FIND-09")
class OldestFirstByDefault(MemoryStore):
    """Without an order the oldest jobs come first."""

    def find(
        self,
        selection: Selection,
        *,
        order: Order = "created_asc",
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        return super().find(selection, order=order, limit=limit, cursor=cursor)


@killed_by("FIND-12")
class PageLimitIsCorrected(MemoryStore):
    """A page limit that is out of range is moved into it rather than refused."""

    def find(
        self,
        selection: Selection,
        *,
        order: Order = "created_desc",
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        return super().find(selection, order=order, limit=min(max(limit, 1), 1000), cursor=cursor)


@killed_by("FIND-05")
class UnknownIdsAreNoFilter(_Selects):
    """A selection by ids of which none is known finds everything."""

    def selects(self, selection: Selection) -> Selection:
        known = frozenset(job_id for job_id in selection.ids if job_id.int in self._data.records)
        return replace(selection, ids=known)


@killed_by("STORE-02")
class HandleSeesItsOwnJobs(MemoryStore):
    """A handle finds only what was inserted through it, or what it has seen claimed."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        own: set[UUID] = self.__dict__.setdefault("own", set())
        own.update(new.id for new in jobs)
        return super().insert(jobs, unit=unit)

    def get(self, job_id: UUID) -> Job | None:
        return super().get(job_id) if job_id in self.__dict__.get("own", ()) else None


@killed_by("HEALTH-02")
class HealthCountsEverythingAsPending(MemoryStore):
    """The counts by priority are of all jobs, not of those that are pending."""

    def health(self, *, window: timedelta) -> Health:
        everything = Counter(record.new.priority for record in self._data.records.values())
        return replace(super().health(window=window), pending_by_priority=everything)


@killed_by("STORE-01")
class CapabilityWithoutItsMethods(MemoryStore):
    """A capability is declared whose methods the store does not have."""

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset({Capability.WAKE_UPS})
