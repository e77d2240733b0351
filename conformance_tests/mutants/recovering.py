"""Mutants that take the living for dead, the dead for living, or a crash for nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from conformance_tests.mutants.base import killed_by
from ratchet.defaults.memory import MemoryStore
from ratchet.defaults.memory_data import MemoryData
from ratchet.defaults.memory_records import Record
from ratchet.domain.job import CallbackKind
from ratchet.domain.lifecycle import Trigger
from ratchet.domain.settlement import Change
from ratchet.spi.store import Node, NodeInfo, Orphan, PendingCallback, RecoverRequest, Recovery

# -- who is dead ----------------------------------------------------------------------------------


@killed_by("RECOVER-02")
class OrphanOfALiveNode(MemoryData):
    """An old claim is an orphan although its owner sends heartbeats."""

    def orphans(self, request: RecoverRequest, now: datetime) -> Iterator[Record]:
        dead = {record.key: record for record in super().orphans(request, now)}
        if not request.only_known_gone:
            for owner, records in self.held.items():
                if owner not in request.never:
                    old = (
                        r for r in records if r.picked_at is not None and now - r.picked_at > request.grace
                    )
                    dead.update((record.key, record) for record in old)
        return iter(list(dead.values()))


@killed_by("RECOVER-01")
class UnregisteredNodesLiveForEver(MemoryData):
    """A node that died before its first heartbeat keeps its claims."""

    def orphans(self, request: RecoverRequest, now: datetime) -> Iterator[Record]:
        known = {*self.nodes, *request.known_gone}
        return iter([record for record in super().orphans(request, now) if record.picked_by in known])


@killed_by("RECOVER-01")
class GraceEndsTooEarly(MemoryStore):
    """A claim is an orphan at the very end of the grace, not after it."""

    def recover(self, request: RecoverRequest) -> Recovery:
        return super().recover(replace(request, grace=request.grace - timedelta(milliseconds=1)))


@killed_by("RECOVER-08")
class NeverIsIgnored(MemoryStore):
    """A node that looks dead to itself takes its own claims back."""

    def recover(self, request: RecoverRequest) -> Recovery:
        return super().recover(replace(request, never=frozenset()))


@killed_by("RECOVER-06")
class KnownGoneIsIgnored(MemoryStore):
    """A restarted node waits for the grace of its own former incarnation."""

    def recover(self, request: RecoverRequest) -> Recovery:
        return super().recover(replace(request, known_gone=frozenset()))


@killed_by("RECOVER-07")
class StartLooksAtEverybody(MemoryStore):
    """The pass at start also takes claims of nodes that have only been silent."""

    def recover(self, request: RecoverRequest) -> Recovery:
        return super().recover(replace(request, only_known_gone=False))


@killed_by("NODE-02")
class ForgettingRecoversAtOnce(MemoryStore):
    """The claims of a node that deregistered are taken back before the grace."""

    def forget_node(self, incarnation: str) -> bool:
        data = self._data
        with data.lock:
            for record in list(data.held.get(incarnation, ())):
                change = Change(Trigger.RECOVER, record.new.id, record.claim_seq)
                data.transition(record, change, data.now())
        return super().forget_node(incarnation)


@killed_by("NODE-02")
class ForgettingIsAlwaysNews(MemoryStore):
    """`forget_node` says of an unknown node that it was registered."""

    def forget_node(self, incarnation: str) -> bool:
        super().forget_node(incarnation)
        return True


@killed_by("NODE-01")
class EveryHeartbeatIsAStart(MemoryStore):
    """A heartbeat moves the time at which a node started."""

    def heartbeat(self, info: NodeInfo) -> datetime:
        self._data.nodes.pop(info.incarnation, None)
        return super().heartbeat(info)


@killed_by("NODE-01")
class HeartbeatKeepsTheFirstWord(MemoryStore):
    """What a node says of itself is kept from its first heartbeat."""

    def heartbeat(self, info: NodeInfo) -> datetime:
        known = self._data.nodes.get(info.incarnation)
        return super().heartbeat(known[0] if known is not None else info)


@killed_by("NODE-01")
class NodesOldestFirst(MemoryStore):
    """The node that was silent for longest comes first."""

    def nodes(self) -> Sequence[Node]:
        return list(reversed(super().nodes()))


# -- what a crash costs ---------------------------------------------------------------------------


@killed_by("RECOVER-10")
class CrashBudgetIsOneMore(MemoryStore):
    """A job that has used up its crash budget is recovered once more."""

    def recover(self, request: RecoverRequest) -> Recovery:
        return super().recover(replace(request, crash_budget=request.crash_budget + 1))


@killed_by("RECOVER-10")
class CrashIsAnAttempt(MemoryData):
    """A crash is charged as a failed attempt."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.RECOVER:
            record.attempts += 1


