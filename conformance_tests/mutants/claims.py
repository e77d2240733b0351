"""Mutants that give out the wrong work, in the wrong order, or without a proper claim."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import ClassVar
from uuid import UUID

from conformance_tests.mutants.base import killed_by
from ratchet.defaults.memory import MemoryStore
from ratchet.defaults.memory_data import MemoryData
from ratchet.defaults.memory_records import Record
from ratchet.domain.job import Claim, JobType, NewJob
from ratchet.domain.lifecycle import LATEST, UNSCHEDULED, Status, Trigger
from ratchet.domain.settlement import Change
from ratchet.spi.store import Claimed, ClaimRequest, Inserted

_SECOND = timedelta(seconds=1)


class _Greedy(MemoryStore):
    """Claims, behind what is right, one job more that the request does not allow."""

    @abstractmethod
    def also(self, record: Record, request: ClaimRequest, now: datetime) -> bool:
        """True for a job that is claimed though it must not be."""

    def claim(self, request: ClaimRequest) -> Claimed:
        answer = super().claim(request)
        data, claims = self._data, list(answer.claims)
        change = Change(Trigger.CLAIM, UUID(int=0), incarnation=request.incarnation)
        given = {claim.job_id for claim in claims}
        with data.lock:
            for record in list(data.records.values()):
                if record.new.id not in given and request.limit and self.also(record, request, answer.now):
                    data.transition(record, change, answer.now)
                    claims.append(record.claim(answer.now))
                    break
        return replace(answer, claims=claims)


def _due(record: Record, now: datetime) -> bool:
    single = record.new.type is not JobType.BATCH
    return record.status is Status.PENDING and record.scheduled_time <= now and single


@killed_by("CELL-03")
class ClaimIgnoresSchedule(_Greedy):
    """A job is claimed a second before it is due."""

    def also(self, record: Record, request: ClaimRequest, now: datetime) -> bool:
        return record.status is Status.PENDING and now < record.scheduled_time <= now + _SECOND


@killed_by("CELL-07")
class ClaimTakesABlockedStep(_Greedy):
    """A step whose predecessor has not succeeded is claimed."""

    def also(self, record: Record, request: ClaimRequest, now: datetime) -> bool:
        return record.status is Status.PENDING and record.scheduled_time == UNSCHEDULED


@killed_by("CELL-03")
class ClaimExcludesTheVeryMoment(MemoryStore):
    """A job is claimed only after its due time, not at it."""

    def claim(self, request: ClaimRequest) -> Claimed:
        data, now = self._data, self.now()
        with data.lock:
            for record in list(data.by_status[Status.PENDING]):
                if record.scheduled_time == now:
                    later = now + timedelta(milliseconds=1)
                    data.write(record, [("scheduled_time", later), ("version", record.version)], now)
        return super().claim(request)


@killed_by("CELL-04")
class ClaimTakesABatchParent(_Greedy):
    """A batch parent, which does no work, is claimed."""

    def also(self, record: Record, request: ClaimRequest, now: datetime) -> bool:
        return record.status is Status.PENDING and record.new.type is JobType.BATCH


@killed_by("CLAIM-08")
class ClaimTakesAPausedJob(_Greedy):
    """A paused job is claimed when it is due."""

    def also(self, record: Record, request: ClaimRequest, now: datetime) -> bool:
        return record.status is Status.PAUSED and record.scheduled_time <= now


@killed_by("CLAIM-08")
class ClaimTakesAFailedJob(_Greedy):
    """A job that failed for good is claimed again."""

    def also(self, record: Record, request: ClaimRequest, now: datetime) -> bool:
        return record.status is Status.FAILED


@killed_by("CLAIM-01")
class ClaimTakesAnotherNodesClaim(_Greedy):
    """A node is given what another node runs."""

    def also(self, record: Record, request: ClaimRequest, now: datetime) -> bool:
        return record.status is Status.RUNNING and record.picked_by != request.incarnation


@killed_by("CLAIM-02")
class ClaimExceedsItsLimit(MemoryStore):
    """A claim answers one job more than its limit."""

    def claim(self, request: ClaimRequest) -> Claimed:
        return super().claim(replace(request, limit=request.limit + 1))


@killed_by("CLAIM-17")
class ClaimIgnoresTheLimitOfAnExecutor(MemoryStore):
    """The limit of each executor is taken for the limit of all."""

    def claim(self, request: ClaimRequest) -> Claimed:
        limits = {executor: request.limit for executor, most in request.limits.items() if most > 0}
        return super().claim(replace(request, limits=limits))


@killed_by("CLAIM-12")
class ClaimIgnoresRequiredTags(MemoryStore):
    """A job without the required tags is claimed."""

    def claim(self, request: ClaimRequest) -> Claimed:
        return super().claim(replace(request, require_tags=frozenset()))


@killed_by("CLAIM-12")
class OneRequiredTagIsEnough(_Greedy):
    """A job that carries one of the required tags is claimed though it lacks the others."""

    def also(self, record: Record, request: ClaimRequest, now: datetime) -> bool:
        return _due(record, now) and bool(request.require_tags & record.new.tags)


@killed_by("CLAIM-12")
class ClaimIgnoresExcludedTags(MemoryStore):
    """A job with an excluded tag is claimed."""

    def claim(self, request: ClaimRequest) -> Claimed:
        return super().claim(replace(request, exclude_tags=frozenset()))


@killed_by("CLAIM-11")
class ClaimIgnoresTypes(MemoryStore):
    """A job of a type that was not asked for is claimed."""

    def claim(self, request: ClaimRequest) -> Claimed:
        return super().claim(replace(request, types=frozenset()))


@killed_by("CLAIM-28")
class ClaimLeavesOutByTargetAlone(MemoryStore):
    """A target that cannot be run in one payload format is left out in every format."""

    def claim(self, request: ClaimRequest) -> Claimed:
        targets = {target for target, _ in request.leave_out}
        every = frozenset((target, version) for target in targets for version in range(1, 10))
        return super().claim(replace(request, leave_out=every))


@killed_by("CLAIM-06")
class ClaimIgnoresPriority(MemoryStore):
    """The claims are answered by due time, whatever their priority."""

    def claim(self, request: ClaimRequest) -> Claimed:
        answer = super().claim(request)
        return replace(answer, claims=sorted(answer.claims, key=lambda c: (c.scheduled_time, c.job_id)))


@killed_by("CLAIM-06")
class ClaimIgnoresDueTime(MemoryStore):
    """Among equal priorities the claims are answered by id, not by due time."""

    def claim(self, request: ClaimRequest) -> Claimed:
        answer = super().claim(request)
        return replace(answer, claims=sorted(answer.claims, key=lambda c: (-c.priority, c.job_id)))


@killed_by("CLAIM-23")
class ClaimIgnoresAgeing(MemoryStore):
    """Waiting work never overtakes more urgent new work."""

    def claim(self, request: ClaimRequest) -> Claimed:
        return super().claim(replace(request, boost_interval=timedelta()))


@killed_by("CLAIM-24")
class AgeingCannotBeSwitchedOff(MemoryStore):
    """A boost interval of 0 is taken for the default one."""

    def claim(self, request: ClaimRequest) -> Claimed:
        boost = request.boost_interval or timedelta(minutes=15)
        return super().claim(replace(request, boost_interval=boost))


@killed_by("CLAIM-01")
class ClaimIsStampedLate(MemoryStore):
    """Who holds a claim is written only when the node asks what it holds."""

    def claim(self, request: ClaimRequest) -> Claimed:
        answer = super().claim(request)
        data = self._data
        for claim in answer.claims:
            data.records[claim.job_id.int].picked_by = None
        return answer

    def held(self, incarnation: str) -> Sequence[tuple[UUID, int]]:
        data = self._data
        for record in data.held.get(incarnation, ()):
            record.picked_by = incarnation
        return super().held(incarnation)


@killed_by("CLAIM-21")
class SameNodeSameClaim(MemoryData):
    """A node that claims a job again gets the number of its last claim."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.CLAIM and record.history and record.history[-1][3] == change.incarnation:
            record.claim_seq -= 1


