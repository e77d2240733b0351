"""Retry policies: an answer for every failure, of the right type, from any thread."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance_tests.spi.at_once import from_threads
from conformance_tests.spi.parts import shows
from conformance_tests.spi.raising import HOSTILE, ORDINARY
from ratchet.spi.retry import RetryPolicy

ATTEMPTS = (1, 2, 3, 10, 100, 10_000, 2**31)


@shows("RP-01")
@pytest.mark.parametrize("kind", list(ORDINARY))
def test_whether(made: RetryPolicy, kind: str) -> None:
    """`should_retry` answers True or False for every error that a job may raise, at every attempt."""
    error = ORDINARY[kind]()
    for attempt in ATTEMPTS:
        assert isinstance(made.should_retry(attempt, error), bool)


@shows("RP-02")
@pytest.mark.parametrize("kind", list(HOSTILE))
def test_hostile_errors(made: RetryPolicy, kind: str) -> None:
    """It answers for exceptions, too, into which nobody can look."""
    assert isinstance(made.should_retry(1, HOSTILE[kind]()), bool)


@shows("RP-03")
def test_how_long(made: RetryPolicy) -> None:
    """`delay` answers a timedelta that is not negative, at every attempt, and never overflows."""
    for attempt in (*range(1, 200), *ATTEMPTS):
        delay = made.delay(attempt)
        assert isinstance(delay, timedelta)
        assert delay >= timedelta()


@shows("RP-04")
def test_the_error_is_left_alone(made: RetryPolicy) -> None:
    """Asking changes nothing about the error, which others look at afterwards."""
    error = ORDINARY["chained"]()
    before = (error.args, error.__cause__, error.__context__, error.__traceback__, dict(vars(error)))
    made.should_retry(1, error)
    made.delay(1)
    after = (error.args, error.__cause__, error.__context__, error.__traceback__, dict(vars(error)))
    assert after == before


@shows("RP-05")
def test_threads(made: RetryPolicy) -> None:
    """It may be asked from several threads at once."""
    error = ValueError("no")
    answers = from_threads(lambda: (made.should_retry(1, error), made.delay(1)))
    assert len(answers) == 400
    assert all(isinstance(retry, bool) and isinstance(delay, timedelta) for retry, delay in answers)
