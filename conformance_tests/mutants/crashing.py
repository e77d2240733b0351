"""Mutants that write in steps, and leave a part behind when they are stopped between two of them.

Undisturbed each of them behaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar
from weakref import WeakKeyDictionary

from conformance_tests.mutants.base import killed_by
from ratchet.defaults.memory import MemoryStore
from ratchet.defaults.memory_data import MemoryData
from ratchet.domain.job import NewJob
from ratchet.domain.settlement import Settlement, Submit
from ratchet.spi.store import Claimed, ClaimRequest, Inserted, RecoverRequest, Recovery, Refused, SettleAnswer


class _Steps(MemoryStore):
    """Calls back between its steps, where the harness has asked for it."""

    def step(self, name: str) -> None:
        reached: Callable[[str], None] | None = self.__dict__.get("reached")
        if reached is not None:
            reached(name)


@killed_by("CRASH-01")
class EffectsAfterTheCommit(_Steps):
    """A settlement is committed before the job that it submits."""

    def settle(self, settlement: Settlement) -> SettleAnswer:
        jobs = [effect.job for effect in settlement.effects if isinstance(effect, Submit)]
        kept = tuple(effect for effect in settlement.effects if not isinstance(effect, Submit))
        answer = super().settle(replace(settlement, effects=kept))
        if jobs and not isinstance(answer, Refused):
            self.step("settled")
            self.insert(jobs)
        return answer


@killed_by("CRASH-01")
class ListsRowByRow(_Steps):
    """The jobs of a list are inserted one by one."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        if unit is not None or len(jobs) < 2:
            return super().insert(jobs, unit=unit)
        answers: list[Inserted] = []
        for new in jobs:
            answers += super().insert([new])
            self.step("inserted one")
        return answers


@killed_by("CRASH-02")
class CrashIsChargedLater(_Steps):
    """A recovered job is put back first and charged with its crash afterwards."""

    def recover(self, request: RecoverRequest) -> Recovery:
        answer = super().recover(request)
        records = [self._data.records[orphan.job_id.int] for orphan in answer.recovered]
        for record in records:
            record.crash_count -= 1
        for record in records:
            self.step("put back")
            record.crash_count += 1
        return answer


@killed_by("CRASH-03")
class KeysAreReservedFirst(_Steps):
    """An idempotency key is reserved before its job is there, and stays reserved without one."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        taken = self._data.idempotency
        reserved = {new.idempotency_key: new.id for new in jobs if new.idempotency_key not in {None, *taken}}
        for key, job_id in reserved.items():
            taken[str(key)] = job_id
        self.step("reserved")
        for key in reserved:
            del taken[str(key)]
        return super().insert(jobs, unit=unit)


@killed_by("MANY-03")
class RepeatedListsAreRefused(_Steps):
    """Outcomes whose writing raised are refused when they are sent again, although none of them was written."""

    def settle_many(self, settlements: Sequence[Settlement]) -> Sequence[SettleAnswer]:
        sent: set[int] = self.__dict__.setdefault("sent", set())
        ids = [settlement.change.job_id for settlement in settlements]
        if any(job_id.int in sent for job_id in ids):
            return [Refused(job_id, self.get(job_id), "it was sent before") for job_id in ids]
        sent.update(job_id.int for job_id in ids)
        self.step("sent")
        answers = super().settle_many(settlements)
        sent.clear()
        return answers


@killed_by("CRASH-04")
class BusyForEver(_Steps):
    """A node that is stopped in an insert leaves a mark behind for which all others wait."""

    marks: ClassVar[WeakKeyDictionary[MemoryData, set[int]]] = WeakKeyDictionary()

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        marks = self.marks.setdefault(self._data, set())
        marks.add(id(self))
        self.step("marked")
        try:
            return super().insert(jobs, unit=unit)
        finally:
            marks.discard(id(self))

    def claim(self, request: ClaimRequest) -> Claimed:
        if self.marks.get(self._data):
            return Claimed([], more=True, next_due=None, now=self.now())
        return super().claim(request)
