"""Mutants that join the caller's transaction badly."""

from __future__ import annotations

from collections.abc import Sequence

from conformance_tests.mutants.base import killed_by
from conformance_tests.mutants.joining import JoiningMemoryStore, MemoryUnit, open_units
from ratchet.defaults.memory import MemoryStore
from ratchet.domain.job import NewJob
from ratchet.domain.lifecycle import Status
from ratchet.errors import ConflictError, DuplicateBusinessKey, UsageError
from ratchet.spi.store import Inserted


@killed_by("UNIT-01")
class SeenBeforeTheCommit(JoiningMemoryStore):
    """A job of an open transaction can be seen and claimed; only a rollback removes it."""

    def join(self, unit: MemoryUnit, jobs: Sequence[NewJob]) -> list[Inserted]:
        return list(MemoryStore.insert(self, jobs))


@killed_by("UNIT-02")
class SurvivesTheRollback(JoiningMemoryStore):
    """A job is there although its transaction was rolled back."""

    def roll_back(self, unit: MemoryUnit) -> None:
        self.commit(unit)


@killed_by("UNIT-03")
class KeyKeptAfterTheRollback(JoiningMemoryStore):
    """A rollback removes the jobs and leaves their idempotency keys taken."""

    def roll_back(self, unit: MemoryUnit) -> None:
        for new, _ in unit.jobs:
            if new.idempotency_key is not None:
                unit.data.idempotency[new.idempotency_key] = new.id


@killed_by("UNIT-04")
class KeysAreLeftOutOfTheTransaction(JoiningMemoryStore):
    """A commit makes the jobs and forgets their business keys."""

    def commit(self, unit: MemoryUnit) -> None:
        super().commit(unit)
        for new, _ in unit.jobs:
            unit.data.business.pop(new.business_key or "", None)


@killed_by("UNIT-05")
class OwnKeysAreNotSeen(JoiningMemoryStore):
    """A transaction does not see the keys that it has taken itself."""

    def join(self, unit: MemoryUnit, jobs: Sequence[NewJob]) -> list[Inserted]:
        apart = MemoryUnit(unit.data)
        answers = super().join(apart, jobs)
        unit.jobs += apart.jobs
        return answers


@killed_by("UNIT-06")
class PartOfAListIsCommitted(JoiningMemoryStore):
    """What stands before a conflict in a list stays in the transaction."""

    def join(self, unit: MemoryUnit, jobs: Sequence[NewJob]) -> list[Inserted]:
        try:
            return super().join(unit, jobs)
        except DuplicateBusinessKey:
            for new in jobs:
                try:
                    super().join(unit, [new])
                except ConflictError:
                    break
            raise


@killed_by("UNIT-07")
class UsedKeyIsAnErrorInATransaction(JoiningMemoryStore):
    """A used idempotency key is refused in a transaction, also in every fresh one."""

    def join(self, unit: MemoryUnit, jobs: Sequence[NewJob]) -> list[Inserted]:
        for new in jobs:
            if new.idempotency_key is not None and unit.data.original(new.idempotency_key) is not None:
                raise UsageError("this key was used before")
        return super().join(unit, jobs)


@killed_by("UNIT-08")
class PhantomDuplicate(JoiningMemoryStore):
    """Others are told of the job of an open transaction, which may never come to be."""

    def check_keys(self, jobs: Sequence[NewJob], unit: object | None) -> None:
        pass

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        for other in open_units(self._data):
            for theirs, _ in other.jobs if other is not unit else ():
                for new in jobs:
                    if new.business_key is not None and new.business_key == theirs.business_key:
                        raise DuplicateBusinessKey({new.business_key: theirs.id})
                    if new.idempotency_key is not None and new.idempotency_key == theirs.idempotency_key:
                        return [Inserted(theirs.id, created=False, status=Status.PENDING)]
        return super().insert(jobs, unit=unit)


@killed_by("UNIT-09")
class EndedTransactionIsIgnored(JoiningMemoryStore):
    """A job that is handed to a transaction that has ended is inserted beside it."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        if isinstance(unit, MemoryUnit) and not unit.is_open:
            unit = None
        return super().insert(jobs, unit=unit)


@killed_by("UNIT-10")
class ClaimedBeforeTheCommit(JoiningMemoryStore):
    """A node that asked for it is given the claim of a job that is not committed."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        answers = super().insert(jobs, unit=unit)
        now = self.now()
        return [
            Inserted.of(new, now) if answer.created and unit is not None else answer
            for new, answer in zip(jobs, answers, strict=True)
        ]
