"""F33: the back-off that overflows after a thousand tries."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from ratchet import Backoff
from ratchet.defaults.memory import MemoryStore
from ratchet.domain.ids import new_id
from ratchet.domain.job import NewJob
from ratchet.domain.lifecycle import Trigger
from ratchet.domain.outcome import decide, failed
from ratchet.domain.retry import PASS_THROUGH
from ratchet.engine.polling import Observation, PollSettings, PollState, error_delay, next_delay
from ratchet.spi.store import ClaimRequest
from tests.field_cases.kit import SCALE

ATTEMPTS = (7, 63, 64, 1_023, 1_024, 1_025, 10_000, 2**31)
MINUTE = timedelta(seconds=60)
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_f33_delay_is_the_cap(attempt: int) -> None:
    """Base 1 s, factor 2, cap 60 s, jitter off: 60 s after attempt 7 and after attempt 2**31."""
    assert Backoff.exponential(SECOND, max_delay=MINUTE).delay(attempt) == MINUTE


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_f33_delay_is_computed_in_no_time(attempt: int) -> None:
    """The computation takes under 1 ms (asserted: 10 ms) at every attempt."""
    backoff = Backoff.exponential(SECOND, max_delay=MINUTE)
    best = float("inf")
    for _ in range(5):  # the best of five: the machine may be busy
        start = time.perf_counter()
        backoff.delay(attempt)
        best = min(best, time.perf_counter() - start)
    assert best < 0.001 * SCALE


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_f33_jitter_stays_in_its_window(attempt: int) -> None:
    """With jitter 0.25 the delay lies in [60 s, 75 s], whatever is drawn."""
    backoff = Backoff.exponential(SECOND, max_delay=MINUTE, jitter=0.25)
    draws = [0.0, 0.5, 1.0 - 2**-53, *(random.random() for _ in range(200))]
    delays = [backoff.delay(attempt, draw) for draw in draws]
    assert min(delays) == MINUTE
    assert max(delays) <= MINUTE * 1.25
    assert len(set(delays)) > 100


def test_f33_factor_one_and_a_half() -> None:
    """With factor 1.5 it is 60 s from attempt 13 on, and below the cap the true power."""
    backoff = Backoff.exponential(SECOND, factor=1.5, max_delay=MINUTE)
    assert {backoff.delay(attempt) for attempt in (13, 14, 21, 22, *ATTEMPTS[1:])} == {MINUTE}
    assert backoff.delay(3) == timedelta(seconds=2.25)
    assert backoff.delay(11) < MINUTE


def test_f33_factor_one() -> None:
    """With factor 1 it is 1 s at every attempt."""
    backoff = Backoff.exponential(SECOND, factor=1.0, max_delay=MINUTE)
    assert {backoff.delay(attempt) for attempt in (1, 2, *ATTEMPTS)} == {SECOND}


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_f33_the_settlement_of_a_late_attempt_carries_the_cap(attempt: int) -> None:
    """The decision about a job that has failed so often is a retry after 60 s, as for any other."""
    store = MemoryStore()
    backoff = Backoff.exponential(SECOND, max_delay=MINUTE)
    store.insert([NewJob(id=new_id(), target="a:b", payload="[]", max_retries=2**40, backoff=backoff)])
    (first,) = store.claim(ClaimRequest(incarnation="n", limits={"threads": 1})).claims
    claim = replace(first, attempts=attempt - 1)
    settlement = decide(claim, failed("it", SECOND), age=timedelta(), answer=PASS_THROUGH, draw=0.9)
    assert settlement is not None
    assert (settlement.change.trigger, settlement.change.delay) == (Trigger.RETRY, MINUTE)


def test_f33_extreme_curves_do_not_overflow() -> None:
    """The largest base, factor and jitter give a finite delay that a datetime library can hold."""
    for factor in (1e300, 2.0):
        backoff = Backoff.exponential(timedelta.max / 2, factor=factor, max_delay=timedelta.max, jitter=10.0)
        assert timedelta() < backoff.delay(2**31, 0.999) <= timedelta.max


def test_f33_idle_poll_loop_keeps_its_longest_delay(scaled: Callable[..., int]) -> None:
    """A loop that has polled empty 1,000,000 times still answers its longest delay (100,000 times at scale 0.1)."""
    settings, state, delay = PollSettings(), PollState(), 0.0
    for _ in range(scaled(1_000_000)):
        empty = Observation(claimed=0, asked=10, free_slots=10, elapsed=delay)
        state, delay = next_delay(state, empty, settings)
    assert delay == settings.deep_idle_delay
    assert error_delay(1_000_000) == error_delay(100) == 5.0