@killed_by("RECOVER-10")
class ExhaustedIsToldOnce(MemoryStore):
    """A job at its budget is reported to one sweep only, and stays RUNNING if that dies."""

    def recover(self, request: RecoverRequest) -> Recovery:
        answer = super().recover(request)
        told: set[UUID] = self.__dict__.setdefault("told", set())
        fresh = [orphan for orphan in answer.exhausted if orphan.job_id not in told]
        told.update(orphan.job_id for orphan in fresh)
        return replace(answer, exhausted=fresh)


@killed_by("RECOVER-11")
class ExhaustedHoldsUpTheOthers(MemoryStore):
    """A pass ends at the first job that is at its budget."""

    def recover(self, request: RecoverRequest) -> Recovery:
        data = self._data
        with data.lock:
            found = list(data.orphans(request, data.now()))
        if any(record.crash_count >= request.crash_budget for record in found):
            spent = [r for r in found if r.crash_count >= request.crash_budget]
            told = [Orphan(r.new.id, r.claim_seq, r.crash_count, r.picked_by or "") for r in spent]
            return Recovery([], told, more=False)
        return super().recover(request)


@killed_by("RECOVER-12")
class RecoveredTwice(MemoryStore):
    """A claim that one pass has recovered is told again by the next."""

    def recover(self, request: RecoverRequest) -> Recovery:
        answer = super().recover(request)
        before: list[Orphan] = self.__dict__.setdefault("before", [])
        both = [*before, *answer.recovered]
        self.__dict__["before"] = list(answer.recovered)
        return replace(answer, recovered=both)


@killed_by("RECOVER-12")
class RecoveryIsNotBounded(MemoryStore):
    """A pass takes everything, whatever its limit."""

    def recover(self, request: RecoverRequest) -> Recovery:
        return super().recover(replace(request, limit=10_000))


@killed_by("HISTORY-01")
class CrashLeavesNoHistory(MemoryData):
    """A recovered claim is missing from the history."""

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        super().transition(record, change, now)
        if change.trigger is Trigger.RECOVER and record.history:
            record.history.pop()


# -- callbacks ------------------------------------------------------------------------------------


@killed_by("CALLBACK-01")
class RivalRunsACallback(MemoryStore):
    """The pending callback of a live node is given to another."""

    def take_callbacks(self, incarnation: str, *, grace: timedelta, limit: int) -> Sequence[PendingCallback]:
        return super().take_callbacks(incarnation, grace=timedelta(days=-1), limit=limit)


@killed_by("CALLBACK-01")
class CallbackIsGivenTwice(MemoryStore):
    """A callback that was taken over is not moved, and the next sweep is given it too."""

    def take_callbacks(self, incarnation: str, *, grace: timedelta, limit: int) -> Sequence[PendingCallback]:
        data = self._data
        before = {owner: dict(pending) for owner, pending in data.callbacks.items()}
        taken = super().take_callbacks(incarnation, grace=grace, limit=limit)
        data.callbacks = before
        return taken


@killed_by("CALLBACK-03")
class DoneIsNotDone(MemoryStore):
    """A callback that was reported done comes back."""

    def callback_done(self, job_id: UUID, claim_seq: int, name: CallbackKind) -> None:
        del job_id, claim_seq, name


@killed_by("CALLBACK-03")
class DoneByTheWrongKey(MemoryStore):
    """A callback of one claim that is done takes those of all claims of the job with it."""

    def callback_done(self, job_id: UUID, claim_seq: int, name: CallbackKind) -> None:
        for pending in self._data.callbacks.values():
            for key in [key for key in pending if key[0] == job_id.int]:
                del pending[key]


@killed_by("CALLBACK-04")
class CallbackLimitIsIgnored(MemoryStore):
    """A sweep is given all pending callbacks, whatever its limit."""

    def take_callbacks(self, incarnation: str, *, grace: timedelta, limit: int) -> Sequence[PendingCallback]:
        return super().take_callbacks(incarnation, grace=grace, limit=10_000)


# -- smaller print --------------------------------------------------------------------------------


@killed_by("RECOVER-03")
class OldClaimOfAFreshNode(MemoryStore):
    """A registered node whose heartbeats have stopped is spared while its claim is fresh."""

    def recover(self, request: RecoverRequest) -> Recovery:
        data, now = self._data, self.now()
        fresh = {
            owner
            for owner, records in data.held.items()
            if any(r.picked_at is not None and now - r.picked_at <= request.grace for r in records)
        }
        never = request.never | {
            owner for owner in fresh if owner is not None and owner not in request.known_gone
        }
        return super().recover(replace(request, never=never))


@killed_by("RECOVER-05")
class CutOffIsFrozen(MemoryStore):
    """Who is dead is judged by the time of the first sweep."""

    def recover(self, request: RecoverRequest) -> Recovery:
        first: datetime = self.__dict__.setdefault("first", self.now())
        return super().recover(replace(request, grace=request.grace + (self.now() - first)))
