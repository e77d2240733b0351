"""How an attempt can end, and the decision that turns an end into a settlement. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias, assert_never

from ratchet.domain.job import Claim
from ratchet.domain.lifecycle import Trigger
from ratchet.domain.retry import PASS_THROUGH, RetryAnswer
from ratchet.domain.settlement import Change, Effect, RunCallback, Settlement
from ratchet.domain.value import ValueObject

_NONE: Final = timedelta()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Succeeded(ValueObject):
    """The body returned. `result` is codec text (or the marker of one that was too large)."""

    result: str
    duration: timedelta


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Failed(ValueObject):
    """The body raised, or could not be called.

    Attributes:
        error: sanitized text.
        duration: how long it ran.
        counted: True if the attempt is charged; False for a permanent failure.
        permanent: why a retry is out of the question; None if it is not.
        retry_after: lower bound of the delay, asked for by the body.
        callback: False where the payload is poison: `on_failure` is not run.
        timed_out: the attempt ended at its deadline.
    """

    error: str
    duration: timedelta
    counted: bool = True
    permanent: str | None = None
    retry_after: timedelta = _NONE
    callback: bool = True
    timed_out: bool = False


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Deferred(ValueObject):
    """The body was not run and nothing is charged; `delay` None keeps the due time."""

    reason: str
    delay: timedelta | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Released(ValueObject):
    """The claim is given back; nothing is charged; claimable at once."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Discarded(ValueObject):
    """The claim is over already (canceled, or lost): nothing is written."""

    reason: str


Outcome: TypeAlias = Succeeded | Failed | Deferred | Released | Discarded


# -- named constructors: the only way an outcome is made ------------------------------------------


def succeeded(result: str, duration: timedelta) -> Succeeded:
    """The body returned in time."""
    return Succeeded(result, duration)


def failed(error: str, duration: timedelta, *, retry_after: timedelta | None = None) -> Failed:
    """The body raised an ordinary error: charged, retried if a retry is left."""
    return Failed(error, duration, retry_after=retry_after or _NONE)


def failed_for_good(error: str, duration: timedelta, *, reason: str) -> Failed:
    """Marked `do_not_retry`, outside the policy, or with arguments that do not bind: not charged, not retried."""
    return Failed(error, duration, counted=False, permanent=reason)


def poisoned(error: str) -> Failed:
    """The stored payload cannot be read: fails at once, without its callback."""
    return Failed(error, _NONE, counted=False, permanent="the payload cannot be read", callback=False)


def timed_out(error: str, duration: timedelta) -> Failed:
    """The deadline has passed, whether or not the body has noticed."""
    return Failed(error, duration, timed_out=True)


def deferred(reason: str, delay: timedelta | None = None) -> Deferred:
    """Breaker open, no permit, or not deployed here yet."""
    return Deferred(reason, delay)


def released(reason: str) -> Released:
    """Shutdown, unstarted, unknown, or refused by the executor."""
    return Released(reason)


def discarded(reason: str) -> Discarded:
    """Canceled or claim lost: whatever the body returned."""
    return Discarded(reason)


# -- the decision ---------------------------------------------------------------------------------


def will_retry(claim: Claim, outcome: Failed, answer: RetryAnswer) -> bool:
    """True if this failure leads to another execution (section 7, steps 1 to 3)."""
    return outcome.permanent is None and answer.retry and claim.attempts + 1 <= claim.max_retries


def decide(
    claim: Claim,
    outcome: Outcome,
    *,
    age: timedelta = _NONE,
    answer: RetryAnswer = PASS_THROUGH,
    draw: float = 0.0,
) -> Settlement | None:
    """The settlement of an attempt that ended with `outcome`; None if nothing is to be written.

    Args:
        claim: what the worker holds.
        outcome: how it ended.
        age: how long ago that was.
        answer: what the `RetryPolicy` said (only asked for a failure).
        draw: a random number in [0, 1) for the jitter of the back-off.
    """
    match outcome:
        case Succeeded():
            effects: tuple[Effect, ...] = ()
            if claim.on_success is not None:
                effects = (RunCallback("on_success", claim.on_success, outcome.result),)
            change = Change(
                Trigger.SUCCEED,
                claim.job_id,
                claim.claim_seq,
                result=outcome.result,
                duration=outcome.duration,
                age=age,
            )
            return Settlement(change, effects)
        case Failed():
            return _decide_failure(claim, outcome, age, answer, draw)
        case Deferred():
            change = Change(
                Trigger.DEFER, claim.job_id, claim.claim_seq, delay=outcome.delay, duration=_NONE, age=age
            )
            return Settlement(change)
        case Released():
            return Settlement(Change(Trigger.RELEASE, claim.job_id, claim.claim_seq, age=age))
        case Discarded():
            return None
        case _:
            assert_never(outcome)


def _decide_failure(
    claim: Claim, outcome: Failed, age: timedelta, answer: RetryAnswer, draw: float
) -> Settlement:
    attempts = claim.attempts + 1
    if will_retry(claim, outcome, answer):
        delay = answer.delay if answer.delay > _NONE else claim.backoff.delay(attempts, draw)
        change = Change(
            Trigger.RETRY,
            claim.job_id,
            claim.claim_seq,
            error=outcome.error,
            delay=max(delay, outcome.retry_after),
            duration=outcome.duration,
            age=age,
            timed_out=outcome.timed_out,
        )
        return Settlement(change)
    effects: tuple[Effect, ...] = ()
    if outcome.callback and claim.on_failure is not None:
        effects = (RunCallback("on_failure", claim.on_failure, outcome.error),)
    change = Change(
        Trigger.FAIL,
        claim.job_id,
        claim.claim_seq,
        attempts=attempts if outcome.counted else None,
        error=outcome.error,
        duration=outcome.duration,
        age=age,
        timed_out=outcome.timed_out,
    )
    return Settlement(change, effects)
