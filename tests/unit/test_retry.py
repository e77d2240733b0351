"""Back-off arithmetic and the question which errors are permanent (specification, section 7; F33, F35)."""

from __future__ import annotations

import random
import timeit
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratchet.domain.retry import (
    EXPONENT_CAP,
    MAX_DELAY,
    NO_BACKOFF,
    Backoff,
    BackoffKind,
    answers_request,
    causes,
    do_not_retry_reason,
    retry_after,
)
from ratchet.errors import CancellationRequested, DoNotRetry, RetryAfter, UsageError, do_not_retry

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HUGE = [7, 63, 64, 1_023, 1_024, 1_025, 10_000, 2**31]

delays = st.timedeltas(timedelta(), timedelta.max)
backoffs = st.builds(
    Backoff,
    kind=st.sampled_from(BackoffKind),
    base=delays,
    factor=st.floats(1.0, 1e308),
    max_delay=delays,
    jitter=st.floats(0.0, 10.0),
)


# -- arithmetic -----------------------------------------------------------------------------------


@pytest.mark.field_case("F33")
@pytest.mark.parametrize("attempt", HUGE)
def test_f33_the_cap_holds_at_every_attempt(attempt: int) -> None:
    """Base 1 s, factor 2, cap 60 s: 60 s at attempts from 7 to 2**31, in under a millisecond (F33)."""
    backoff = Backoff.exponential(SECOND, factor=2, max_delay=MINUTE)
    assert backoff.delay(attempt) == MINUTE
    assert min(timeit.repeat(lambda: backoff.delay(attempt), number=1, repeat=20)) < 0.01
    jittery = Backoff.exponential(SECOND, factor=2, max_delay=MINUTE, jitter=0.5)
    assert MINUTE <= jittery.delay(attempt, 0.999) <= 1.5 * MINUTE


@pytest.mark.field_case("F33")
@pytest.mark.parametrize("attempt", [12, 13, 14, *HUGE[1:]])
def test_f33_other_factors(attempt: int) -> None:
    """With factor 1.5 the cap of 60 s is reached from attempt 12 on; with factor 1 the delay is always 1 s."""
    assert Backoff.exponential(SECOND, factor=1.5, max_delay=MINUTE).delay(attempt) == MINUTE
    assert Backoff.exponential(SECOND, factor=1, max_delay=MINUTE).delay(attempt) == SECOND


