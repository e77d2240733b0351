"""Mutants that look first and write later, so that two callers at the same moment see the same thing.

Alone each of them behaves. The pause between looking and writing makes sure that they meet.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final
from uuid import UUID

from conformance_tests.mutants.base import killed_by
from ratchet.defaults.memory import MemoryStore
from ratchet.domain.job import NewJob
from ratchet.domain.lifecycle import ROWS, BusinessKey, Status, Trigger
from ratchet.domain.settlement import Change, Settlement
from ratchet.errors import DuplicateBusinessKey
from ratchet.spi.store import (
    Applied,
    Claimed,
    ClaimRequest,
    Inserted,
    Orphan,
    PendingCallback,
    RecoverRequest,
    Recovery,
    Refused,
    SettleAnswer,
)

_PAUSE: Final = 0.005


@killed_by("RACE-01")
class ClaimLooksThenWrites(MemoryStore):
    """Nodes that claim at the same moment are given the same jobs."""

    def claim(self, request: ClaimRequest) -> Claimed:
        data = self._data
        with data.lock:
            now = data.now()
            due = [
                r
                for r in data.by_status[Status.PENDING]
                if r.scheduled_time <= now and r.new.executor in request.limits
            ]
        due = sorted(due, key=lambda record: record.key)[: request.limit]
        time.sleep(_PAUSE)
        change = Change(Trigger.CLAIM, UUID(int=0), incarnation=request.incarnation)
        claims = []
        with data.lock:
            for record in due:
                data.transition(record, change, now)
                claims.append(record.claim(now))
        return Claimed(claims, more=False, next_due=None, now=now)


@killed_by("RACE-06")
class SettleLooksThenWrites(MemoryStore):
    """Two ends of one claim at the same moment are both written."""

    def settle(self, settlement: Settlement) -> SettleAnswer:
        before = self.get(settlement.change.job_id)
        time.sleep(_PAUSE)
        data = self._data
        record = data.records.get(settlement.change.job_id.int)
        if before is not None and record is not None and before.status is Status.RUNNING:
            with data.lock:
                key = record.business_key
                if key is not None and ROWS[settlement.change.trigger].business_key is BusinessKey.FREED:
                    data.business[key] = record
                data.write(record, [("status", Status.RUNNING), ("claim_seq", before.claim_seq)], data.now())
        return super().settle(settlement)


@killed_by("RACE-09")
class SweepLooksThenWrites(MemoryStore):
    """Two sweeps at the same moment both recover a claim."""

    def recover(self, request: RecoverRequest) -> Recovery:
        data = self._data
        with data.lock:
            seen = [
                Orphan(record.new.id, record.claim_seq, record.crash_count + 1, record.picked_by or "")
                for record in data.orphans(request, data.now())
                if record.crash_count < request.crash_budget
            ]
        time.sleep(_PAUSE)
        return replace(super().recover(request), recovered=seen)


@killed_by("RACE-10")
class CallbacksLookThenMove(MemoryStore):
    """Two sweeps at the same moment are both given a callback."""

    def take_callbacks(self, incarnation: str, *, grace: timedelta, limit: int) -> Sequence[PendingCallback]:
        data = self._data
        with data.lock:
            now = data.now()
            seen = [
                call
                for owner, pending in data.callbacks.items()
                if owner != incarnation and data.is_silent(owner, None, now, grace)
                for call in pending.values()
            ]
        time.sleep(_PAUSE)
        super().take_callbacks(incarnation, grace=grace, limit=limit)
        return seen[:limit]


@killed_by("RACE-11")
class KeyIsLookedUpFirst(MemoryStore):
    """Two jobs with one business key that are inserted at the same moment both hold it."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        keys = [new.business_key for new in jobs if new.business_key is not None]
        held = {key: found.id for key in keys if (found := self.find_by_key(business=key)) is not None}
        if held:
            raise DuplicateBusinessKey(held)
        time.sleep(_PAUSE)
        with self._data.lock:
            for key in keys:
                self._data.business.pop(key, None)
        return super().insert(jobs, unit=unit)


@killed_by("RACE-12")
class OriginalIsLookedUpFirst(MemoryStore):
    """Two jobs with one idempotency key that are inserted at the same moment both run."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        keys = [new.idempotency_key for new in jobs if new.idempotency_key is not None]
        fresh = [key for key in keys if self.find_by_key(idempotency=key) is None]
        time.sleep(_PAUSE)
        with self._data.lock:
            for key in fresh:
                self._data.idempotency.pop(key, None)
        return super().insert(jobs, unit=unit)


@killed_by("RACE-15")
class RequeueLooksThenTakes(MemoryStore):
    """A requeue and a new job at the same moment both hold the key."""

    def apply(self, change: Change) -> Applied | Refused:
        job = self.get(change.job_id)
        if job is None or change.trigger is not Trigger.REQUEUE or job.business_key is None:
            return super().apply(change)
        free = self.find_by_key(business=job.business_key) is None
        time.sleep(_PAUSE)
        if free:
            with self._data.lock:
                self._data.business.pop(job.business_key, None)
        return super().apply(change)


@killed_by("RACE-03")
class PauseLooksThenWrites(MemoryStore):
    """A job that is claimed and paused at the same moment is both."""

    def apply(self, change: Change) -> Applied | Refused:
        data = self._data
        record = data.records.get(change.job_id.int)
        if record is None or change.trigger is not Trigger.PAUSE or record.status is not Status.PENDING:
            return super().apply(change)
        time.sleep(_PAUSE)
        with data.lock:
            data.transition(record, change, data.now())
            return Applied(record.job())
