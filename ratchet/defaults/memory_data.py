"""The data of a memory store, and every way in which it changes. All of it runs under its lock."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heapreplace
from typing import Final
from uuid import UUID

from ratchet.defaults.memory_reading import matches
from ratchet.defaults.memory_records import Lane, Record, Wanted
from ratchet.domain.insertion import due_time
from ratchet.domain.job import Claim, JobType, NewJob
from ratchet.domain.lifecycle import (
    CLAIMABLE,
    ROWS,
    SETTLED,
    STARTS,
    BusinessKey,
    Status,
    Trigger,
    assign,
    refusal,
)
from ratchet.domain.priority import effective_priority
from ratchet.domain.settlement import Change, RunCallback, Settlement, Submit
from ratchet.errors import DuplicateBusinessKey, DuplicateIdempotencyKey, UsageError
from ratchet.spi.clock import Clock
from ratchet.spi.store import (
    ClaimRequest,
    Inserted,
    NodeInfo,
    PendingCallback,
    RecoverRequest,
    Refused,
    Selection,
    SettleAnswer,
    Settled,
)

_ZERO: Final = timedelta()
_NIL: Final = UUID(int=0)
_HELD: Final = frozenset(ROWS[Trigger.CLAIM].targets)
_GIVES_UP: Final = frozenset({BusinessKey.FREED, BusinessKey.MOVED})


class SystemClock:
    """The wall clock of this process."""

    def now(self) -> datetime:
        """The instant, UTC."""
        return datetime.now(UTC)


class MemoryData:
    """What the handles of one store share. The caller of any method but `now` holds `lock`."""

    __slots__ = (
        "__weakref__", "business", "by_status", "callbacks", "clock", "held", "idempotency", "lanes", "lock",
        "nodes", "records", "tagged",
    )  # fmt: skip

    def __init__(self, clock: Clock | None) -> None:
        self.lock = threading.Lock()
        self.clock = clock or SystemClock()
        self.records: dict[int, Record] = {}
        self.by_status: dict[Status, set[Record]] = {status: set() for status in Status}
        self.held: dict[str | None, set[Record]] = {}  # incarnation -> what it runs
        self.lanes: dict[str, dict[int, Lane]] = {}  # executor -> priority -> lane
        self.business: dict[str, Record] = {}  # keys that are held now
        self.idempotency: dict[str, UUID] = {}  # for ever
        self.tagged: dict[str, set[Record]] = {}
        self.callbacks: dict[str | None, dict[tuple[int, int, str], PendingCallback]] = {}  # by owner
        self.nodes: dict[str, tuple[NodeInfo, datetime, datetime]] = {}  # info, first and last heartbeat
        with _registry:
            _all_data.add(self)

    def now(self) -> datetime:
        """Store time in whole milliseconds."""
        now = self.clock.now()
        micro = now.microsecond
        return now.replace(microsecond=micro - micro % 1000)

    # -- submission

    def original(self, idempotency_key: str) -> Inserted | None:
        """The job that has taken the key."""
        job_id = self.idempotency.get(idempotency_key)
        if job_id is None:
            return None
        record = self.records.get(job_id.int)
        return Inserted(job_id, created=False, status=record.status if record is not None else None)

    def check_new(self, jobs: Sequence[NewJob], freed: str | None = None) -> None:
        """Raise unless all of `jobs` can be inserted; `freed` is a business key that is given up with it."""
        ids: set[int] = set()
        taking: dict[str, UUID] = {}
        conflicts: dict[str, UUID] = {}
        for new in jobs:
            if new.start not in STARTS:
                raise UsageError(f"a job starts as one of {', '.join(sorted(STARTS))}, not {new.start}")
            if new.id.int in self.records or new.id.int in ids:
                raise UsageError(f"job {new.id} is stored already; every submission needs an id of its own")
            ids.add(new.id.int)
            key = new.business_key
            if key is None:
                continue
            holder = self.business.get(key) if key != freed else None
            if holder is not None:
                conflicts[key] = holder.new.id
            elif key in taking:
                conflicts[key] = taking[key]
            else:
                taking[key] = new.id
        if conflicts:
            raise DuplicateBusinessKey(conflicts)

    def add(self, new: NewJob, now: datetime, *, claimed: bool = False) -> None:
        """Insert a job that `check_new` has let pass; `claimed`: with the claim of `claim_for`."""
        record = Record(new, due_time(new, now), now, self._lane(new))
        self.records[record.key] = record
        self.by_status[record.status].add(record)
        if new.idempotency_key is not None:
            self.idempotency[new.idempotency_key] = new.id
        if new.business_key is not None:
            self.business[new.business_key] = record
        for tag in new.tags:
            self.tagged.setdefault(tag, set()).add(record)
        if record.lane is not None and record.status in CLAIMABLE:
            record.lane.push(record, now)
        if claimed:
            self.transition(record, Change(Trigger.CLAIM, _NIL, incarnation=new.claim_for), now)

    def remove(self, record: Record) -> None:
        """Delete a job that holds no business key; its idempotency key stays taken."""
        del self.records[record.key]
        self.by_status[record.status].discard(record)
        for tag in record.new.tags:
            tagged = self.tagged[tag]
            tagged.discard(record)
            if not tagged:
                del self.tagged[tag]
        for pending in self.callbacks.values():
            for key in [key for key in pending if key[0] == record.key]:
                del pending[key]

    # -- changes

    def _lane(self, new: NewJob) -> Lane | None:
        """Where a job waits for its claim; None for one that is never claimed."""
        if new.type is JobType.BATCH:
            return None
        lanes = self.lanes.setdefault(new.executor, {})
        lane = lanes.get(new.priority)
        if lane is None:
            lane = lanes[new.priority] = Lane()
        return lane

    def write(self, record: Record, fields: Iterable[tuple[str, object]], now: datetime) -> None:
        """Write `fields` and keep the indexes."""
        was, owner, lane = record.status, record.picked_by, record.lane
        if lane is not None and was in CLAIMABLE:
            lane.left()
        for name, value in fields:
            setattr(record, name, value)
        status = record.status
        if status is not was:
            self.by_status[was].discard(record)
            self.by_status[status].add(record)
            if was in _HELD:
                self.held[owner].discard(record)
            elif status in _HELD:
                self.held.setdefault(record.picked_by, set()).add(record)
        if lane is not None and status in CLAIMABLE:
            lane.push(record, now)

    def transition(self, record: Record, change: Change, now: datetime) -> None:
        """Apply a row of the table that nothing refuses, with its history row and its business key."""
        row = ROWS[change.trigger]
        if row.ends is not None:
            ended = (record.before(), change, now, record.picked_by)
            if record.history is None:
                record.history = [ended]
            else:
                record.history.append(ended)
        self.write(record, assign(record, change, now).items(), now)
        key = record.business_key
        if key is not None:
            if row.business_key in _GIVES_UP:
                del self.business[key]
            elif row.business_key is BusinessKey.TAKEN:
                self.business[key] = record

    def settle(self, settlement: Settlement, now: datetime) -> SettleAnswer:
        """Apply a settlement with its effects, or refuse it, or raise; a part is never written."""
        change = settlement.change
        record = self.records.get(change.job_id.int)
        if record is None:
            return Refused(change.job_id, None, NO_SUCH_JOB)
        reason = refusal(record, change, now)
        if reason is not None:
            return Refused(change.job_id, record.job(), reason)
        submitted = self._submitted(record, settlement) if settlement.effects else ()
        owner = record.picked_by  # of the claim that ends: a row that leads back to PENDING clears it
        self.transition(record, change, now)
        for new in submitted:
            self.add(new, now)
        for effect in settlement.effects:
            if isinstance(effect, RunCallback):
                told = PendingCallback(
                    record.new.id, record.claim_seq, effect.name, effect.target, effect.argument
                )
                mine = self.callbacks.setdefault(owner, {})
                mine[record.key, record.claim_seq, effect.name] = told
        status = record.status
        waited = record.queue_wait if status in SETTLED else None
        return Settled(
            change.job_id,
            status,
            record.version,
            now,
            record.scheduled_time,
            _ZERO if waited is None else waited,
        )

    def _submitted(self, record: Record, settlement: Settlement) -> list[NewJob]:
        """The jobs that the settlement inserts, after making sure that it can."""
        trigger = settlement.change.trigger
        freed = record.business_key if ROWS[trigger].business_key in _GIVES_UP else None
        moves = ROWS[trigger].business_key is BusinessKey.MOVED
        jobs: list[NewJob] = []
        for effect in settlement.effects:
            if isinstance(effect, Submit):
                job = effect.job
                jobs.append(replace(job, business_key=freed) if moves and job.business_key is None else job)
        keys = [job.idempotency_key for job in jobs if job.idempotency_key is not None]
        for place, key in enumerate(keys):
            if key in self.idempotency or key in keys[:place]:
                raise DuplicateIdempotencyKey(
                    f"idempotency key {key!r} is taken; its original job answers for it"
                )
        self.check_new(jobs, freed)
        return jobs

    # -- claiming

    def claim(
        self,
        request: ClaimRequest,
        lanes: Sequence[tuple[Lane, str, int]],
        now: datetime,
        wanted: Wanted | None,
    ) -> tuple[list[Claim], bool]:
        """Merge the heads of `lanes` in claim order; answer the claims, and whether more is due."""
        boost, left = request.boost_interval, dict(request.limits)
        change = Change(Trigger.CLAIM, _NIL, incarnation=request.incarnation)  # the same for every job
        heads = []
        for lane, executor, priority in lanes:
            lane.wake(now)
            entry = lane.head(wanted)
            if entry is not None:
                heads.append(
                    (-effective_priority(priority, entry[0], now, boost), entry, lane, executor, priority)
                )
        heapify(heads)
        claims: list[Claim] = []
        more = False
        while heads:
            rank, entry, lane, executor, priority = heads[0]
            if len(claims) >= request.limit:
                more = True
                break
            if left[executor] <= 0:
                more = True
                heappop(heads)
                continue
            lane.take(entry)
            record = entry[3]
            if refusal(record, change, now) is None:
                self.transition(record, change, now)
                claims.append(record.claim(now))
                left[executor] -= 1
            entry = lane.head(wanted)
            if entry is None:
                heappop(heads)
            elif len(heads) == 1:  # nothing to be ranked against
                heads[0] = (rank, entry, lane, executor, priority)
            else:
                rank = -effective_priority(priority, entry[0], now, boost)
                heapreplace(heads, (rank, entry, lane, executor, priority))
        for lane, _, _ in lanes:
            lane.restore()
        return claims, more

    # -- recovery

    def is_silent(self, owner: str | None, since: datetime | None, now: datetime, grace: timedelta) -> bool:
        """True if the incarnation's last heartbeat (or else `since`) is older than `grace`."""
        node = self.nodes.get(owner) if owner is not None else None
        last = node[2] if node is not None else since
        return last is None or now - last > grace

    def orphans(self, request: RecoverRequest, now: datetime) -> Iterator[Record]:
        """Every claim of a dead incarnation that `request` looks at."""
        for owner, records in self.held.items():
            if owner in request.never:
                continue
            if owner in request.known_gone:
                yield from records
            elif not request.only_known_gone:
                yield from (r for r in records if self.is_silent(owner, r.picked_at, now, request.grace))

    # -- reading

    def selected(self, selection: Selection) -> Iterator[Record]:
        """The jobs of the selection, from the narrowest index there is."""
        candidates: Iterable[Record]
        if selection.ids:
            known = (self.records.get(job_id.int) for job_id in selection.ids)
            candidates = [record for record in known if record is not None]
        elif selection.tags:
            tagged: list[set[Record]] = [self.tagged.get(tag, set()) for tag in selection.tags]
            tagged.sort(key=len)
            candidates = tagged[0]
        elif selection.statuses:
            candidates = (record for status in selection.statuses for record in self.by_status[status])
        else:
            candidates = self.records.values()
        return (record for record in candidates if matches(record, selection))


NO_SUCH_JOB: Final = "there is no such job"


# -- forks ----------------------------------------------------------------------------------------

_registry: Final = threading.Lock()
_all_data: Final[weakref.WeakSet[MemoryData]] = weakref.WeakSet()
_locked_for_fork: Final[list[threading.Lock]] = []


def _before_fork() -> None:
    # A child must inherit neither a lock that nobody there will release nor data in the middle of a change.
    _registry.acquire()
    _locked_for_fork.append(_registry)
    for data in list(_all_data):
        data.lock.acquire()
        _locked_for_fork.append(data.lock)


def _after_fork() -> None:
    while _locked_for_fork:
        _locked_for_fork.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