class _AnswersOtherwise(MemoryStore):
    """Claims rightly and says something else."""

    more: ClassVar[bool | None] = None
    shift: ClassVar[timedelta] = timedelta()

    def claim(self, request: ClaimRequest) -> Claimed:
        answer = super().claim(request)
        if self.more is not None:
            answer = replace(answer, more=self.more)
        if answer.next_due is not None:
            answer = replace(answer, next_due=answer.next_due + self.shift)
        return answer


@killed_by("CLAIM-02")
class NoMoreIsDue(_AnswersOtherwise):
    """A claim that was cut by its limit says that nothing more is due."""

    more = False


@killed_by("CLAIM-02")
class MoreIsAlwaysDue(_AnswersOtherwise):
    """A claim that took everything says that more is due."""

    more = True


@killed_by("CLAIM-31")
class NextDueIsLate(_AnswersOtherwise):
    """The next due time is told a second too late."""

    shift = _SECOND


@killed_by("CLAIM-31")
class NextDueIsForgotten(MemoryStore):
    """A claim that answers work does not say when the next is due."""

    def claim(self, request: ClaimRequest) -> Claimed:
        return replace(super().claim(request), next_due=None)


@killed_by("HELD-01")
class HeldForgets(MemoryStore):
    """Of all that an incarnation holds only one claim is answered."""

    def held(self, incarnation: str) -> Sequence[tuple[UUID, int]]:
        return list(super().held(incarnation))[:1]


@killed_by("HELD-01")
class HeldIsOfEverybody(MemoryStore):
    """`held` answers the claims of other incarnations too."""

    def held(self, incarnation: str) -> Sequence[tuple[UUID, int]]:
        return [
            pair
            for owner in list(self._data.held)
            for pair in super(HeldIsOfEverybody, self).held(owner or "")
        ]


