"""Mutants that insert badly, or lose, leak or steal a key."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

from conformance_tests.mutants.base import killed_by
from ratchet.defaults.memory import MemoryStore
from ratchet.defaults.memory_data import MemoryData
from ratchet.defaults.memory_records import Record
from ratchet.domain.job import NewJob
from ratchet.domain.lifecycle import ROWS, SETTLED, BusinessKey, Status, Trigger
from ratchet.domain.settlement import Change
from ratchet.errors import DuplicateBusinessKey
from ratchet.spi.store import Applied, Inserted, Refused, Selection

_GIVES_UP = frozenset({BusinessKey.FREED, BusinessKey.MOVED})
_MILLISECOND = timedelta(milliseconds=1)


@killed_by("SETTLE-18")
class KeyKeptAfterSuccess(MemoryData):
    """A job that has succeeded still holds its business key."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.SUCCEED and record.business_key is not None:
            self.business[record.business_key] = record


class _LosesItsKey(MemoryData):
    """Puts a key back before the memory store gives it up, so that only the early loss is a fault."""

    def lose(self, record: Record) -> None:
        if record.business_key is not None:
            self.business.pop(record.business_key, None)

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        key = record.business_key
        if key is not None and ROWS[change.trigger].business_key in _GIVES_UP and key not in self.business:
            self.business[key] = record
        super().transition(record, change, now)


@killed_by("KEY-04")
class KeyFreedByTheClaim(_LosesItsKey):
    """A job loses its business key when it is claimed."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.CLAIM:
            self.lose(record)


@killed_by("KEY-05")
class KeyFreedByThePause(_LosesItsKey):
    """A job loses its business key when it is paused."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.PAUSE:
            self.lose(record)


@killed_by("APPLY-06")
class RequeueLeavesTheKey(_LosesItsKey):
    """A requeued job does not hold its business key."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.REQUEUE:
            self.lose(record)


@killed_by("APPLY-07")
class RequeueStealsTheKey(MemoryStore):
    """A requeued job takes its business key from the job that holds it now."""

    def apply(self, change: Change) -> Applied | Refused:
        data = self._data
        record = data.records.get(change.job_id.int)
        if record is not None and change.trigger is Trigger.REQUEUE and record.status is Status.FAILED:
            data.business.pop(record.business_key or "", None)
        return super().apply(change)


@killed_by("KEY-01")
class IdempotencyForgottenByDelete(MemoryData):
    """With a deleted job its idempotency key is forgotten, and a late repeat runs again."""

    def remove(self, record: Record) -> None:
        super().remove(record)
        if record.new.idempotency_key is not None:
            del self.idempotency[record.new.idempotency_key]


@killed_by("INSERT-08")
class IdempotencyEndsWithTheJob(MemoryStore):
    """A settled job no longer answers for its idempotency key; the repeat is inserted."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        data = self._data
        for new in jobs:
            known = data.original(new.idempotency_key) if new.idempotency_key is not None else None
            if known is not None and known.status in SETTLED:
                data.idempotency.pop(str(new.idempotency_key))
        return super().insert(jobs, unit=unit)


@killed_by("INSERT-08")
class RepeatClaimsToBeCreated(MemoryStore):
    """A repeat under a taken idempotency key is told that it was created."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        return [replace(answer, created=True) for answer in super().insert(jobs, unit=unit)]


@killed_by("INSERT-10")
class RepeatInAListIsInserted(MemoryStore):
    """A key that occurs twice in one list makes two jobs."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        seen: set[str | None] = {None}
        apart = []
        for new in jobs:
            apart.append(replace(new, idempotency_key=None) if new.idempotency_key in seen else new)
            seen.add(new.idempotency_key)
        return super().insert(apart, unit=unit)


