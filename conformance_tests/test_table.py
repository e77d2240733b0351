"""One test for each state x trigger cell of the lifecycle table, generated from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from conformance_tests.contract import contract
from conformance_tests.driver import SECOND, Driver, new_job, request
from conformance_tests.under_test import Time
from ratchet.domain.job import Job, JobType
from ratchet.domain.lifecycle import (
    HOLDS_BUSINESS_KEY,
    ROWS,
    TABLE,
    UNSCHEDULED,
    AttemptEnd,
    BusinessKey,
    Execution,
    Status,
    Transition,
    Trigger,
    Value,
)
from ratchet.domain.settlement import Change, Effect, RunCallback, Settlement, Submit
from ratchet.spi.store import Applied, JobStore, RecoverRequest, Refused, Settled

KEY = "order-1"
GIVEN: dict[str, Any] = {
    "attempts": 7,
    "error": "ValueError: no",
    "result": '"r"',
    "signal": '"s"',
    "delay": timedelta(seconds=90),
    "duration": timedelta(milliseconds=1500),
    "age": timedelta(milliseconds=250),
}
CELLS = [(row.trigger, status) for row in TABLE for status in Status]
ALLOWED = [(trigger, status) for trigger, status in CELLS if status in ROWS[trigger].sources]
REFUSED = [cell for cell in CELLS if cell not in ALLOWED]


@dataclass
class Told:
    """What a trigger did to a job: whether it was applied, and by which change."""

    applied: bool
    change: Change


def subject(driver: Driver, trigger: Trigger, status: Status, **fields: Any) -> Job:
    """A job in `status` for which nothing but its status stands in the way of `trigger`."""
    if trigger is Trigger.UNBLOCK and status in ROWS[trigger].sources:
        return driver.drive(status, business_key=KEY, at=UNSCHEDULED, **fields)
    if trigger is Trigger.BATCH_SETTLE and status in ROWS[trigger].sources:
        return driver.drive(status, business_key=KEY, type=JobType.BATCH, **fields)
    return driver.drive(status, eventful=True, business_key=KEY, **fields)


def pull(store: JobStore, job: Job, trigger: Trigger) -> Told:
    """Do `trigger` to `job` by the SPI method that it belongs to."""
    row = ROWS[trigger]
    if trigger is Trigger.CLAIM:
        claims = store.claim(request("node-9")).claims
        return Told(
            job.id in [claim.job_id for claim in claims], Change(trigger, job.id, incarnation="node-9")
        )
    if trigger is Trigger.RECOVER:
        gone = frozenset({job.picked_by} if job.picked_by else ())
        recovered = store.recover(
            RecoverRequest(grace=timedelta(), crash_budget=9, known_gone=gone)
        ).recovered
        return Told(job.id in [orphan.job_id for orphan in recovered], Change(trigger, job.id, job.claim_seq))
    change = Change(
        trigger,
        job.id,
        claim_seq=job.claim_seq if row.fenced else None,
        target=Status.FAILED if len(row.targets) > 1 else None,
        **GIVEN,
    )
    if row.consequences or row.ends:
        effects: tuple[Effect, ...] = (RunCallback("on_failure", "shop.jobs:failed", "told"),)
        if trigger is Trigger.REPLACE:
            new = new_job()
            change, effects = replace(change, superseded_by=new.id), (*effects, Submit(new))
        answer = store.settle(Settlement(change, effects))
        assert isinstance(answer, Settled) or answer.current == job
        return Told(isinstance(answer, Settled), change)
    applied = store.apply(change)
    assert isinstance(applied, Applied) or applied.current == job
    return Told(isinstance(applied, Applied), change)


def expected(job: Job, row: Transition, change: Change, now: datetime) -> dict[str, object]:
    """What the table says the job's fields are after `row`; written apart from the stores' own code."""
    end = now - change.age
    duration = change.duration if change.duration is not None else end - (job.picked_at or end)
    values: dict[Value, Any] = {
        Value.NULL: lambda name: None,
        Value.ZERO: lambda name: 0,
        Value.INCREMENT: lambda name: getattr(job, name) + 1,
        Value.NOW: lambda name: now,
        Value.GIVEN: lambda name: getattr(change, "error" if name == "last_error" else name),
        Value.GIVEN_OR_KEPT: lambda name: getattr(change, name),
        Value.DUE: lambda name: now + change.delay if change.delay else job.scheduled_time,
        Value.START: lambda name: end - duration,
        Value.END: lambda name: end,
        Value.DURATION: lambda name: duration,
        Value.QUEUE_WAIT: lambda name: max(end - duration - job.scheduled_time, timedelta()),
        Value.OWNER: lambda name: change.incarnation,
        Value.SOURCE: lambda name: job.status,
    }
    target = job.status if not row.targets else change.target or row.targets[0]
    written = {name: values[value](name) for name, value in row.writes.items()}
    return {"status": target, "version": job.version + 1, "updated_at": now} | written


def holder(store: JobStore) -> UUID | None:
    found = store.find_by_key(business=KEY)
    return found.id if found else None


@contract("CELL-01")
@pytest.mark.parametrize(("trigger", "status"), ALLOWED)
def test_allowed_cell(store: JobStore, driver: Driver, trigger: Trigger, status: Status) -> None:
    """An allowed trigger leads to its target and writes the fields of its row, and no others."""
    assert_allowed(store, driver, subject(driver, trigger, status), trigger)


def assert_allowed(store: JobStore, driver: Driver, job: Job, trigger: Trigger) -> None:
    """`trigger` is applied and writes what its row says: job, history, keys, counts and callbacks."""
    row = ROWS[trigger]
    counts, before, earliest = store.counts(), list(store.history(job.id)), store.now()
    told = pull(store, job, trigger)
    assert told.applied

    after = driver.job(job.id)
    now = after.updated_at
    assert earliest <= now <= store.now()
    assert after == replace(job, **expected(job, row, told.change, now))  # type: ignore[arg-type]

    history = list(store.history(job.id))
    assert list(history[: len(before)]) == list(before)
    assert list(history[len(before) :]) == ([_execution(job, row, told.change, now)] if row.ends else [])

    moved = row.business_key is BusinessKey.MOVED
    new_holder = told.change.superseded_by if moved else job.id
    assert holder(store) == (new_holder if moved or after.status in HOLDS_BUSINESS_KEY else None)

    counted = dict(counts)
    counted[job.status] -= 1
    counted[after.status] += 1
    counted[Status.PENDING] += moved
    assert store.counts() == counted

    told_back = store.take_callbacks("sweeper", grace=timedelta(), limit=10)
    recorded = row.consequences or (row.ends is not None and trigger is not Trigger.RECOVER)
    assert [(call.job_id, call.claim_seq, call.argument) for call in told_back] == (
        [(job.id, job.claim_seq, "told")] if recorded else []
    )


def _execution(job: Job, row: Transition, change: Change, now: datetime) -> Execution:
    end = now - change.age
    duration = change.duration
    if duration is None:
        assert job.picked_at is not None
        duration = end - job.picked_at
    return Execution(
        job_id=job.id,
        claim_seq=job.claim_seq,
        attempt=job.attempts + 1,
        end=row.ends or AttemptEnd.SUCCEEDED,
        trigger=row.trigger,
        node=job.picked_by,
        picked_at=job.picked_at,
        started_at=end - duration,
        ended_at=end,
        duration=duration,
        error=change.error,
    )


def assert_refused(store: JobStore, driver: Driver, job: Job, trigger: Trigger) -> None:
    """`trigger` is refused and changes nothing at all."""
    counts, history, key = store.counts(), list(store.history(job.id)), holder(store)
    assert not pull(store, job, trigger).applied
    assert driver.job(job.id) == job
    assert (store.counts(), list(store.history(job.id)), holder(store)) == (counts, history, key)
    assert list(store.take_callbacks("sweeper", grace=timedelta(), limit=10)) == []


@contract("CELL-02")
@pytest.mark.parametrize(("trigger", "status"), REFUSED)
def test_refused_cell(store: JobStore, driver: Driver, trigger: Trigger, status: Status) -> None:
    """A trigger outside its source states is refused and changes no field, history row, key or count."""
    assert_refused(store, driver, subject(driver, trigger, status), trigger)


@contract("CELL-03", needs=("clock",))
def test_claim_refuses_what_is_not_due(store: JobStore, driver: Driver, clock: Time) -> None:
    """A job is not claimed a millisecond before its due time, and is at it (inclusive)."""
    job = driver.job(driver.submit(at=clock.now() + SECOND, business_key=KEY))
    clock.advance(SECOND - timedelta(milliseconds=1))
    assert_refused(store, driver, job, Trigger.CLAIM)
    clock.advance(timedelta(milliseconds=1))
    assert pull(store, job, Trigger.CLAIM).applied


@contract("CELL-04")
@pytest.mark.parametrize("trigger", [Trigger.CLAIM, Trigger.PAUSE])
def test_a_batch_parent_does_no_work(store: JobStore, driver: Driver, trigger: Trigger) -> None:
    """A batch parent is never claimed and never paused."""
    job = driver.drive(Status.PENDING, type=JobType.BATCH, business_key=KEY)
    assert_refused(store, driver, job, trigger)


@contract("CELL-05")
@pytest.mark.parametrize("status", [Status.PENDING, Status.PAUSED])
def test_unblock_refuses_what_is_not_blocked(store: JobStore, driver: Driver, status: Status) -> None:
    """Only a step whose due time is UNSCHEDULED can be unblocked."""
    assert_refused(store, driver, driver.drive(status, business_key=KEY), Trigger.UNBLOCK)


@contract("CELL-06")
def test_batch_settle_refuses_what_is_no_batch(store: JobStore, driver: Driver) -> None:
    """Only a batch parent is settled by its batch."""
    assert_refused(store, driver, driver.drive(Status.PENDING, business_key=KEY), Trigger.BATCH_SETTLE)


@contract("CELL-07", needs=("clock",))
def test_a_blocked_step_is_never_due(store: JobStore, driver: Driver, clock: Time) -> None:
    """A blocked step is not claimed, and is nothing that a poller would wait for."""
    job = driver.drive(Status.PENDING, at=UNSCHEDULED, business_key=KEY)
    assert_refused(store, driver, job, Trigger.CLAIM)
    assert driver.claim().next_due is None


@contract("CELL-08")
def test_batch_settle_leads_where_it_says(store: JobStore, driver: Driver) -> None:
    """A row with two targets takes the one that the change names."""
    for target in ROWS[Trigger.BATCH_SETTLE].targets:
        job = driver.drive(Status.PENDING, type=JobType.BATCH)
        driver.settle(Trigger.BATCH_SETTLE, job.id, target=target, result="{}")
        assert driver.job(job.id).status is target


@contract("CELL-09")
def test_refusals_say_why_and_show_the_job(store: JobStore, driver: Driver) -> None:
    """A refusal carries the job as it is and a reason; of an unknown job, None."""
    job = driver.drive(Status.SUCCEEDED)
    answer = store.apply(Change(Trigger.PAUSE, job.id))
    assert isinstance(answer, Refused)
    assert (answer.job_id, answer.current) == (job.id, job)
    assert "pause" in answer.reason
    unknown = store.apply(Change(Trigger.PAUSE, new_job().id))
    assert isinstance(unknown, Refused)
    assert unknown.current is None