@killed_by("CLAIM-07")
class ClaimGoesByExecutor(MemoryStore):
    """The limit is filled from one executor before the next is looked at."""

    def claim(self, request: ClaimRequest) -> Claimed:
        claims: list[Claim] = []
        answer = super().claim(replace(request, limit=0))
        for executor, most in sorted(request.limits.items()):
            part = replace(request, limits={executor: most}, limit=max(request.limit - len(claims), 0))
            answer = super().claim(part)
            claims += answer.claims
        return replace(answer, claims=claims)


@killed_by("CLAIM-09")
class ClaimLosesItsMetadata(MemoryStore):
    """What a worker is given lacks the job's metadata."""

    def claim(self, request: ClaimRequest) -> Claimed:
        answer = super().claim(request)
        return replace(answer, claims=[replace(claim, metadata={}) for claim in answer.claims])


@killed_by("CLAIM-29")
class ClaimLooksAtAWindow(MemoryStore):
    """Only the first hundred due jobs are looked at; what is left out among them hides the rest."""

    def claim(self, request: ClaimRequest) -> Claimed:
        data = self._data
        due = sorted((r for r in data.by_status[Status.PENDING] if _due(r, self.now())), key=lambda r: r.key)
        hidden = frozenset((r.new.target, r.new.format) for r in due[100:])
        head = frozenset((r.new.target, r.new.format) for r in due[:100])
        return super().claim(replace(request, leave_out=request.leave_out | (hidden - head)))


@killed_by("CLAIM-30")
class NextDueIgnoresTheFilters(MemoryStore):
    """The next due time is that of any job."""

    def claim(self, request: ClaimRequest) -> Claimed:
        answer = super().claim(request)
        times = [
            r.scheduled_time for r in self._data.by_status[Status.PENDING] if r.new.type is not JobType.BATCH
        ]
        return replace(answer, next_due=min((t for t in times if t > answer.now), default=None))


@killed_by("CLAIM-22")
class ClaimedJobGoesToTheEnd(MemoryData):
    """A claim moves the due time of a job, so that it comes back behind the others."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.CLAIM:
            record.scheduled_time = now + _SECOND / 1000


# -- claims that come with an insert --------------------------------------------------------------


class _Grants(MemoryStore):
    """Answers the claim that was asked for with an insert otherwise than the row says."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        return [
            answer if new.claim_for is None else self.granted(new, answer)
            for new, answer in zip(jobs, super().insert(jobs, unit=unit), strict=True)
        ]

    @abstractmethod
    def granted(self, new: NewJob, answer: Inserted) -> Inserted:
        """What is answered instead."""


@killed_by("INSERT-17")
class FirstClaimIsNotWritten(_Grants):
    """A job that is answered as claimed with its insert is stored as PENDING, for everybody."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        answers = MemoryStore.insert(self, [replace(new, claim_for=None) for new in jobs], unit=unit)
        return [
            replace(Inserted.of(new, self.now()), id=answer.id) if answer.created else answer
            for new, answer in zip(jobs, answers, strict=True)
        ]

    def granted(self, new: NewJob, answer: Inserted) -> Inserted:
        return answer


@killed_by("INSERT-18")
class FirstClaimIsKeptSecret(_Grants):
    """A job is stored as claimed with its insert, and nobody is told: it lies there."""

    def granted(self, new: NewJob, answer: Inserted) -> Inserted:
        return replace(answer, claim=None)


@killed_by("INSERT-17")
class FirstClaimIsTheNoughth(_Grants):
    """A claim that comes with an insert carries a fence of its own, not that of the row."""

    def granted(self, new: NewJob, answer: Inserted) -> Inserted:
        return answer if answer.claim is None else replace(answer, claim=replace(answer.claim, claim_seq=0))


@killed_by("INSERT-19")
class FirstClaimHasNoOwner(MemoryData):
    """A claim that comes with an insert is stored without its node, so that nobody recovers it."""

    def add(self, new: NewJob, now: datetime, *, claimed: bool = False) -> None:
        super().add(new, now, claimed=claimed)
        if claimed:
            record = self.records[new.id.int]
            self.write(record, [("picked_at", LATEST)], now)
            self.held[new.claim_for].discard(record)


@killed_by("INSERT-20")
class FirstClaimOfWhatIsNotDue(MemoryStore):
    """A job that is to run later is claimed with its insert."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        hasty = [replace(new, delay=None, at=None) if new.claim_for else new for new in jobs]
        return super().insert(hasty, unit=unit)


@killed_by("INSERT-20")
class FirstClaimForARepeat(_Grants):
    """A repeat under a taken idempotency key gets a claim of the original."""

    def granted(self, new: NewJob, answer: Inserted) -> Inserted:
        if answer.created:
            return answer
        data = self._data
        with data.lock:
            return replace(answer, claim=data.records[answer.id.int].claim(data.now()))


@killed_by("SETTLE-20")
class EffectsAreClaimed(MemoryData):
    """A job that a settlement submits is claimed for its submitter, who never learns of it."""

    def add(self, new: NewJob, now: datetime, *, claimed: bool = False) -> None:
        super().add(new, now, claimed=claimed or new.claim_for is not None)