def test_the_curve_before_the_cap() -> None:
    """Base * factor ** (attempt - 1), up to exponent 20 and 24 hours."""
    backoff = Backoff.exponential(2 * SECOND)
    assert [backoff.delay(n) // SECOND for n in (0, 1, 2, 3, 4, 10)] == [2, 2, 4, 8, 16, 1024]
    assert backoff.delay(30) == MAX_DELAY == timedelta(hours=24)
    slow = Backoff.exponential(timedelta(milliseconds=1))
    assert slow.delay(EXPONENT_CAP + 1) == slow.delay(EXPONENT_CAP + 2) == timedelta(milliseconds=2**20)


def test_fixed_and_none() -> None:
    """FIXED is the base at every attempt, also beyond 24 h; NONE is 0."""
    assert {Backoff.fixed(MINUTE).delay(n) for n in (1, 2, *HUGE)} == {MINUTE}
    assert Backoff.fixed(timedelta(days=3)).delay(9) == timedelta(days=3)
    assert {Backoff.none().delay(n, 0.9) for n in (1, 2, *HUGE)} == {timedelta()}
    assert Backoff.none() is NO_BACKOFF


@given(backoffs, st.integers(1, 2**31), st.floats(0, 1, exclude_max=True))
@example(Backoff(BackoffKind.EXPONENTIAL, timedelta.max, 1e308, timedelta.max, 10.0), 2**31, 0.999)
@example(Backoff(BackoffKind.FIXED, timedelta.max, 2.0, timedelta.max, 10.0), 1, 0.999)
def test_no_back_off_overflows(backoff: Backoff, attempt: int, draw: float) -> None:
    """Any back-off at any attempt gives a delay between 0 and its cap with its jitter."""
    delay = backoff.delay(attempt, draw)
    assert timedelta() <= delay
    most = backoff.max_delay.total_seconds() * (1 + backoff.jitter)
    assert delay.total_seconds() <= most * (1 + 1e-9) + 1e-6


@given(st.integers(1, 2**31), st.integers(1, 2**31))
def test_later_attempts_never_wait_less(first: int, second: int) -> None:
    """The curve does not fall."""
    backoff = Backoff.exponential(SECOND, factor=1.3)
    assert backoff.delay(min(first, second)) <= backoff.delay(max(first, second))


# -- jitter ---------------------------------------------------------------------------------------


@pytest.mark.field_case("F35")
@given(backoffs, st.integers(1, 2**31), st.floats(0, 1, exclude_max=True))
def test_f35_jitter_only_adds(backoff: Backoff, attempt: int, draw: float) -> None:
    """A drawn delay lies in [d, d * (1 + jitter)]; with draw 0 it is d (F35)."""
    plain = backoff.delay(attempt)
    drawn = backoff.delay(attempt, draw)
    # Beyond some centuries a float of seconds has no microseconds.
    slack = timedelta(microseconds=1) + plain * 1e-12
    assert plain - slack <= drawn
    assert drawn.total_seconds() <= plain.total_seconds() * (1 + backoff.jitter) + slack.total_seconds()


@pytest.mark.field_case("F35")
def test_f35_a_thousand_retries_spread() -> None:
    """1,000 delays of 60 s with jitter 0.2 lie in [60 s, 72 s], in no second more than a fifth of them (F35)."""
    backoff = Backoff.fixed(MINUTE, jitter=0.2)
    draw = random.Random(35).random
    drawn = [backoff.delay(1, draw()) for _ in range(1_000)]
    assert all(MINUTE <= delay <= 72 * SECOND for delay in drawn)
    assert len({delay // timedelta(milliseconds=1) for delay in drawn}) >= 500
    seconds = [delay // SECOND for delay in drawn]
    assert max(seconds.count(second) for second in set(seconds)) <= 200
    assert {Backoff.fixed(MINUTE).delay(1, draw()) for _ in range(100)} == {MINUTE}


# -- as values ------------------------------------------------------------------------------------


@given(backoffs)
@example(Backoff(BackoffKind.FIXED, timedelta.max, 1.0, timedelta.max, 10.0))
@example(Backoff.exponential(timedelta(microseconds=1), factor=1.1, jitter=0.1))
def test_text_form_is_exact(backoff: Backoff) -> None:
    """decode(encode(x)) is x, to the microsecond; NONE needs no text."""
    decoded = Backoff.decode(backoff.encode())
    assert decoded == (NO_BACKOFF if backoff.kind is BackoffKind.NONE else backoff)
    assert Backoff.decode(None) == Backoff.decode("") == NO_BACKOFF


@pytest.mark.parametrize(
    "fields",
    [
        {"base": -SECOND},
        {"max_delay": -SECOND},
        {"factor": 0.5},
        {"factor": float("inf")},
        {"factor": float("nan")},
        {"jitter": -0.1},
        {"jitter": 10.1},
        {"jitter": float("nan")},
    ],
)
def test_nonsense_is_refused(fields: dict[str, Any]) -> None:
    """Negative delays, shrinking or infinite factors and jitter outside 0 to 10 are usage errors."""
    with pytest.raises(UsageError):
        Backoff(**{"kind": BackoffKind.EXPONENTIAL, "base": SECOND, **fields})


# -- causes ---------------------------------------------------------------------------------------


@do_not_retry("the card was declined")
class Declined(Exception):
    pass


class DeclinedTwice(Declined):
    pass


def raised(
    error: BaseException, *, cause: BaseException | None = None, context: BaseException | None = None
) -> BaseException:
    error.__cause__ = cause
    if cause is None:
        error.__suppress_context__ = False
    error.__context__ = context
    return error


def reason_of(error: BaseException) -> str | None:
    return do_not_retry_reason(error, lambda cause: f"ratchet.errors.{type(cause).__name__}: {cause}")


def test_a_marked_class_is_permanent_by_exact_type() -> None:
    """The mark holds for that class alone, not for its subclasses."""
    assert reason_of(Declined()) == "the card was declined"
    assert reason_of(DeclinedTwice()) is None
    assert reason_of(ValueError()) is None


def test_do_not_retry_tells_its_message() -> None:
    """The ready-made exception gives its own message as the reason."""
    assert reason_of(DoNotRetry("no such account")) == "no such account"
    assert reason_of(DoNotRetry()) is not None


def test_a_mark_is_found_anywhere_in_the_chain() -> None:
    """Causes, unsuppressed contexts and members of groups count; a suppressed context does not."""
    declined = Declined()
    assert reason_of(raised(ValueError(), cause=raised(KeyError(), cause=declined)))
    assert reason_of(raised(ValueError(), context=declined))
    suppressed = raised(ValueError(), context=declined)
    suppressed.__suppress_context__ = True
    assert reason_of(suppressed) is None
    inner = BaseExceptionGroup("inner", [raised(KeyError(), cause=declined)])
    group = BaseExceptionGroup("some", [ValueError(), inner])
    assert reason_of(raised(TypeError(), cause=group))


def test_cycles_end() -> None:
    """A chain that bites its tail is walked once."""
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    first.__context__ = first
    assert len(list(causes(first))) == 2
    assert reason_of(first) is None
    assert not answers_request(first, object())


def test_a_mark_needs_a_reason() -> None:
    """An empty reason is a usage error when the class is made."""
    with pytest.raises(UsageError):
        do_not_retry("  ")


def test_retry_after_is_the_bodys_wish() -> None:
    """Only a RetryAfter that ends the attempt carries a delay, not one that was caught on the way."""
    assert retry_after(RetryAfter(MINUTE)) == MINUTE
    assert retry_after(raised(ValueError(), cause=RetryAfter(MINUTE))) is None


class Context:
    """As much of a job's context as a cancellation looks at."""

    def __init__(self, *, requested: bool) -> None:
        self.attempt_token = object()
        self.requested = requested

    def is_cancellation_requested(self) -> bool:
        return self.requested


def test_an_answer_belongs_to_its_attempt_and_comes_after_the_request() -> None:
    """CancellationRequested answers a request only if made after it, in the attempt that ends, or as a cause."""
    context = Context(requested=True)
    answer = CancellationRequested.for_context("stopping", context)
    assert answers_request(answer, context.attempt_token)
    assert answers_request(raised(ValueError(), cause=answer), context.attempt_token)
    assert not answers_request(raised(ValueError(), context=answer), context.attempt_token)
    assert not answers_request(answer, object())
    early = CancellationRequested.for_context("too early", Context(requested=False))
    assert not answers_request(early, context.attempt_token)
    assert not answers_request(CancellationRequested(), None)
