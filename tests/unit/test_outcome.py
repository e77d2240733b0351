"""The decision that turns the end of an attempt into a settlement: pure, fenced, and inside the table."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.domain.ids import new_id
from ratchet.domain.job import Claim, Job, JobType
from ratchet.domain.lifecycle import ROWS, Status, Trigger, assign, execution, refusal
from ratchet.domain.outcome import (
    Deferred,
    Discarded,
    Failed,
    Outcome,
    Released,
    Succeeded,
    decide,
    deferred,
    discarded,
    failed,
    failed_for_good,
    poisoned,
    released,
    succeeded,
    timed_out,
    will_retry,
)
from ratchet.domain.priority import Priority
from ratchet.domain.retry import PASS_THROUGH, Backoff, RetryAnswer
from ratchet.domain.settlement import RunCallback, Settlement

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ZERO = timedelta()


def running(**given_fields: Any) -> Job:
    base: dict[str, Any] = {
        "id": new_id(), "status": Status.RUNNING, "target": "m:f", "payload": "[]", "format": 1,
        "type": JobType.SINGLE, "executor": "threads", "priority": Priority.NORMAL, "scheduled_time": NOW,
        "created_at": NOW, "updated_at": NOW, "version": 3, "claim_seq": 2, "picked_by": "n", "picked_at": NOW,
        "max_retries": 3, "on_success": "m:ok", "on_failure": "m:no",
    }  # fmt: skip
    return Job(**base | given_fields)


def claim_of(job: Job) -> Claim:
    named = {field.name: getattr(job, field.name) for field in fields(Claim) if field.name != "job_id"}
    return Claim(job_id=job.id, **named)


spans = st.timedeltas(ZERO, timedelta(days=36_500))
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(succeeded, st.text(), spans),
    st.builds(failed, st.text(), spans, retry_after=st.none() | spans),
    st.builds(failed_for_good, st.text(), spans, reason=st.text(min_size=1)),
    st.builds(poisoned, st.text()),
    st.builds(timed_out, st.text(), spans),
    st.builds(deferred, st.text(), st.none() | st.timedeltas()),
    st.builds(released, st.text()),
    st.builds(discarded, st.text()),
)
jobs = st.builds(
    running,
    attempts=st.integers(0, 2**31),
    max_retries=st.integers(0, 2**31),
    claim_seq=st.integers(1, 2**40),
    version=st.integers(1, 2**40),
    on_success=st.none() | st.just("m:ok"),
    on_failure=st.none() | st.just("m:no"),
    backoff=st.sampled_from(
        [
            Backoff.none(),
            Backoff.fixed(SECOND),
            Backoff.exponential(SECOND, jitter=1),
            Backoff.fixed(timedelta.max),
        ]
    ),
)
answers = st.builds(RetryAnswer, st.booleans(), st.timedeltas(ZERO, timedelta.max))
draws = st.floats(0, 1, exclude_max=True)


@given(jobs, outcomes, spans, answers, draws)
def test_a_decision_never_leaves_the_table(
    job: Job, outcome: Outcome, age: timedelta, answer: RetryAnswer, draw: float
) -> None:
    """Whatever happened, the change is a fenced row that the running job allows, or nothing is written."""
    claim = claim_of(job)
    settlement = decide(claim, outcome, age=age, answer=answer, draw=draw)
    if settlement is None:
        assert isinstance(outcome, Discarded)
        return
    change = settlement.change
    row = ROWS[change.trigger]
    assert row.fenced
    assert (change.job_id, change.claim_seq) == (claim.job_id, claim.claim_seq)
    assert refusal(job, change, NOW) is None
    written = assign(job, change, NOW)
    assert written["status"] in row.targets
    assert execution(job, change, NOW, job_id=job.id, node="n") is not None
    assert not settlement.effects or row.consequences


@given(jobs, outcomes, spans, answers, draws)
def test_each_outcome_has_its_rows(
    job: Job, outcome: Outcome, age: timedelta, answer: RetryAnswer, draw: float
) -> None:
    """Success, deferral and release lead to their own row; only a failure has two."""
    settlement = decide(claim_of(job), outcome, age=age, answer=answer, draw=draw)
    rows: dict[type, set[Trigger]] = {
        Succeeded: {Trigger.SUCCEED},
        Failed: {Trigger.RETRY, Trigger.FAIL},
        Deferred: {Trigger.DEFER},
        Released: {Trigger.RELEASE},
        Discarded: set(),
    }
    chosen = set() if settlement is None else {settlement.change.trigger}
    assert chosen <= rows[type(outcome)]
    assert bool(chosen) is not isinstance(outcome, Discarded)


@given(jobs, st.builds(failed, st.text(), spans, retry_after=st.none() | spans), answers, draws)
def test_a_retry_is_within_the_budget(job: Job, outcome: Failed, answer: RetryAnswer, draw: float) -> None:
    """A failure is retried exactly while attempts + 1 <= max_retries and the policy allows it."""
    settlement = decide(claim_of(job), outcome, answer=answer, draw=draw)
    assert settlement is not None
    retried = settlement.change.trigger is Trigger.RETRY
    assert retried is (answer.retry and job.attempts + 1 <= job.max_retries)
    assert retried is will_retry(claim_of(job), outcome, answer)
    written = assign(job, settlement.change, NOW)
    assert written["attempts"] == job.attempts + 1
    if retried:
        delay = settlement.change.delay
        assert delay is not None
        assert delay >= outcome.retry_after
        assert delay >= (answer.delay or job.backoff.delay(job.attempts + 1))


def runs_until_failed(max_retries: int) -> int:
    job, runs = running(max_retries=max_retries), 0
    while True:
        runs += 1
        settlement = decide(claim_of(job), failed("e", SECOND))
        assert settlement is not None
        if settlement.change.trigger is Trigger.FAIL:
            return runs
        job = running(max_retries=max_retries, attempts=job.attempts + 1)


@pytest.mark.parametrize("max_retries", [0, 1, 3, 10])
def test_max_retries_allows_one_execution_more(max_retries: int) -> None:
    """max_retries 3 allows 4 executions, 0 allows 1."""
    assert runs_until_failed(max_retries) == max_retries + 1


def settle(outcome: Outcome, job: Job | None = None, **arguments: Any) -> Settlement:
    settlement = decide(claim_of(job or running()), outcome, **arguments)
    assert settlement is not None
    return settlement


def test_success_records_its_callback() -> None:
    """The result goes into the job and to on_success; a job without one records nothing."""
    settlement = settle(succeeded('"r"', SECOND), age=2 * SECOND)
    assert settlement.effects == (RunCallback("on_success", "m:ok", '"r"'),)
    change = settlement.change
    assert (change.result, change.duration, change.age) == ('"r"', SECOND, 2 * SECOND)
    assert settle(succeeded('"r"', SECOND), running(on_success=None)).effects == ()


def test_only_a_permanent_failure_calls_back() -> None:
    """A retry runs no callback; the failure that ends the job runs on_failure with the error text."""
    assert settle(failed("e", SECOND)).effects == ()
    last = settle(failed("e", SECOND), running(attempts=3))
    assert last.effects == (RunCallback("on_failure", "m:no", "e"),)
    assert settle(failed("e", SECOND), running(attempts=3, on_failure=None)).effects == ()


def test_a_permanent_error_is_not_charged() -> None:
    """It fails at once whatever the budget and the policy say, keeps the attempts, and calls back."""
    for answer in (PASS_THROUGH, RetryAnswer(delay=SECOND)):
        settlement = settle(
            failed_for_good("e", SECOND, reason="declined"), running(attempts=1), answer=answer
        )
        assert settlement.change.trigger is Trigger.FAIL
        assert assign(running(attempts=1), settlement.change, NOW)["attempts"] == 1
        assert settlement.effects == (RunCallback("on_failure", "m:no", "e"),)


def test_poison_fails_without_its_callback() -> None:
    """A payload that cannot be read fails the job at once, uncharged and without callback."""
    settlement = settle(poisoned("e"))
    assert settlement.change.trigger is Trigger.FAIL
    assert (settlement.change.attempts, settlement.effects) == (None, ())


def test_a_time_out_is_a_charged_failure() -> None:
    """It is retried like one, and the history says TIMED_OUT."""
    for job, trigger in ((running(), Trigger.RETRY), (running(attempts=3), Trigger.FAIL)):
        change = settle(timed_out("late", SECOND), job).change
        assert (change.trigger, change.timed_out) == (trigger, True)


def test_delays_of_a_retry() -> None:
    """The policy's delay replaces the back-off unless it is zero; RetryAfter is a lower bound of both."""
    job = running(backoff=Backoff.fixed(10 * SECOND, jitter=1))

    def delay(outcome: Outcome, **arguments: Any) -> timedelta | None:
        return settle(outcome, job, **arguments).change.delay

    assert delay(failed("e", ZERO)) == 10 * SECOND
    assert delay(failed("e", ZERO), draw=0.5) == 15 * SECOND
    assert delay(failed("e", ZERO), answer=RetryAnswer(delay=3 * SECOND), draw=0.5) == 3 * SECOND
    wish = failed("e", ZERO, retry_after=12 * SECOND)
    assert delay(wish) == delay(wish, answer=RetryAnswer(delay=SECOND)) == 12 * SECOND
    assert delay(failed("e", ZERO, retry_after=SECOND)) == 10 * SECOND


def test_a_policy_may_forbid() -> None:
    """A policy that says no ends the job although retries are left; the attempt is charged."""
    change = settle(failed("e", SECOND), answer=RetryAnswer(retry=False)).change
    assert (change.trigger, change.attempts) == (Trigger.FAIL, 1)


def test_refused_gates_charge_nothing() -> None:
    """Deferral and release change no counter; a deferral without a delay keeps the due time."""
    job = running()
    for outcome in (deferred("breaker open", SECOND), deferred("not deployed here"), released("stopping")):
        written = assign(job, settle(outcome, job).change, NOW + SECOND)
        assert not {"attempts", "crash_count", "last_error"} & set(written)
        expected = NOW + 2 * SECOND if outcome == deferred("breaker open", SECOND) else NOW
        assert written.get("scheduled_time", job.scheduled_time) == expected


def test_what_is_over_writes_nothing() -> None:
    """A discarded attempt has no settlement."""
    assert decide(claim_of(running()), discarded("canceled")) is None
