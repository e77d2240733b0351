"""Mutants that write the wrong end of a claim, a part of it, or its consequences without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from conformance_tests.mutants.base import killed_by
from ratchet.defaults.memory import MemoryStore
from ratchet.defaults.memory_data import MemoryData
from ratchet.defaults.memory_records import Record
from ratchet.domain.lifecycle import ROWS, Status, Trigger
from ratchet.domain.settlement import Change, RunCallback, Settlement, Submit
from ratchet.errors import DuplicateBusinessKey, DuplicateIdempotencyKey, UsageError
from ratchet.spi.store import Applied, PendingCallback, Refused, SettleAnswer

_CONFLICTS = (DuplicateBusinessKey, DuplicateIdempotencyKey)


# -- what is written ------------------------------------------------------------------------------


@killed_by("SETTLE-13")
class RetryIsNotCharged(MemoryData):
    """A retry does not count the attempt, so that a job is tried for ever."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        attempts = record.attempts
        super().transition(record, change, now)
        if change.trigger is Trigger.RETRY:
            record.attempts = attempts


@killed_by("SETTLE-13")
class RetryIsDueAtOnce(MemoryStore):
    """The delay of a retry is lost."""

    def settle(self, settlement: Settlement) -> SettleAnswer:
        if settlement.change.trigger is Trigger.RETRY:
            settlement = replace(settlement, change=replace(settlement.change, delay=timedelta()))
        return super().settle(settlement)


@killed_by("SETTLE-15")
class ReleaseIsCharged(MemoryData):
    """A claim that is given back counts as a failed attempt."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.RELEASE:
            record.attempts += 1


@killed_by("SETTLE-15")
class ReleaseMovesTheDueTime(MemoryData):
    """A released job goes to the end of the queue."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.RELEASE:
            record.scheduled_time = now


@killed_by("SETTLE-11")
class FailureForgetsItsAttempts(MemoryData):
    """A failure that gives no count sets the attempts to 0."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.FAIL and change.attempts is None:
            record.attempts = 0


@killed_by("SETTLE-09")
class EndIsTheTimeOfTheCommit(MemoryStore):
    """How long ago the body ended is ignored: a late commit makes a late end."""

    def settle(self, settlement: Settlement) -> SettleAnswer:
        return super().settle(replace(settlement, change=replace(settlement.change, age=timedelta())))


@killed_by("SETTLE-16")
class DurationsMayBeNegative(MemoryData):
    """After the clock has stepped back a job has run for less than no time."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        picked_at = record.picked_at
        super().transition(record, change, now)
        if record.ended_at is not None and picked_at is not None and change.duration is None:
            record.duration = record.ended_at - picked_at


# -- the history ----------------------------------------------------------------------------------


@killed_by("HISTORY-01")
class DeferralLeavesNoHistory(MemoryData):
    """A deferred claim is missing from the history."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.DEFER and record.history:
            record.history.pop()


@killed_by("HISTORY-01")
class HistoryTwice(MemoryData):
    """A retry is recorded twice."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.RETRY and record.history:
            record.history.append(record.history[-1])


