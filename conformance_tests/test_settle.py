"""Ending a claim: outcomes, timings, history, and the fence (facts TERM, RETRY, DUAL; F19, F58)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from conformance_tests.contract import contract
from conformance_tests.driver import MINUTE, SECOND, START, Driver
from conformance_tests.under_test import Time
from ratchet.domain.ids import new_id
from ratchet.domain.job import Claim
from ratchet.domain.lifecycle import LATEST, ROWS, AttemptEnd, Status, Trigger
from ratchet.domain.settlement import Change, RunCallback, Settlement
from ratchet.spi.store import JobStore, RecoverRequest, Refused, SettleAnswer, Settled

ENDS = [trigger for trigger, row in ROWS.items() if row.fenced and trigger is not Trigger.RECOVER]
MS = timedelta(milliseconds=1)


def end(store: JobStore, claim: Claim, trigger: Trigger, claim_seq: int | None = None) -> SettleAnswer:
    """End the claim by `trigger`, with a callback, under its own or another claim number."""
    change = Change(
        trigger,
        claim.job_id,
        claim_seq=claim.claim_seq if claim_seq is None else claim_seq,
        attempts=5 if trigger is Trigger.FAIL else None,
        error="late",
        result='"late"',
        delay=MINUTE,
        duration=SECOND,
    )
    return store.settle(Settlement(change, (RunCallback("on_success", "m:late", "late"),)))


# -- outcomes -------------------------------------------------------------------------------------


@contract("SETTLE-09", needs=("clock",))
def test_term_10_11_succeed(driver: Driver, clock: Time) -> None:
    """Success stores result and timings: end = now - age, start = end - duration, wait = start - due."""
    claim = driver.claim_one(driver.submit())
    clock.advance(10 * SECOND)
    answer = driver.end(
        claim, Trigger.SUCCEED, result='{"a": 1}', duration=2 * SECOND, age=SECOND, error=None
    )
    job = driver.job(claim.job_id)
    assert (job.status, job.result) == (Status.SUCCEEDED, '{"a": 1}')
    assert (job.ended_at, job.started_at) == (START + 9 * SECOND, START + 7 * SECOND)
    assert (job.duration, job.queue_wait) == (2 * SECOND, 7 * SECOND)
    assert (job.picked_by, job.picked_at) == ("node-1", START)
    assert answer == Settled(job.id, Status.SUCCEEDED, 2, clock.now(), START, 7 * SECOND)


@contract("SETTLE-10")
def test_term_11_a_success_without_a_result(driver: Driver) -> None:
    """No result text stays no result."""
    claim = driver.claim_one(driver.submit())
    driver.end(claim, Trigger.SUCCEED)
    assert driver.job(claim.job_id).result is None


@contract("SETTLE-11")
@pytest.mark.parametrize(("given", "stored"), [(None, 2), (3, 3), (0, 0)])
def test_term_02_12_13_fail(driver: Driver, given: int | None, stored: int) -> None:
    """A failure stores the given attempts, or keeps what it has; start, end and duration are set."""
    job_id = driver.submit()
    for _ in range(2):
        driver.end(driver.claim_one(job_id), Trigger.RETRY, delay=timedelta())
    driver.end(driver.claim_one(job_id), Trigger.FAIL, attempts=given, error="KeyError: 1")
    job = driver.job(job_id)
    assert (job.status, job.attempts, job.last_error) == (Status.FAILED, stored, "KeyError: 1")
    assert job.started_at is not None
    assert job.ended_at is not None
    assert job.ended_at - job.started_at == job.duration == SECOND


@contract("SETTLE-12", needs=("clock",))
def test_term_14_15_cancel_running(driver: Driver, clock: Time) -> None:
    """Cancelling a running job stamps the end and the time since its claim."""
    job = driver.drive(Status.RUNNING)
    clock.advance(3 * SECOND)
    driver.settle(Trigger.CANCEL_RUNNING, job.id)
    canceled = driver.job(job.id)
    assert canceled.status is Status.CANCELED
    assert (canceled.started_at, canceled.ended_at) == (job.picked_at, clock.now())
    assert canceled.ended_at is not None
    assert canceled.duration == canceled.ended_at - (job.picked_at or canceled.ended_at)


@contract("SETTLE-13", needs=("clock",))
def test_retry_03_a_retry_is_charged_and_due_later(driver: Driver, clock: Time) -> None:
    """Retry counts the attempt, keeps the error, clears the claim and is due at store time + delay."""
    claim = driver.claim_one(driver.submit())
    clock.advance(SECOND)
    answer = driver.end(claim, Trigger.RETRY, delay=300 * SECOND, error="KeyError: 1")
    job = driver.job(claim.job_id)
    assert (job.status, job.attempts, job.last_error) == (Status.PENDING, 1, "KeyError: 1")
    assert (job.picked_by, job.picked_at, job.crash_count) == (None, None, 0)
    assert job.scheduled_time == answer.scheduled_time == clock.now() + 300 * SECOND
    assert (answer.status, answer.queue_wait) == (Status.PENDING, timedelta())
    assert driver.claim().claims == []


@contract("SETTLE-14", needs=("clock",))
@pytest.mark.parametrize(
    ("delay", "due"),
    [
        (timedelta(), START + MINUTE),
        (-SECOND, START + MINUTE),
        (timedelta(microseconds=1), START + MINUTE + MS),
        (timedelta.max, LATEST),
    ],
)
@pytest.mark.parametrize("trigger", [Trigger.RETRY, Trigger.DEFER])
def test_delays_are_from_store_time(
    driver: Driver, clock: Time, trigger: Trigger, delay: timedelta, due: object
) -> None:
    """A delay counts from store time, rounded up to a millisecond; a negative one is now; the longest clamp."""
    claim = driver.claim_one(driver.submit())
    clock.advance(MINUTE)
    driver.end(claim, trigger, delay=delay)
    assert driver.job(claim.job_id).scheduled_time == due


@contract("SETTLE-15", needs=("clock",))
@pytest.mark.parametrize("trigger", [Trigger.DEFER, Trigger.RELEASE])
def test_defer_and_release_charge_nothing(driver: Driver, clock: Time, trigger: Trigger) -> None:
    """Without a delay the due time is kept, the job is claimable at once, and nothing is counted."""
    job_id = driver.submit()
    clock.advance(MINUTE)
    driver.end(driver.claim_one(job_id), trigger, error=None)
    job = driver.job(job_id)
    assert (job.status, job.attempts, job.crash_count, job.last_error) == (Status.PENDING, 0, 0, None)
    assert job.scheduled_time == START
    assert driver.claim_one(job_id, "node-2").claim_seq == 2


@contract("SETTLE-16", needs=("clock",))
def test_durations_are_never_negative(driver: Driver, clock: Time) -> None:
    """After the clock jumps back an hour under a running job its timings are at least 0 (F58)."""
    claim = driver.claim_one(driver.submit())
    clock.advance(-timedelta(hours=1))
    driver.end(claim, Trigger.SUCCEED, duration=None, result="1")
    job = driver.job(claim.job_id)
    assert (job.duration, job.queue_wait) == (timedelta(), timedelta())
    (execution,) = driver.store.history(job.id)
    assert execution.duration == timedelta()


# -- history --------------------------------------------------------------------------------------


@contract("HISTORY-01", needs=("clock",))
def test_aud_history_is_one_row_for_each_ended_claim(driver: Driver, clock: Time) -> None:
    """Every way in which a claim can end leaves one row, in order of claims, and none changes later."""
    job_id = driver.submit(max_retries=9)
    steps: list[tuple[Trigger, AttemptEnd, dict[str, object]]] = [
        (Trigger.RETRY, AttemptEnd.FAILED, {"delay": timedelta()}),
        (Trigger.RETRY, AttemptEnd.TIMED_OUT, {"delay": timedelta(), "timed_out": True}),
        (Trigger.DEFER, AttemptEnd.DEFERRED, {"error": None}),
        (Trigger.RELEASE, AttemptEnd.RELEASED, {"error": None}),
        (Trigger.RECOVER, AttemptEnd.CRASHED, {}),
        (Trigger.FAIL, AttemptEnd.FAILED, {"attempts": 3}),
        (Trigger.CRASH_FAIL, AttemptEnd.CRASHED, {"error": "the node died"}),
        (Trigger.FAIL, AttemptEnd.TIMED_OUT, {"attempts": 1, "timed_out": True}),
        (Trigger.SUCCEED, AttemptEnd.SUCCEEDED, {"error": None, "result": "1"}),
    ]
    seen: list[object] = []
    attempts = [1, 2, 3, 3, 3, 3, 1, 1, 1]
    for number, (trigger, how, fields) in enumerate(steps, 1):
        clock.advance(SECOND)
        claim = driver.claim_one(job_id, f"node-{number}")
        clock.advance(SECOND)
        if trigger is Trigger.RECOVER:
            gone = frozenset({f"node-{number}"})
            driver.store.recover(RecoverRequest(grace=MINUTE, crash_budget=3, known_gone=gone))
        else:
            driver.end(claim, trigger, **fields)
        history = list(driver.store.history(job_id))
        assert list(history[:-1]) == seen
        last = history[-1]
        assert (last.job_id, last.claim_seq, last.attempt) == (job_id, number, attempts[number - 1])
        assert (last.end, last.trigger, last.node) == (how, trigger, f"node-{number}")
        assert (last.picked_at, last.ended_at) == (claim.picked_at, clock.now())
        seen = list(history)
        if driver.status(job_id) is Status.FAILED:
            driver.apply(Trigger.REQUEUE, job_id)
    driver.settle(Trigger.CANCEL_RUNNING, driver.claim_one(driver.submit()).job_id)
    assert list(driver.store.history(job_id)) == seen


@contract("HISTORY-02")
def test_aud_06_histories_are_per_job(store: JobStore, driver: Driver) -> None:
    """A job's history has no other job's rows; a running claim, and an unknown job, has none yet."""
    first, second = driver.drive(Status.FAILED), driver.drive(Status.RUNNING)
    assert [entry.job_id for entry in store.history(first.id)] == [first.id]
    assert list(store.history(second.id)) == []
    assert list(store.history(new_id())) == []


# -- the fence ------------------------------------------------------------------------------------


def fenced_off(driver: Driver, claim: Claim, trigger: Trigger, claim_seq: int | None = None) -> None:
    """`trigger` for this claim is refused with the current row and changes nothing."""
    store, job = driver.store, driver.job(claim.job_id)
    history, counts = list(store.history(job.id)), store.counts()
    answer = end(store, claim, trigger, claim_seq)
    assert isinstance(answer, Refused)
    assert answer.current == job == driver.job(job.id)
    assert (list(store.history(job.id)), store.counts()) == (history, counts)
    assert list(store.take_callbacks("sweeper", grace=timedelta(), limit=9)) == []


Overtaken = Callable[[Driver, Claim], object]


def _recovered(driver: Driver, claim: Claim) -> None:
    gone = RecoverRequest(grace=MINUTE, crash_budget=3, known_gone=frozenset({"node-1"}))
    assert len(driver.store.recover(gone).recovered) == 1


def _taken_by(incarnation: str) -> Overtaken:
    def take(driver: Driver, claim: Claim) -> None:
        _recovered(driver, claim)
        driver.claim_one(claim.job_id, incarnation)

    return take


def _settled_by_the_next(driver: Driver, claim: Claim) -> None:
    _recovered(driver, claim)
    driver.end(driver.claim_one(claim.job_id, "node-2"), Trigger.SUCCEED, result='"new"')


OVERTAKEN: dict[str, Overtaken] = {
    "recovered": _recovered,
    "taken by another node": _taken_by("node-2"),
    "taken again by the same node": _taken_by("node-1"),
    "settled by the next": _settled_by_the_next,
    "released": lambda driver, claim: driver.end(claim, Trigger.RELEASE, error=None),
    "retried": lambda driver, claim: driver.end(claim, Trigger.RETRY, delay=timedelta()),
    "canceled": lambda driver, claim: driver.settle(Trigger.CANCEL_RUNNING, claim.job_id),
    "succeeded": lambda driver, claim: driver.end(claim, Trigger.SUCCEED, result="1"),
    "failed": lambda driver, claim: driver.end(claim, Trigger.FAIL, attempts=1),
}


@contract("FENCE-01")
@pytest.mark.parametrize("trigger", ENDS)
@pytest.mark.parametrize("overtaken", OVERTAKEN)
def test_term_03_09_a_stale_claim_writes_nothing(driver: Driver, overtaken: str, trigger: Trigger) -> None:
    """Whatever has become of the job since, every write under the old claim is refused (F19)."""
    claim = driver.claim_one(driver.submit(business_key="k"))
    OVERTAKEN[overtaken](driver, claim)
    fenced_off(driver, claim, trigger)


@contract("FENCE-06")
@pytest.mark.parametrize("overtaken", OVERTAKEN)
def test_a_stale_claim_writes_nothing_in_a_list(store: JobStore, driver: Driver, overtaken: str) -> None:
    """Every write under the old claim is refused in a list, too, between others that are applied."""
    claim = driver.claim_one(driver.submit(business_key="k"))
    OVERTAKEN[overtaken](driver, claim)
    job, history = driver.job(claim.job_id), list(store.history(claim.job_id))
    beside = driver.submit(start=Status.WAITING)
    stale = [
        Settlement(
            Change(trigger, claim.job_id, claim.claim_seq, error="late", result='"late"', delay=MINUTE),
            (RunCallback("on_success", "m:late", "late"),),
        )
        for trigger in ENDS
    ]
    answers = store.settle_many([*stale, Settlement(Change(Trigger.CANCEL, beside)), *stale])
    assert [isinstance(answer, Settled) for answer in answers] == [
        *[False] * len(stale), True, *[False] * len(stale),
    ]  # fmt: skip
    assert driver.status(beside) is Status.CANCELED
    assert (driver.job(claim.job_id), list(store.history(claim.job_id))) == (job, history)
    assert list(store.take_callbacks("sweeper", grace=timedelta(), limit=9)) == []


@contract("FENCE-02")
@pytest.mark.parametrize("trigger", ENDS)
@pytest.mark.parametrize("claim_seq", [0, 1, 3, 2**31])
def test_retry_13_another_claim_number_writes_nothing(
    driver: Driver, trigger: Trigger, claim_seq: int
) -> None:
    """At claim 2 a write under any other number is refused."""
    job_id = driver.submit()
    driver.end(driver.claim_one(job_id), Trigger.RELEASE, error=None)
    claim = driver.claim_one(job_id)
    fenced_off(driver, claim, trigger, claim_seq)


@contract("FENCE-03")
@pytest.mark.parametrize("trigger", ENDS)
def test_a_fenced_row_needs_its_claim(store: JobStore, driver: Driver, trigger: Trigger) -> None:
    """Without a claim number a fenced write is refused, never taken as unfenced."""
    job = driver.drive(Status.RUNNING)
    answer = store.settle(Settlement(Change(trigger, job.id, error="e", result="1")))
    assert isinstance(answer, Refused)
    assert driver.job(job.id) == job


@contract("FENCE-04")
@pytest.mark.parametrize("trigger", ENDS)
def test_an_unknown_job_is_refused(store: JobStore, trigger: Trigger) -> None:
    """A write to a job that is not there (any more) is refused without a row."""
    answer = store.settle(Settlement(Change(trigger, new_id(), claim_seq=1, error="e", result="1")))
    assert isinstance(answer, Refused)
    assert answer.current is None


@contract("FENCE-05")
def test_the_current_claim_still_writes_after_refusals(driver: Driver) -> None:
    """Refused writes of an old claim do not harm the one that holds the job now."""
    claim = driver.claim_one(driver.submit())
    _recovered(driver, claim)
    current = driver.claim_one(claim.job_id)
    for trigger in ENDS:
        fenced_off(driver, claim, trigger)
    driver.end(current, Trigger.SUCCEED, result='"mine"')
    assert driver.job(claim.job_id).result == '"mine"'


@contract("SETTLE-17")
def test_cancel_running_may_insist_on_a_claim(store: JobStore, driver: Driver) -> None:
    """An unfenced row that carries a claim number is held to it."""
    job = driver.drive(Status.RUNNING)
    wrong = store.settle(Settlement(Change(Trigger.CANCEL_RUNNING, job.id, claim_seq=2)))
    assert isinstance(wrong, Refused)
    driver.settle(Trigger.CANCEL_RUNNING, job.id, claim_seq=1)


@contract("SETTLE-18")
def test_dual_01_02_04_settling_moves_everything_at_once(store: JobStore, driver: Driver) -> None:
    """With the settlement the key is free and the counts have moved by one."""
    for trigger in (Trigger.SUCCEED, Trigger.FAIL, Trigger.CRASH_FAIL, Trigger.CANCEL_RUNNING):
        job = driver.drive(Status.RUNNING, business_key="k")
        before = store.counts()
        driver.settle(trigger, job.id, claim_seq=1, error="e", result="1")
        after = driver.job(job.id).status
        assert store.counts() == {**before, Status.RUNNING: 0, after: before[after] + 1}
        assert store.find_by_key(business="k") is None
        assert not driver.claim(limit=50).claims