@killed_by("INSERT-11")
class InsertIsNotAtomic(MemoryStore):
    """What stands before a conflict in a list is inserted."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        try:
            return super().insert(jobs, unit=unit)
        except DuplicateBusinessKey:
            with suppress(DuplicateBusinessKey):
                for new in jobs:
                    super().insert([new])
            raise


@killed_by("INSERT-11")
class OnlyTheFirstConflictIsNamed(MemoryStore):
    """Of several business keys that are held only one is named."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        try:
            return super().insert(jobs, unit=unit)
        except DuplicateBusinessKey as error:
            key, holder = next(iter(error.conflicts.items()))
            raise DuplicateBusinessKey({key: holder}) from None


@killed_by("INSERT-07")
class InsertOverwrites(MemoryStore):
    """A job whose id is stored replaces the stored one."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        data = self._data
        for new in jobs:
            record = data.records.get(new.id.int)
            if record is not None:
                data.write(record, [("status", Status.CANCELED)], self.now())
                data.remove(record)
        return super().insert(jobs, unit=unit)


@killed_by("INSERT-05")
class DelayIsCutShort(MemoryStore):
    """A delay is cut to a millisecond rather than rounded up, so that a job runs too early."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        cut = [
            new if new.delay is None else replace(new, delay=new.delay - (new.delay % _MILLISECOND))
            for new in jobs
        ]
        return super().insert(cut, unit=unit)


@killed_by("INSERT-14")
class UnitIsIgnored(MemoryStore):
    """A job is inserted beside the caller's transaction, not in it."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        return super().insert(jobs)


@killed_by("INSERT-02")
class ParamsAreTheCallers(MemoryData):
    """The store keeps the caller's own dict of params, and what becomes of it."""

    def add(self, new: NewJob, now: datetime, *, claimed: bool = False) -> None:
        super().add(new, now, claimed=claimed)
        self.records[new.id.int].params = cast("dict[str, str]", new.params)


@killed_by("DELETE-01")
class DeleteTakesUnsettledJobs(MemoryStore):
    """A job that is still to run is deleted."""

    def delete(self, job_ids: Sequence[UUID]) -> int:
        data = self._data
        doomed = [r for r in map(data.records.get, {i.int for i in job_ids}) if r is not None]
        for record in doomed:
            if record.status not in SETTLED:
                if record.business_key is not None:
                    data.business.pop(record.business_key, None)
                data.write(record, [("status", Status.CANCELED), ("version", record.version + 1)], self.now())
        return super().delete(job_ids)


@killed_by("DELETE-01")
class DeleteCountsWhatItWasGiven(MemoryStore):
    """`delete` answers how many ids it got, unknown ones included."""

    def delete(self, job_ids: Sequence[UUID]) -> int:
        super().delete(job_ids)
        return len(job_ids)


@killed_by("DELETE-04")
class CallbacksSurviveDelete(MemoryData):
    """A pending callback of a deleted job is still handed out."""

    def remove(self, record: Record) -> None:
        kept = {owner: dict(pending) for owner, pending in self.callbacks.items()}
        super().remove(record)
        self.callbacks = kept


@killed_by("INSERT-12")
class BusinessKeyIsAskedFirst(MemoryStore):
    """A repeat under a taken idempotency key is refused because its own original holds the business key."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        held = {
            new.business_key: found.id
            for new in jobs
            if new.business_key is not None
            and (found := self.find_by_key(business=new.business_key)) is not None
        }
        if held and unit is None:
            raise DuplicateBusinessKey(held)
        return super().insert(jobs, unit=unit)


@killed_by("KEY-06")
class OneKeyForAll(MemoryData):
    """Settling a job frees the business keys of others."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.SUCCEED:
            self.business.clear()


@killed_by("DELETE-03")
class TagsSurviveDelete(MemoryStore):
    """A deleted job is still counted under its tags."""

    def delete(self, job_ids: Sequence[UUID]) -> int:
        gone: list[NewJob] = self.__dict__.setdefault("gone", [])
        gone += [job.new for job in map(self._data.records.get, {i.int for i in job_ids}) if job is not None]
        return super().delete(job_ids)

    def count(self, selection: Selection) -> int:
        gone: list[NewJob] = self.__dict__.get("gone", [])
        return super().count(selection) + sum(
            bool(selection.tags) and selection.tags <= new.tags for new in gone
        )
