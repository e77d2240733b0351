"""The memory store: the job store of one process, and the yardstick of the others.

It decides nothing by itself: `ratchet.domain.lifecycle` says what is refused, written and recorded,
and the store keeps records and indexes. Everything ends with the process; durable work belongs in a
database.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

from ratchet.defaults.memory_data import NO_SUCH_JOB, MemoryData
from ratchet.defaults.memory_reading import health, page
from ratchet.defaults.memory_records import Record, Wanted
from ratchet.domain.job import CallbackKind, Job, NewJob
from ratchet.domain.lifecycle import (
    ROWS,
    SETTLED,
    TABLE,
    BusinessKey,
    Execution,
    Status,
    Trigger,
    refusal,
)
from ratchet.domain.settlement import Change, Settlement
from ratchet.errors import (
    CapabilityMissing,
    ConfigurationError,
    ConflictError,
    DuplicateBusinessKey,
    StoreClosed,
    UsageError,
)
from ratchet.spi.capabilities import Capability
from ratchet.spi.clock import Clock
from ratchet.spi.store import (
    Applied,
    Claimed,
    ClaimRequest,
    Health,
    Inserted,
    JobStore,
    Node,
    NodeInfo,
    OnConflict,
    Order,
    Orphan,
    Page,
    PendingCallback,
    RecoverRequest,
    Recovery,
    Refused,
    Selected,
    Selection,
    SettleAnswer,
)

_SETTLES: Final = frozenset(
    row.trigger for row in TABLE if (row.consequences or row.ends) and row.trigger is not Trigger.RECOVER
)
_APPLIES: Final = frozenset(
    row.trigger for row in TABLE if not (row.consequences or row.ends) and row.trigger is not Trigger.CLAIM
)
MAX_BULK: Final = 1000


class MemoryStore(JobStore):
    """A `JobStore` in memory: for tests and for work that may be lost with the process.

    A forked child has a copy of its own, as it was at the fork.

    Args:
        clock: replaces store time; the wall clock by default.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._shared: MemoryData | None = MemoryData(clock)

    def another(self) -> MemoryStore:
        """A second handle on the same jobs, as a second node would open it."""
        store = MemoryStore.__new__(MemoryStore)
        store._shared = self._data
        return store

    @property
    def _data(self) -> MemoryData:
        data = self._shared
        if data is None:
            raise StoreClosed("this memory store was closed; open another")
        return data

    @property
    def capabilities(self) -> frozenset[str]:
        """None of the optional groups."""
        return frozenset()

    def now(self) -> datetime:
        """Store time."""
        return self._data.now()

    def close(self) -> None:
        """Let go of the jobs; they are lost with the last handle."""
        self._shared = None

    # -- submission and reading by key

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        """See `JobStore.insert`."""
        data = self._data
        if unit is not None:
            raise CapabilityMissing(Capability.TRANSACTIONAL_ENQUEUE)
        with data.lock:
            now = data.now()
            answers: list[Inserted] = []
            fresh: list[tuple[NewJob, bool]] = []
            first: dict[str, Inserted] = {}
            for new in jobs:
                key = new.idempotency_key
                if key is not None and (known := first.get(key) or data.original(key)) is not None:
                    answers.append(known.again())
                    continue
                answer = Inserted.of(new, now)
                answers.append(answer)
                fresh.append((new, answer.claim is not None))
                if key is not None:
                    first[key] = answer
            data.check_new([new for new, _ in fresh])
            for new, claimed in fresh:
                data.add(new, now, claimed=claimed)
            return answers

    def get(self, job_id: UUID) -> Job | None:
        """See `JobStore.get`."""
        data = self._data
        with data.lock:
            record = data.records.get(job_id.int)
            return record.job() if record is not None else None

    def get_many(self, job_ids: Sequence[UUID]) -> Sequence[Job]:
        """See `JobStore.get_many`."""
        data = self._data
        with data.lock:
            known = (data.records.get(key) for key in {job_id.int for job_id in job_ids})
            return [record.job() for record in known if record is not None]

    def find_by_key(self, *, idempotency: str | None = None, business: str | None = None) -> Inserted | None:
        """See `JobStore.find_by_key`."""
        data = self._data
        if (idempotency is None) == (business is None):
            raise UsageError("find_by_key needs exactly one of idempotency= and business=")
        with data.lock:
            if idempotency is not None:
                return data.original(idempotency)
            holder = data.business.get(business) if business is not None else None
            if holder is None:
                return None
            return Inserted(holder.new.id, created=False, status=holder.status)

    def delete(self, job_ids: Sequence[UUID]) -> int:
        """See `JobStore.delete`."""
        data = self._data
        with data.lock:
            known = (data.records.get(key) for key in {job_id.int for job_id in job_ids})
            doomed = [record for record in known if record is not None and record.status in SETTLED]
            for record in doomed:
                data.remove(record)
            return len(doomed)

    def counts(self) -> Mapping[Status, int]:
        """See `JobStore.counts`."""
        data = self._data
        with data.lock:
            return {status: len(records) for status, records in data.by_status.items()}

    # -- claiming

    def claim(self, request: ClaimRequest) -> Claimed:
        """See `JobStore.claim`."""
        data = self._data
        wanted = _wanted(request)
        with data.lock:
            now = data.now()
            lanes = [
                (lane, executor, priority)
                for executor, most in request.limits.items()
                if most > 0
                for priority, lane in data.lanes.get(executor, {}).items()
            ]
            claims, more = data.claim(request, lanes, now, wanted)
            known = [due for lane, _, _ in lanes if (due := lane.next_due(wanted)) is not None]
            return Claimed(claims, more, min(known, default=None), now)

    def held(self, incarnation: str) -> Sequence[tuple[UUID, int]]:
        """See `JobStore.held`."""
        data = self._data
        with data.lock:
            return [(record.new.id, record.claim_seq) for record in data.held.get(incarnation, ())]

    # -- changes

    def apply(self, change: Change) -> Applied | Refused:
        """See `JobStore.apply`."""
        data = self._data
        if change.trigger not in _APPLIES:
            raise UsageError(f"apply does not do {change.trigger}; it does {', '.join(sorted(_APPLIES))}")
        with data.lock:
            now = data.now()
            record = data.records.get(change.job_id.int)
            if record is None:
                return Refused(change.job_id, None, NO_SUCH_JOB)
            reason = refusal(record, change, now)
            if reason is not None:
                return Refused(change.job_id, record.job(), reason)
            key = record.business_key
            if key is not None and ROWS[change.trigger].business_key is BusinessKey.TAKEN:
                holder = data.business.get(key)
                if holder is not None:
                    raise DuplicateBusinessKey({key: holder.new.id})
            data.transition(record, change, now)
            return Applied(record.job())

    def settle(self, settlement: Settlement) -> SettleAnswer:
        """See `JobStore.settle`."""
        data = self._data
        self._check(settlement)
        with data.lock:
            return data.settle(settlement, data.now())

    def settle_many(self, settlements: Sequence[Settlement]) -> Sequence[SettleAnswer]:
        """See `JobStore.settle_many`; a job that cannot be submitted is a refusal of its entry alone."""
        data = self._data
        for settlement in settlements:
            self._check(settlement)
        with data.lock:
            now = data.now()
            answers: list[SettleAnswer] = []
            for settlement in settlements:
                try:
                    answers.append(data.settle(settlement, now))
                except (ConflictError, UsageError) as error:
                    change = settlement.change
                    answers.append(Refused(change.job_id, data.records[change.job_id.int].job(), str(error)))
            return answers

    def _check(self, settlement: Settlement) -> None:
        change = settlement.change
        if change.trigger not in _SETTLES:
            raise UsageError(f"settle does not do {change.trigger}; it does {', '.join(sorted(_SETTLES))}")
        targets = ROWS[change.trigger].targets
        if len(targets) > 1 and change.target not in targets:
            raise UsageError(f"{change.trigger} must name its target, one of {', '.join(targets)}")
        for effect in settlement.effects:
            if effect.capability is not None and effect.capability not in self.capabilities:
                raise CapabilityMissing(effect.capability)

    def apply_where(
        self, selection: Selection, trigger: Trigger, *, limit: int, on_conflict: OnConflict = "abort"
    ) -> Selected:
        """See `JobStore.apply_where`. The limit counts what is changed, so that conflicts never fill a page."""
        data = self._data
        if trigger is not Trigger.REQUEUE:
            raise UsageError(f"apply_where does not do {trigger}; it does {Trigger.REQUEUE}")
        if not 1 <= limit <= MAX_BULK:
            raise UsageError(f"a bulk change takes 1 to {MAX_BULK} jobs, not {limit}")
        sources = frozenset(ROWS[trigger].sources)
        statuses = selection.statuses & sources if selection.statuses else sources
        with data.lock:
            now = data.now()
            if not statuses:
                return Selected([], {}, now)
            changing: list[Record] = []
            holders: dict[Record, UUID] = {}
            taking: dict[str, UUID] = {}
            candidates = data.selected(replace(selection, statuses=statuses))
            for record in sorted(candidates, key=lambda record: record.key):
                if len(changing) == limit:
                    break
                key = record.business_key
                if key is not None and key in data.business:
                    holders[record] = data.business[key].new.id
                elif key is not None and key in taking:
                    holders[record] = taking[key]
                else:
                    changing.append(record)
                    if key is not None:
                        taking[key] = record.new.id
            if holders and on_conflict == "abort":
                raise DuplicateBusinessKey({str(r.business_key): holder for r, holder in holders.items()})
            for record in changing:
                data.transition(record, Change(trigger, record.new.id), now)
            skipped = {
                record.new.id: f"business key {record.business_key!r} is held by job {holder}"
                for record, holder in holders.items()
            }
            return Selected([record.new.id for record in changing], skipped, now)

    # -- recovery, callbacks, nodes

    def recover(self, request: RecoverRequest) -> Recovery:
        """See `JobStore.recover`."""
        data = self._data
        with data.lock:
            now = data.now()
            recovered: list[Orphan] = []
            exhausted: list[Orphan] = []
            orphans = sorted(data.orphans(request, now), key=lambda record: record.key)
            for record in orphans[: max(request.limit, 0)]:
                job_id, owner = record.new.id, record.picked_by or ""
                if record.crash_count >= request.crash_budget:
                    exhausted.append(Orphan(job_id, record.claim_seq, record.crash_count, owner))
                    continue
                change = Change(Trigger.RECOVER, job_id, record.claim_seq)
                if refusal(record, change, now) is None:
                    data.transition(record, change, now)
                    recovered.append(Orphan(job_id, record.claim_seq, record.crash_count, owner))
            return Recovery(recovered, exhausted, len(orphans) >= request.limit)

    def take_callbacks(self, incarnation: str, *, grace: timedelta, limit: int) -> Sequence[PendingCallback]:
        """See `JobStore.take_callbacks`."""
        data = self._data
        with data.lock:
            now = data.now()
            taken: list[PendingCallback] = []
            for owner, pending in list(data.callbacks.items()):
                if owner == incarnation or not data.is_silent(owner, None, now, grace):
                    continue
                mine = data.callbacks.setdefault(incarnation, {})
                for key in list(pending)[: max(limit - len(taken), 0)]:
                    mine[key] = pending.pop(key)
                    taken.append(mine[key])
                if not pending:
                    del data.callbacks[owner]
            return taken

    def callback_done(self, job_id: UUID, claim_seq: int, name: CallbackKind) -> None:
        """See `JobStore.callback_done`."""
        data = self._data
        with data.lock:
            for pending in data.callbacks.values():
                pending.pop((job_id.int, claim_seq, name), None)

    def heartbeat(self, info: NodeInfo) -> datetime:
        """See `JobStore.heartbeat`."""
        data = self._data
        with data.lock:
            now = data.now()
            known = data.nodes.get(info.incarnation)
            data.nodes[info.incarnation] = (info, known[1] if known is not None else now, now)
            return now

    def nodes(self) -> Sequence[Node]:
        """See `JobStore.nodes`."""
        data = self._data
        with data.lock:
            now = data.now()
            known = sorted(data.nodes.values(), key=lambda node: node[0].incarnation)
            known.sort(key=lambda node: node[2], reverse=True)
            return [Node(info, started, last, now - last) for info, started, last in known]

    def forget_node(self, incarnation: str) -> bool:
        """See `JobStore.forget_node`."""
        data = self._data
        with data.lock:
            if not data.held.get(incarnation):
                data.held.pop(incarnation, None)
            return data.nodes.pop(incarnation, None) is not None

    # -- history and queries

    def history(self, job_id: UUID) -> Sequence[Execution]:
        """See `JobStore.history`."""
        data = self._data
        with data.lock:
            record = data.records.get(job_id.int)
            return record.executions() if record is not None else []

    def find(
        self,
        selection: Selection,
        *,
        order: Order = "created_desc",
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """See `JobStore.find`."""
        data = self._data
        with data.lock:
            return page(data.selected(selection), order, limit, cursor)

    def count(self, selection: Selection) -> int:
        """See `JobStore.count`."""
        data = self._data
        with data.lock:
            return sum(1 for _ in data.selected(selection))

    def health(self, *, window: timedelta) -> Health:
        """See `JobStore.health`."""
        data = self._data
        with data.lock:
            return health(data.by_status, data.now(), window)


def _wanted(request: ClaimRequest) -> Wanted | None:
    """The filters of a claim as one question; None if there are none."""
    require, exclude = request.require_tags, request.exclude_tags
    types, leave_out = request.types, request.leave_out
    if not (require or exclude or types or leave_out):
        return None

    def wanted(record: Record) -> bool:
        new = record.new
        return (
            require <= new.tags
            and exclude.isdisjoint(new.tags)
            and (not types or new.type in types)
            and (new.target, new.format) not in leave_out
        )

    return wanted


class _MemoryPlugin:
    """Opens ``memory://`` (a store of its own) and ``memory://name`` (one store for each name in a process).

    A named store lives as long as one of its handles is open.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._named: weakref.WeakValueDictionary[str, MemoryData] = weakref.WeakValueDictionary()

    def open(self, url: str, *, clock: Clock | None = None, auto_upgrade: bool = False) -> MemoryStore:
        """See `ratchet.spi.plugin.StorePlugin.open`; the first handle of a name decides its clock."""
        parts = urlsplit(url)
        name = parts.netloc
        if parts.scheme != "memory" or parts.path.strip("/") or parts.query or parts.fragment:
            raise ConfigurationError(
                f"{url!r} is not the URL of a memory store; write memory:// or memory://name"
            )
        store = MemoryStore(clock=clock)
        if not name:
            return store
        with self._lock:
            known = self._named.get(name)
            if known is None:
                self._named[name] = store._data
            else:
                store._shared = known
        return store


plugin: Final = _MemoryPlugin()
"""The entry point ``memory`` of the group ``ratchet.stores``."""
