"""Mutants that pause, resume and requeue wrongly, one by one or in bulk."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from conformance_tests.mutants.base import killed_by
from ratchet.defaults.memory import MemoryStore
from ratchet.defaults.memory_data import MemoryData
from ratchet.defaults.memory_records import Record
from ratchet.domain.job import JobType
from ratchet.domain.lifecycle import ROWS, Status, Trigger
from ratchet.domain.settlement import Change
from ratchet.errors import DuplicateBusinessKey
from ratchet.spi.store import Applied, OnConflict, Refused, Selected, Selection


@killed_by("APPLY-01")
class ResumeMakesDueNow(MemoryData):
    """A job that was paused loses its due time when it is resumed."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.RESUME:
            record.scheduled_time = now


@killed_by("APPLY-01")
class ResumeRemembersThePause(MemoryData):
    """A resumed job still says where it was paused from."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        before = record.paused_from_status
        super().transition(record, change, now)
        if change.trigger is Trigger.RESUME:
            record.paused_from_status = before


@killed_by("CELL-04")
class PauseTakesABatchParent(MemoryStore):
    """A batch parent, which does no work, is paused."""

    def apply(self, change: Change) -> Applied | Refused:
        data = self._data
        record = data.records.get(change.job_id.int)
        if record is not None and change.trigger is Trigger.PAUSE and record.new.type is JobType.BATCH:
            with data.lock:
                data.transition(record, change, data.now())
                return Applied(record.job())
        return super().apply(change)


class _Keeps(MemoryData):
    """A requeue that leaves one field as it was."""

    field = ""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        before = getattr(record, self.field)
        super().transition(record, change, now)
        if change.trigger is Trigger.REQUEUE:
            setattr(record, self.field, before)


@killed_by("APPLY-05")
class RequeueKeepsAttempts(_Keeps):
    """A requeued job starts with its attempts used up."""

    field = "attempts"


@killed_by("APPLY-05")
class RequeueKeepsCrashes(_Keeps):
    """A requeued job starts with its crash budget used up."""

    field = "crash_count"


@killed_by("APPLY-05")
class RequeueKeepsTheError(_Keeps):
    """A requeued job still shows the error of its last life."""

    field = "last_error"


@killed_by("APPLY-05")
class RequeueKeepsTheDueTime(_Keeps):
    """A requeued job is due when it was, not now."""

    field = "scheduled_time"


@killed_by("APPLY-05")
class RequeueForgetsTheHistory(MemoryData):
    """A requeued job has no history."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.REQUEUE:
            record.history = None


@killed_by("BULK-06")
class BulkRetryIsNotAtomic(MemoryStore):
    """A bulk requeue that is aborted by a conflict has requeued the others."""

    def apply_where(
        self, selection: Selection, trigger: Trigger, *, limit: int, on_conflict: OnConflict = "abort"
    ) -> Selected:
        try:
            return super().apply_where(selection, trigger, limit=limit, on_conflict=on_conflict)
        except DuplicateBusinessKey:
            super().apply_where(selection, trigger, limit=limit, on_conflict="skip")
            raise


@killed_by("BULK-07")
class BulkRetrySkipsSilently(MemoryStore):
    """A bulk requeue does not say which jobs it left."""

    def apply_where(
        self, selection: Selection, trigger: Trigger, *, limit: int, on_conflict: OnConflict = "abort"
    ) -> Selected:
        answer = super().apply_where(selection, trigger, limit=limit, on_conflict=on_conflict)
        return replace(answer, skipped={})


@killed_by("BULK-09")
class BulkRetryCountsConflicts(MemoryStore):
    """Jobs that are skipped fill the page of a bulk requeue, which then never gets past them."""

    def apply_where(
        self, selection: Selection, trigger: Trigger, *, limit: int, on_conflict: OnConflict = "abort"
    ) -> Selected:
        failed = replace(selection, statuses=frozenset(ROWS[Trigger.REQUEUE].sources))
        page = self.find(failed, order="id_asc", limit=limit)
        narrow = replace(selection, ids=frozenset(job.id for job in page.jobs))
        return super().apply_where(narrow, trigger, limit=limit, on_conflict=on_conflict)


@killed_by("BULK-03")
class BulkRetryTakesOtherStates(MemoryStore):
    """A bulk requeue whose filter names WAITING moves waiting jobs."""

    def apply_where(
        self, selection: Selection, trigger: Trigger, *, limit: int, on_conflict: OnConflict = "abort"
    ) -> Selected:
        answer = super().apply_where(selection, trigger, limit=limit, on_conflict=on_conflict)
        data, more = self._data, []
        with data.lock:
            for record in list(data.by_status[Status.WAITING]):
                if record.status in selection.statuses:
                    data.transition(record, Change(trigger, record.new.id), data.now())
                    more.append(record.new.id)
        return replace(answer, ids=sorted([*answer.ids, *more]))


@killed_by("BULK-02")
class BulkRetryIgnoresItsLimit(MemoryStore):
    """A bulk requeue moves one job more than its limit."""

    def apply_where(
        self, selection: Selection, trigger: Trigger, *, limit: int, on_conflict: OnConflict = "abort"
    ) -> Selected:
        more = limit + 1 if 0 < limit < 1000 else limit
        return super().apply_where(selection, trigger, limit=more, on_conflict=on_conflict)


@killed_by("BULK-08")
class BulkRetryTakesTheYounger(MemoryStore):
    """Of two failed jobs of one key the younger gets it back."""

    def apply_where(
        self, selection: Selection, trigger: Trigger, *, limit: int, on_conflict: OnConflict = "abort"
    ) -> Selected:
        page = self.find(
            replace(selection, statuses=frozenset(ROWS[Trigger.REQUEUE].sources)), order="id_asc"
        )
        keyed = [job for job in page.jobs if job.business_key is not None]
        older = [
            job.id
            for n, job in enumerate(keyed)
            if job.business_key in {j.business_key for j in keyed[n + 1 :]}
        ]
        if on_conflict == "abort" or not older or trigger is not Trigger.REQUEUE:
            return super().apply_where(selection, trigger, limit=limit, on_conflict=on_conflict)
        narrow = replace(selection, ids=frozenset(job.id for job in page.jobs if job.id not in older))
        answer = super().apply_where(narrow, trigger, limit=limit, on_conflict=on_conflict)
        return replace(answer, skipped={**answer.skipped, **dict.fromkeys(older, "the younger has it")})


@killed_by("BULK-04")
class BulkLimitIsCorrected(MemoryStore):
    """A limit that is out of range is moved into it rather than refused."""

    def apply_where(
        self, selection: Selection, trigger: Trigger, *, limit: int, on_conflict: OnConflict = "abort"
    ) -> Selected:
        within = min(max(limit, 1), 1000)
        return super().apply_where(selection, trigger, limit=within, on_conflict=on_conflict)
