"""The lifecycle table and what is derived from it: refusals, assignments, history rows, time arithmetic."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.domain.ids import new_id
from ratchet.domain.job import Job, JobType
from ratchet.domain.lifecycle import (
    CANCELABLE,
    CLAIMABLE,
    FINAL,
    HOLDS_BUSINESS_KEY,
    LATEST,
    ROWS,
    SETTLED,
    TABLE,
    UNSCHEDULED,
    AttemptEnd,
    BusinessKey,
    Condition,
    Status,
    Trigger,
    Value,
    after,
    assign,
    clamp,
    execution,
    refusal,
    target_of,
)
from ratchet.domain.settlement import Change
from ratchet.errors import UsageError

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MS = timedelta(milliseconds=1)
CENTURY = timedelta(days=36_500)
JOB_FIELDS = {field.name for field in fields(Job)}


def job(status: Status = Status.PENDING, **given_fields: Any) -> Job:
    base: dict[str, Any] = {
        "id": new_id(), "status": status, "target": "m:f", "payload": "[]", "format": 1,
        "type": JobType.SINGLE, "executor": "threads", "priority": 2, "scheduled_time": NOW - 5 * MS,
        "created_at": NOW - 9 * MS, "updated_at": NOW - 9 * MS, "version": 4, "claim_seq": 2,
    }  # fmt: skip
    if status is Status.RUNNING:
        base |= {"picked_by": "node", "picked_at": NOW - 3 * MS}
    return Job(**base | given_fields)


def change(trigger: Trigger, of: Job, **given_fields: Any) -> Change:
    row = ROWS[trigger]
    base: dict[str, Any] = {
        "claim_seq": of.claim_seq if row.fenced else None,
        "target": row.targets[0] if len(row.targets) > 1 else None,
        "incarnation": "node",
    }
    return Change(trigger, of.id, **base | given_fields)


statuses, triggers = st.sampled_from(Status), st.sampled_from(Trigger)
milliseconds = st.datetimes(datetime(2000, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)).map(clamp)  # noqa: DTZ001
spans = st.timedeltas(-CENTURY, CENTURY)
jobs = st.builds(
    job,
    status=statuses,
    type=st.sampled_from(JobType),
    scheduled_time=milliseconds | st.just(UNSCHEDULED),
    picked_at=st.none() | milliseconds,
    version=st.integers(0, 2**40),
    claim_seq=st.integers(0, 2**40),
    attempts=st.integers(0, 2**31),
    crash_count=st.integers(0, 2**31),
)
given_values = st.fixed_dictionaries(
    {},
    optional={
        "attempts": st.none() | st.integers(0, 2**31),
        "error": st.none() | st.text(),
        "result": st.none() | st.text(),
        "signal": st.none() | st.text(),
        "delay": st.none() | st.timedeltas(),
        "duration": st.none() | spans,
        "age": spans,
        "timed_out": st.booleans(),
        "superseded_by": st.none() | st.uuids(),
    },
)


# -- the table ------------------------------------------------------------------------------------


def test_one_row_for_each_trigger() -> None:
    """Every verb has exactly one row, and the order of the table is that of the specification."""
    assert [row.trigger for row in TABLE] == list(Trigger)
    assert set(ROWS) == set(Trigger)


def test_the_specification_has_these_rows() -> None:
    """Sources, targets and fences of all rows, written out once more from section 1 of the specification."""
    p, r, u, w = Status.PENDING, Status.RUNNING, Status.PAUSED, Status.WAITING
    s, f, c = Status.SUCCEEDED, Status.FAILED, Status.CANCELED
    expected = {
        Trigger.CLAIM: ({p}, {r}, False),
        Trigger.SUCCEED: ({r}, {s}, True),
        Trigger.RETRY: ({r}, {p}, True),
        Trigger.FAIL: ({r}, {f}, True),
        Trigger.DEFER: ({r}, {p}, True),
        Trigger.RELEASE: ({r}, {p}, True),
        Trigger.RECOVER: ({r}, {p}, True),
        Trigger.CRASH_FAIL: ({r}, {f}, True),
        Trigger.PAUSE: ({p}, {u}, False),
        Trigger.RESUME: ({u}, {p}, False),
        Trigger.UNBLOCK: ({p, u}, set(), False),
        Trigger.BATCH_SETTLE: ({p}, {s, f}, False),
        Trigger.SIGNAL: ({w}, {p}, False),
        Trigger.SIGNAL_TIMEOUT: ({w}, {f}, False),
        Trigger.CANCEL: ({p, u, w}, {c}, False),
        Trigger.CANCEL_RUNNING: ({r}, {c}, False),
        Trigger.REQUEUE: ({f}, {p}, False),
        Trigger.REPLACE: ({p, u, w}, {c}, False),
    }
    assert {row.trigger: (set(row.sources), set(row.targets), row.fenced) for row in TABLE} == expected


def test_sets_agree_with_the_table() -> None:
    """Claimable, settled, final and key-holding are what the rows say; settled and final differ by FAILED."""
    leavable = {status for row in TABLE for status in row.sources}
    assert set(ROWS[Trigger.CLAIM].sources) == CLAIMABLE
    assert set(Status) - leavable == FINAL == SETTLED - {Status.FAILED}
    assert set(Status) - SETTLED == HOLDS_BUSINESS_KEY
    assert set(Status) - SETTLED - {Status.RUNNING} == CANCELABLE


@pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row.trigger))
def test_rows_are_consistent(row: Any) -> None:
    """Keys follow settling, claims end exactly by leaving RUNNING, and only fields of a job are written."""
    settles, was_settled = set(row.targets) & SETTLED, set(row.sources) & SETTLED
    gives_up = row.business_key in {BusinessKey.FREED, BusinessKey.MOVED}
    assert bool(settles) is gives_up
    assert bool(was_settled) is (row.business_key is BusinessKey.TAKEN)
    assert (row.sources == (Status.RUNNING,)) is (row.ends is not None)
    assert not row.fenced or row.ends is not None
    assert set(row.writes) <= JOB_FIELDS - {"id", "status", "version", "updated_at", "business_key"}
    assert {*row.stamps, *row.clears, *row.counters} == set(row.writes)
    assert len(row.stamps) + len(row.clears) + len(row.counters) == len(row.writes)
    if row.ends is not None and not settles:
        assert {"picked_by", "picked_at"} <= set(row.clears)


# -- refusals -------------------------------------------------------------------------------------


@given(jobs, triggers, given_values, milliseconds)
def test_every_cell_outside_the_table_is_refused(
    of: Job, trigger: Trigger, values: dict[str, Any], now: datetime
) -> None:
    """From a state that is no source of the row the answer is a reason, whatever else is true."""
    answer = refusal(of, change(trigger, of, **values), now)
    if of.status not in ROWS[trigger].sources:
        assert answer is not None
        assert str(trigger) in answer
    if answer is None:
        assert of.status in ROWS[trigger].sources


@given(jobs, triggers, st.integers(0, 2**40), milliseconds)
def test_a_foreign_claim_or_version_is_refused(of: Job, trigger: Trigger, number: int, now: datetime) -> None:
    """A change that carries another claim number or version is refused, fenced row or not."""
    if number != of.claim_seq:
        assert refusal(of, change(trigger, of, claim_seq=number), now) is not None
    if number != of.version:
        assert refusal(of, change(trigger, of, version=number), now) is not None
    if ROWS[trigger].fenced:
        assert refusal(of, change(trigger, of, claim_seq=None), now) is not None


@pytest.mark.parametrize(
    "trigger", [row.trigger for row in TABLE if row.condition is not Condition.OWNER_DEAD]
)
def test_an_allowed_change_is_not_refused(trigger: Trigger) -> None:
    """From each source, with its condition met, nothing is refused."""
    row = ROWS[trigger]
    met: dict[Condition, dict[str, Any]] = {
        Condition.BLOCKED: {"scheduled_time": UNSCHEDULED},
        Condition.BATCH_PARENT: {"type": JobType.BATCH},
    }
    for status in row.sources:
        of = job(status, **met.get(row.condition, {}))
        assert refusal(of, change(trigger, of, version=of.version), NOW) is None


@pytest.mark.parametrize(
    ("trigger", "fields"),
    [
        (Trigger.CLAIM, {"scheduled_time": NOW + MS}),
        (Trigger.CLAIM, {"type": JobType.BATCH}),
        (Trigger.PAUSE, {"type": JobType.BATCH}),
        (Trigger.UNBLOCK, {"scheduled_time": NOW}),
        (Trigger.UNBLOCK, {"scheduled_time": LATEST}),
        (Trigger.BATCH_SETTLE, {"type": JobType.SINGLE}),
    ],
)
def test_conditions(trigger: Trigger, fields: dict[str, Any]) -> None:
    """What must hold beyond the source state is asked for."""
    of = job(**fields)
    assert refusal(of, change(trigger, of), NOW) is not None


def test_due_is_inclusive() -> None:
    """A job is due at its due time, not a millisecond before."""
    of = job(scheduled_time=NOW)
    assert refusal(of, change(Trigger.CLAIM, of), NOW) is None
    assert refusal(of, change(Trigger.CLAIM, of), NOW - MS) == "not due"


# -- assignments ----------------------------------------------------------------------------------


@given(jobs, triggers, given_values, milliseconds)
def test_assign_writes_only_fields_of_its_row(
    of: Job, trigger: Trigger, values: dict[str, Any], now: datetime
) -> None:
    """Status, version and updated_at, and the fields of the row: a job can be rebuilt from them."""
    row = ROWS[trigger]
    written = assign(of, change(trigger, of, **values), now)
    assert set(written) == {"status", "version", "updated_at", *row.writes}
    assert written["version"] == of.version + 1
    assert written["updated_at"] == now
    target = written["status"]
    assert target in row.targets or (not row.targets and target is of.status)
    after_it = replace(of, **written)  # type: ignore[arg-type]
    for name, value in row.writes.items():
        if value is Value.NULL:
            assert getattr(after_it, name) is None
        elif value is Value.INCREMENT:
            assert getattr(after_it, name) == getattr(of, name) + 1


@given(jobs, given_values, milliseconds)
def test_timings_are_never_negative_or_broken(of: Job, values: dict[str, Any], now: datetime) -> None:
    """Whatever a node claims: start <= end <= now, duration = end - start, wait >= 0, whole milliseconds."""
    for trigger in (Trigger.SUCCEED, Trigger.FAIL, Trigger.CRASH_FAIL, Trigger.CANCEL_RUNNING):
        ended = change(trigger, of, **values)
        written = assign(of, ended, now)
        start, end, duration, wait = (
            written[name] for name in ("started_at", "ended_at", "duration", "queue_wait")
        )
        assert isinstance(start, datetime)
        assert isinstance(end, datetime)
        assert isinstance(duration, timedelta)
        assert isinstance(wait, timedelta)
        assert start <= end <= now
        assert end - start == duration >= timedelta()
        assert wait == max(start - of.scheduled_time, timedelta())
        assert start.microsecond % 1000 == end.microsecond % 1000 == 0
        told = execution(of, ended, now, job_id=of.id, node="n")
        assert told is not None
        assert (told.started_at, told.ended_at, told.duration) == (start, end, duration)


def test_the_timings_of_an_attempt() -> None:
    """End = now - age, start = end - duration, wait = start - due; cut to milliseconds."""
    of = job(Status.RUNNING, scheduled_time=NOW - timedelta(seconds=9))
    micro = timedelta(microseconds=999)
    given_ = {"duration": timedelta(seconds=2) + micro, "age": timedelta(seconds=1) + micro}
    written = assign(of, change(Trigger.SUCCEED, of, **given_), NOW)
    assert written["ended_at"] == NOW - timedelta(seconds=1)
    assert written["started_at"] == NOW - timedelta(seconds=3)
    assert (written["duration"], written["queue_wait"]) == (timedelta(seconds=2), timedelta(seconds=6))


def test_without_a_duration_it_is_since_the_claim() -> None:
    """A cancel or a crash does not know how long the body ran: the time since the claim stands for it."""
    of = job(Status.RUNNING, picked_at=NOW - timedelta(seconds=4))
    written = assign(of, change(Trigger.CANCEL_RUNNING, of), NOW)
    assert (written["duration"], written["started_at"]) == (timedelta(seconds=4), of.picked_at)


@pytest.mark.parametrize(("given_attempts", "stored"), [(None, 3), (0, 0), (4, 4)])
def test_a_failure_keeps_or_sets_its_attempts(given_attempts: int | None, stored: int) -> None:
    """None keeps the counter, 0 does not."""
    of = job(Status.RUNNING, attempts=3)
    assert assign(of, change(Trigger.FAIL, of, attempts=given_attempts), NOW)["attempts"] == stored


def test_a_row_with_two_targets_needs_one() -> None:
    """Without a target, or with one that the row has not, the change is a usage error."""
    of = job(type=JobType.BATCH)
    for target in (None, Status.CANCELED):
        with pytest.raises(UsageError):
            target_of(of, change(Trigger.BATCH_SETTLE, of, target=target))
    assert target_of(of, change(Trigger.BATCH_SETTLE, of, target=Status.FAILED)) is Status.FAILED


@given(jobs, triggers, given_values, milliseconds)
def test_history_is_written_where_a_claim_ends(
    of: Job, trigger: Trigger, values: dict[str, Any], now: datetime
) -> None:
    """A row is due exactly where the table says so; TIMED_OUT only in place of FAILED."""
    ended = change(trigger, of, **values)
    told = execution(of, ended, now, job_id=of.id, node="n")
    row = ROWS[trigger]
    assert (told is None) is (row.ends is None)
    if told is not None:
        late = ended.timed_out and row.ends is AttemptEnd.FAILED
        assert told.end is (AttemptEnd.TIMED_OUT if late else row.ends)
        assert (told.claim_seq, told.attempt, told.trigger) == (of.claim_seq, of.attempts + 1, trigger)
        assert (told.node, told.picked_at, told.error) == ("n", of.picked_at, ended.error)


# -- time -----------------------------------------------------------------------------------------


@given(milliseconds, st.timedeltas())
def test_after_errs_late_and_never_overflows(now: datetime, delay: timedelta) -> None:
    """Any delay gives a whole millisecond between now and LATEST, at most one millisecond late."""
    due = after(now, delay)
    assert now <= due <= LATEST
    assert due.microsecond % 1000 == 0
    if timedelta() < delay < CENTURY:
        assert timedelta() <= due - now - delay < MS
    if delay <= timedelta():
        assert due == now


@pytest.mark.parametrize("delay", [timedelta.max, LATEST - NOW + MS, timedelta(days=10**8)])
def test_delays_beyond_the_calendar_clamp(delay: timedelta) -> None:
    """What lies beyond year 9999 is clamped to a second before UNSCHEDULED."""
    assert after(NOW, delay) == LATEST == UNSCHEDULED - timedelta(seconds=1)


zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(timezones=zones))
def test_clamp_takes_any_aware_instant(instant: datetime) -> None:
    """An instant of any zone becomes UTC, whole milliseconds, not later than it was, within the calendar."""
    stored = clamp(instant)
    assert stored.utcoffset() == timedelta()
    assert stored.microsecond % 1000 == 0
    assert stored <= LATEST or stored == UNSCHEDULED
    if datetime.min.replace(tzinfo=UTC) <= instant <= LATEST:
        assert timedelta() <= instant - stored < MS


def test_unscheduled_stays() -> None:
    """The far future that blocks a step is kept; the second before it is the latest anyone can ask for."""
    assert clamp(UNSCHEDULED) == UNSCHEDULED
    assert clamp(UNSCHEDULED - MS) == clamp(UNSCHEDULED + MS) == LATEST
    assert clamp(datetime.max.replace(tzinfo=timezone(-timedelta(hours=9)))) == LATEST
    assert clamp(datetime.min.replace(tzinfo=timezone(timedelta(hours=9)))) == datetime.min.replace(
        tzinfo=UTC
    )


def test_a_job_knows_what_it_is() -> None:
    """is_batch_parent and is_settled follow type and status."""
    assert [job(type=kind).is_batch_parent for kind in JobType].count(True) == 1
    assert {status for status in Status if job(status).is_settled} == SETTLED
    assert isinstance(job().id, UUID)


def test_the_two_doors_cover_the_table() -> None:
    """Every row but claim and recover belongs to exactly one of the store's apply and settle."""
    applied = {Trigger.PAUSE, Trigger.RESUME, Trigger.UNBLOCK, Trigger.REQUEUE, Trigger.SIGNAL}
    settled = set(Trigger) - applied - {Trigger.CLAIM, Trigger.RECOVER}
    assert {row.trigger for row in TABLE if row.consequences or row.ends} == settled | {Trigger.RECOVER}


def test_settled_is_not_final() -> None:
    """FAILED is settled and can be requeued; the two other settled states have no way out."""
    sources = {status for row in TABLE for status in row.sources}
    assert SETTLED & sources == {Status.FAILED} == set(ROWS[Trigger.REQUEUE].sources)