@killed_by("HISTORY-01")
class HistoryIsRewritten(MemoryData):
    """The end of a claim changes the rows of the claims before it."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if ROWS[change.trigger].ends is not None and record.history and len(record.history) > 1:
            before, old, at, node = record.history[-2]
            record.history[-2] = (before, replace(old, error=change.error), at, node)


@killed_by("HISTORY-01")
class TimeOutIsAPlainFailure(MemoryStore):
    """The history does not tell a time-out from another failure."""

    def settle(self, settlement: Settlement) -> SettleAnswer:
        return super().settle(replace(settlement, change=replace(settlement.change, timed_out=False)))


# -- effects --------------------------------------------------------------------------------------


@killed_by("CALLBACK-02")
class CallbackIsLost(MemoryStore):
    """A callback is not recorded with the settlement, so that it dies with its node."""

    def settle(self, settlement: Settlement) -> SettleAnswer:
        kept = tuple(effect for effect in settlement.effects if not isinstance(effect, RunCallback))
        return super().settle(replace(settlement, effects=kept))


@killed_by("SETTLE-07")
class EffectsOfARefusal(MemoryStore):
    """A settlement that is refused still submits its job."""

    def settle(self, settlement: Settlement) -> SettleAnswer:
        answer = super().settle(settlement)
        if isinstance(answer, Refused):
            self.insert([effect.job for effect in settlement.effects if isinstance(effect, Submit)])
        return answer


@killed_by("FENCE-01")
class CallbackOfARefusal(MemoryData):
    """A settlement that is refused still has its callback run."""

    def settle(self, settlement: Settlement, now: datetime) -> SettleAnswer:
        answer = super().settle(settlement, now)
        record = self.records.get(settlement.change.job_id.int)
        if isinstance(answer, Refused) and record is not None:
            for effect in settlement.effects:
                if isinstance(effect, RunCallback):
                    told = PendingCallback(
                        record.new.id, record.claim_seq, effect.name, effect.target, effect.argument
                    )
                    mine = self.callbacks.setdefault(record.picked_by, {})
                    mine[record.key, record.claim_seq, effect.name] = told
        return answer


@killed_by("SETTLE-08")
class SettlementIsNotAtomic(MemoryStore):
    """A settlement whose job cannot be submitted raises, and has settled the claim."""

    def settle(self, settlement: Settlement) -> SettleAnswer:
        try:
            return super().settle(settlement)
        except _CONFLICTS:
            super().settle(replace(settlement, effects=()))
            raise


@killed_by("SETTLE-06")
class ReplacementIsNotAtomic(MemoryStore):
    """A replacement that cannot be inserted has canceled the old job."""

    def settle(self, settlement: Settlement) -> SettleAnswer:
        try:
            return super().settle(settlement)
        except (*_CONFLICTS, UsageError):
            if settlement.change.trigger is Trigger.REPLACE:
                super().settle(replace(settlement, effects=()))
            raise


@killed_by("SETTLE-03")
class ReplacementGetsNoKey(MemoryStore):
    """The business key of a replaced job is freed rather than moved to the new one."""

    def settle(self, settlement: Settlement) -> SettleAnswer:
        answer = super().settle(settlement)
        data = self._data
        for effect in settlement.effects:
            if isinstance(effect, Submit) and effect.job.business_key is None:
                record = data.records[effect.job.id.int]
                if record.business_key is not None:
                    del data.business[record.business_key]
                    record.business_key = None
        return answer


@killed_by("SETTLE-07")
class ReplaceTakesARunningJob(MemoryData):
    """A running job is replaced under its worker."""

    def settle(self, settlement: Settlement, now: datetime) -> SettleAnswer:
        record = self.records.get(settlement.change.job_id.int)
        replaces = settlement.change.trigger is Trigger.REPLACE
        if record is not None and replaces and record.status is Status.RUNNING:
            self.write(record, [("status", Status.PENDING)], now)
        return super().settle(settlement, now)


# -- groups ---------------------------------------------------------------------------------------


@killed_by("MANY-02")
class GroupStopsAtARefusal(MemoryStore):
    """What stands behind a refused entry of `settle_many` is refused with it."""

    def settle_many(self, settlements: Sequence[Settlement]) -> Sequence[SettleAnswer]:
        answers: list[SettleAnswer] = []
        for settlement in settlements:
            if answers and isinstance(answers[-1], Refused):
                answers.append(Refused(settlement.change.job_id, None, "an entry before it was refused"))
            else:
                answers += super().settle_many([settlement])
        return answers


@killed_by("MANY-02")
class GroupAnswersOutOfOrder(MemoryStore):
    """The answers of `settle_many` come by job id."""

    def settle_many(self, settlements: Sequence[Settlement]) -> Sequence[SettleAnswer]:
        return sorted(super().settle_many(settlements), key=lambda answer: answer.job_id)


@killed_by("MANY-01")
class ConflictEndsTheGroup(MemoryStore):
    """A job that cannot be submitted makes `settle_many` raise when it has settled a part."""

    def settle_many(self, settlements: Sequence[Settlement]) -> Sequence[SettleAnswer]:
        return [self.settle(settlement) for settlement in settlements]


# -- smaller print --------------------------------------------------------------------------------


@killed_by("SETTLE-10")
class NoResultIsAnEmptyOne(MemoryData):
    """A success without a result text has an empty one."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.SUCCEED and record.result is None:
            record.result = ""


@killed_by("SETTLE-12")
class CanceledRunsForNoTime(MemoryData):
    """A job that is canceled while it runs has no duration."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.CANCEL_RUNNING and change.duration is None:
            record.duration = timedelta()


@killed_by("SETTLE-14")
class RetryRunsTooEarly(MemoryStore):
    """The delay of a retry is cut to a millisecond rather than rounded up."""

    def settle(self, settlement: Settlement) -> SettleAnswer:
        change = settlement.change
        if change.delay is not None and change.delay > timedelta():
            cut = change.delay - change.delay % timedelta(milliseconds=1)
            settlement = replace(settlement, change=replace(change, delay=cut))
        return super().settle(settlement)


@killed_by("APPLY-08")
class SignalLosesItsPayload(MemoryStore):
    """A waiting job is released without what the signal carries."""

    def apply(self, change: Change) -> Applied | Refused:
        return super().apply(replace(change, signal=None))


@killed_by("CALLBACK-06")
class CallbackIsKeyedByTheJob(MemoryData):
    """The callback of a job's second life replaces that of its first."""

    def settle(self, settlement: Settlement, now: datetime) -> SettleAnswer:
        if any(isinstance(effect, RunCallback) for effect in settlement.effects):
            key = settlement.change.job_id.int
            for pending in self.callbacks.values():
                for old in [each for each in pending if each[0] == key]:
                    del pending[old]
        return super().settle(settlement, now)
