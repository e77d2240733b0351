"""Mutants whose writes are not held to the claim, the version or the state they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import ClassVar

from conformance_tests.mutants.base import killed_by
from ratchet.defaults.memory import MemoryStore
from ratchet.defaults.memory_data import MemoryData
from ratchet.defaults.memory_records import Record
from ratchet.domain.lifecycle import Status, Trigger
from ratchet.domain.settlement import Change, Settlement
from ratchet.errors import JobNotFound
from ratchet.spi.store import Applied, Refused, SettleAnswer


class _Unfenced(MemoryData):
    """Takes the claim that a change carries for the one that the job is at."""

    triggers: ClassVar[frozenset[Trigger]] = frozenset()

    def settle(self, settlement: Settlement, now: datetime) -> SettleAnswer:
        change = settlement.change
        record = self.records.get(change.job_id.int)
        if record is not None and change.trigger in self.triggers:
            settlement = replace(settlement, change=replace(change, claim_seq=record.claim_seq))
        return super().settle(settlement, now)


@killed_by("FENCE-01")
class SucceedWithoutFence(_Unfenced):
    """A success is written whatever claim it carries, as long as the job runs."""

    triggers = frozenset({Trigger.SUCCEED})


@killed_by("FENCE-01")
class FailWithoutFence(_Unfenced):
    """A failure is written whatever claim it carries."""

    triggers = frozenset({Trigger.FAIL})


@killed_by("FENCE-01")
class RetryWithoutFence(_Unfenced):
    """A retry is written whatever claim it carries."""

    triggers = frozenset({Trigger.RETRY})


@killed_by("FENCE-01")
class DeferWithoutFence(_Unfenced):
    """A deferral is written whatever claim it carries."""

    triggers = frozenset({Trigger.DEFER})


@killed_by("FENCE-01")
class ReleaseWithoutFence(_Unfenced):
    """A release is written whatever claim it carries."""

    triggers = frozenset({Trigger.RELEASE})


@killed_by("FENCE-01")
class CrashFailWithoutFence(_Unfenced):
    """A crash failure of a claim that was recovered meanwhile ends the new claim."""

    triggers = frozenset({Trigger.CRASH_FAIL})


@killed_by("FENCE-03")
class MissingClaimIsNoFence(MemoryData):
    """A fenced write that carries no claim at all is taken as one that needs none."""

    def settle(self, settlement: Settlement, now: datetime) -> SettleAnswer:
        change = settlement.change
        record = self.records.get(change.job_id.int)
        if record is not None and change.claim_seq is None and change.trigger is not Trigger.CANCEL_RUNNING:
            settlement = replace(settlement, change=replace(change, claim_seq=record.claim_seq))
        return super().settle(settlement, now)


@killed_by("MANY-02")
class GroupsWithoutFence(MemoryStore):
    """`settle` is fenced, `settle_many` is not."""

    def settle_many(self, settlements: Sequence[Settlement]) -> Sequence[SettleAnswer]:
        return super().settle_many([self._forged(settlement) for settlement in settlements])

    def _forged(self, settlement: Settlement) -> Settlement:
        change = settlement.change
        job = self.get(change.job_id)
        if job is None or change.claim_seq is None:
            return settlement
        return replace(settlement, change=replace(change, claim_seq=job.claim_seq))


@killed_by("SETTLE-17")
class UnfencedRowIgnoresItsClaim(_Unfenced):
    """A cancel-running that names a claim is applied to another."""

    triggers = frozenset({Trigger.CANCEL_RUNNING})


@killed_by("APPLY-04")
class VersionIsNoGuard(MemoryStore):
    """`apply` ignores the version that the sender saw."""

    def apply(self, change: Change) -> Applied | Refused:
        return super().apply(replace(change, version=None))


@killed_by("CELL-01")
class VersionStays(MemoryData):
    """A settlement does not raise the version."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        version = record.version
        super().transition(record, change, now)
        if change.trigger is Trigger.SUCCEED:
            record.version = version


@killed_by("CELL-01")
class UpdateTimeStays(MemoryData):
    """A change of a job does not move its `updated_at`."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        before = record.updated_at
        super().transition(record, change, now)
        if change.trigger is Trigger.RESUME:
            record.updated_at = before


@killed_by("CELL-02")
class CancelOverwritesSuccess(MemoryData):
    """A cancel that comes after the success makes a CANCELED job of it."""

    def settle(self, settlement: Settlement, now: datetime) -> SettleAnswer:
        change = settlement.change
        record = self.records.get(change.job_id.int)
        cancels = change.trigger in {Trigger.CANCEL, Trigger.CANCEL_RUNNING}
        if record is not None and cancels and record.status is Status.SUCCEEDED:
            self.write(record, [("status", Status.RUNNING)], now)
            if record.business_key is not None:
                self.business[record.business_key] = record
            settlement = replace(settlement, change=replace(change, trigger=Trigger.CANCEL_RUNNING))
        return super().settle(settlement, now)


@killed_by("FENCE-01")
class RefusalWithoutTheJob(MemoryData):
    """A refusal does not say how the job stands now."""

    def settle(self, settlement: Settlement, now: datetime) -> SettleAnswer:
        answer = super().settle(settlement, now)
        return replace(answer, current=None) if isinstance(answer, Refused) else answer


@killed_by("APPLY-09")
class HandsIgnoreTheClaim(MemoryStore):
    """A change by hand that names a claim is applied to another."""

    def apply(self, change: Change) -> Applied | Refused:
        return super().apply(replace(change, claim_seq=None))


@killed_by("FENCE-04")
class UnknownJobIsAnError(MemoryStore):
    """A write to a job that was deleted raises, so that a group of outcomes is never settled."""

    def settle(self, settlement: Settlement) -> SettleAnswer:
        answer = super().settle(settlement)
        if isinstance(answer, Refused) and answer.current is None:
            raise JobNotFound(str(answer.job_id))
        return answer


@killed_by("CELL-05")
class UnblockTakesAnything(MemoryStore):
    """A job that is not blocked is made due now by an unblock."""

    def apply(self, change: Change) -> Applied | Refused:
        data = self._data
        record = data.records.get(change.job_id.int)
        if record is not None and change.trigger is Trigger.UNBLOCK and record.status is Status.PENDING:
            with data.lock:
                data.transition(record, change, data.now())
                return Applied(record.job())
        return super().apply(change)


@killed_by("CELL-10")
class FailureWipesTheSignal(MemoryData):
    """A failure clears a field that its row does not name."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.FAIL:
            record.signal = None
