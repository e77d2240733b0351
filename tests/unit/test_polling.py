"""The pace rules of polling, without a clock (specification, section 4)."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.engine.polling import (
    Observation,
    PollMode,
    PollSettings,
    PollState,
    error_delay,
    next_delay,
    woken_up,
)
from ratchet.errors import ConfigurationError

SETTINGS = PollSettings()
EMPTY = Observation(claimed=0, asked=8, free_slots=8)
FULL = Observation(claimed=8, asked=8, free_slots=0, utilisation=1.0)
SOME = Observation(claimed=2, asked=8, free_slots=6, utilisation=0.25)


def run(observations: Sequence[Observation], state: PollState | None = None) -> tuple[PollState, list[float]]:
    """Feed the observations one after another, each `elapsed` by the sleep before it."""
    state = PollState() if state is None else state
    delays: list[float] = []
    for seen in observations:
        state, delay = next_delay(state, replace(seen, elapsed=delays[-1] if delays else 0.0), SETTINGS)
        delays.append(delay)
    return state, delays


observations = st.builds(
    lambda asked, claimed, **rest: Observation(asked=asked, claimed=min(asked, claimed), **rest),
    asked=st.integers(0, 60),
    claimed=st.integers(0, 60),
    free_slots=st.integers(0, 100),
    utilisation=st.floats(0, 1),
    woken=st.booleans(),
    more_due=st.booleans(),
    elapsed=st.floats(0, 1e6),
    until_next_due=st.none() | st.floats(-1e6, 1e6),
)


def test_wake_up_polls_at_once_then_bursts_until_three_empty_polls() -> None:
    """A wake-up in deep idle answers 0, then 500 ms twice, and the third empty poll ends the burst at 2 s."""
    asleep = PollState(mode=PollMode.DEEP_IDLE, idle=1_000.0, empty_polls=50)
    state, delays = run([replace(EMPTY, woken=True), EMPTY, EMPTY, EMPTY], asleep)
    assert delays == [0.0, 0.5, 0.5, 2.0]
    assert state.mode is PollMode.NORMAL


def test_work_found_in_a_burst_starts_its_count_again() -> None:
    """Three empty polls end a burst only when they follow one another."""
    state, delays = run([EMPTY, EMPTY, SOME, EMPTY, EMPTY], woken_up(PollState()))
    assert delays == [0.5] * 5
    assert state.mode is PollMode.BURST


def test_idle_polls_back_off_to_the_normal_maximum() -> None:
    """Empty polls double the delay from 2 s to 30 s and no further."""
    busy_half = replace(EMPTY, utilisation=0.5)
    assert run([busy_half] * 7)[1] == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_deep_idle_begins_after_five_minutes_without_work() -> None:
    """The poll that completes 300 s without a job is followed by 60 s, one with a job by a normal delay again."""
    state, delays = run([EMPTY] * 30)
    first = delays.index(60.0)
    assert sum(delays[: first - 1]) < 300.0 <= sum(delays[:first])
    assert set(delays[first:]) == {60.0}
    assert state.mode is PollMode.DEEP_IDLE
    state, delays = run([SOME, EMPTY], state)
    assert state.mode is PollMode.NORMAL
    assert max(delays) <= 8.0


def test_busy_slots_are_not_idleness() -> None:
    """A node whose slots are all taken for hours does not fall into deep idle."""
    no_claim = Observation(claimed=0, asked=0, free_slots=0, utilisation=1.0)
    state, _ = run([replace(EMPTY, elapsed=0)] + [no_claim] * 1_000 + [EMPTY])
    assert state.mode is PollMode.NORMAL


def test_a_million_empty_polls_do_not_overflow() -> None:
    """After 1,000,000 empty polls the delay is still the maximum, also when deep idle follows (F33)."""
    drowsy = replace(EMPTY, elapsed=0.0)  # time never reaches deep idle
    state, delay = PollState(), 0.0
    for _ in range(1_000_000):
        state, delay = next_delay(state, drowsy, SETTINGS)
    assert delay == 30.0
    assert next_delay(state, replace(EMPTY, elapsed=300.0), SETTINGS)[1] == 60.0


def test_steepest_backoff_does_not_overflow() -> None:
    """The largest allowed growth factor still answers the maximum after many empty polls."""
    steep = PollSettings(backoff_factor=100.0)
    state = PollState(empty_polls=10_000)
    assert next_delay(state, EMPTY, steep)[1] == 30.0


def test_three_full_batches_divide_the_delay_by_four() -> None:
    """With no slot free the third full batch in a row shortens 3 s to 0.75 s; a smaller batch ends that."""
    slow = replace(SOME, utilisation=1.0, free_slots=0)
    _, delays = run([FULL, FULL, FULL, FULL, slow])
    assert delays[:4] == [3.0, 3.0, 0.75, 0.75]
    assert delays[4] > 2.0


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(replace(FULL, free_slots=1), id="full batch"),
        pytest.param(replace(SOME, more_due=True), id="the store says more"),
    ],
)
def test_known_work_with_free_slots_is_polled_at_once(seen: Observation) -> None:
    """A full batch, or a store that says more is due, is followed by no delay while a slot is free."""
    assert run([seen])[1] == [0.0]
    assert run([replace(seen, free_slots=0)])[1] != [0.0]


def test_a_store_that_promises_and_gives_nothing_does_not_spin() -> None:
    """'More is due' with an empty claim is tried at the burst's pace, never at once."""
    assert run([replace(EMPTY, more_due=True)] * 50)[1] == [0.5] * 50


def test_high_utilisation_slows_and_low_speeds_up() -> None:
    """The same backed-off poll waits longer the busier the pool is."""
    state = PollState(empty_polls=2)
    delays = [
        next_delay(state, replace(EMPTY, utilisation=u), SETTINGS)[1] for u in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    assert delays == [4.0, 6.0, 8.0, 10.0, 12.0]


def test_recent_work_restrains_the_back_off() -> None:
    """Four empty polls after nine full ones wait shorter than four empty polls after none."""
    worked, idle = PollState(fills=(1.0,) * 9), PollState(fills=(0.0,) * 9)
    assert run([EMPTY] * 4, worked)[1][-1] < run([EMPTY] * 4, idle)[1][-1]


def test_window_forgets_after_ten_polls() -> None:
    """The rolling window never holds more than its ten newest polls."""
    state, _ = run([FULL] * 3 + [EMPTY] * 10)
    assert state.fills == (0.0,) * 10


def test_sleep_ends_with_the_next_scheduled_time() -> None:
    """Neither deep idle nor a back-off sleeps past a known scheduled_time; one far away changes nothing."""
    asleep = PollState(mode=PollMode.DEEP_IDLE, idle=1_000.0, empty_polls=50)
    assert run([replace(EMPTY, until_next_due=17.25)], asleep)[1] == [17.25]
    assert run([replace(EMPTY, until_next_due=1e9)], asleep)[1] == [60.0]


def test_a_due_job_that_does_not_come_is_asked_for_ever_more_slowly() -> None:
    """A due time in the past that brings nothing is retried within 4 ms at first and every 500 ms at last."""
    delays = run([replace(EMPTY, until_next_due=-3.0)] * 12)[1]
    assert delays[0] == 0.004
    assert delays == sorted(delays)
    assert delays[-1] == 0.5


def test_due_work_without_a_slot_is_remembered_as_backlog() -> None:
    """Work that became due while every slot was busy is a backlog, so a freed slot refills at once."""
    no_claim = Observation(claimed=0, asked=0, free_slots=0, utilisation=1.0, until_next_due=-0.5)
    state, _ = run([SOME, no_claim])
    assert state.backlog
    state, _ = run([EMPTY], state)
    assert not state.backlog


@given(st.lists(observations, max_size=40))
def test_every_delay_is_bounded(seen: list[Observation]) -> None:
    """Whatever is observed, a delay is at least 0 and at most the deep-idle delay, and the state stays small."""
    state = PollState()
    for one in seen:
        state, delay = next_delay(state, one, SETTINGS)
        assert 0.0 <= delay <= SETTINGS.longest == 60.0
        assert len(state.fills) <= 10
        assert all(0.0 <= fill <= 1.0 for fill in state.fills)


@given(st.lists(observations, max_size=20), observations)
def test_wake_up_always_polls_at_once_and_then_bursts(before: list[Observation], last: Observation) -> None:
    """From any state a wake-up answers 0 and then, with empty polls, two delays of 500 ms and a longer one."""
    state, _ = run(before)
    state, delay = next_delay(state, replace(last, woken=True), SETTINGS)
    assert (delay, state.mode) == (0.0, PollMode.BURST)
    _, delays = run([EMPTY] * 3, state)
    assert delays[:2] == [0.5, 0.5]
    assert delays[2] >= 2.0


@given(st.lists(observations, max_size=20), st.floats(0, 1), st.integers(2, 40))
def test_back_off_never_shrinks_while_idle(before: list[Observation], utilisation: float, polls: int) -> None:
    """At an unchanged load each empty poll is followed by a delay no shorter than the one before."""
    state, _ = run(before)
    _, delays = run([replace(EMPTY, utilisation=utilisation)] * polls, state)
    assert delays == sorted(delays)


@given(st.lists(observations, max_size=20), observations, st.floats(0, 1), st.floats(0, 1))
def test_a_busier_pool_is_never_polled_faster(
    before: list[Observation], last: Observation, one: float, other: float
) -> None:
    """From any state and for any observation the delay does not fall when utilisation rises."""
    state, _ = run(before)
    low, high = sorted((one, other))
    assert (
        next_delay(state, replace(last, utilisation=low), SETTINGS)[1]
        <= next_delay(state, replace(last, utilisation=high), SETTINGS)[1]
    )


@given(st.lists(observations, max_size=20), observations)
def test_no_sleep_lasts_beyond_the_next_due_time(before: list[Observation], last: Observation) -> None:
    """A sleep ends by the next known scheduled_time, or within the half second of patience if that has passed."""
    state, _ = run(before)
    _, delay = next_delay(state, last, SETTINGS)
    if last.until_next_due is not None:
        assert delay <= max(last.until_next_due, 0.5)


@given(st.lists(observations, max_size=30))
def test_zero_delay_always_made_progress_or_was_woken(seen: list[Observation]) -> None:
    """Only a wake-up or a poll that brought a job is followed by no delay at all: idleness cannot spin."""
    state = PollState()
    for one in seen:
        state, delay = next_delay(state, one, SETTINGS)
        if delay == 0.0:
            assert one.woken or one.claimed > 0


@given(st.integers(-3, 10**9), st.floats(0, 1))
def test_error_delay_is_bounded(failures: int, jitter: float) -> None:
    """After any number of store errors the wait lies between 0.1 s and 5 s, and is 0 without an error."""
    delay = error_delay(failures, jitter=jitter)
    assert delay == 0.0 if failures < 1 else 0.1 <= delay <= 5.0


def test_error_delay_doubles_to_its_cap_and_jitter_shortens_it() -> None:
    """0.1, 0.2, 0.4 ... 5 s; full jitter halves the wait so that nodes do not return together."""
    assert [error_delay(n) for n in (1, 2, 3, 4, 5, 6, 7, 8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert error_delay(7, jitter=1.0) == 2.5


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_delay": 0.0},
        {"burst_delay": -1.0},
        {"min_delay": 31.0},
        {"max_delay": float("inf")},
        {"deep_idle_after": float("nan")},
        {"window": 0},
        {"burst_empty_polls": 0},
        {"backoff_factor": 0.5},
        {"backoff_factor": 1e9},
        {"full_batch_divisor": 0.0},
    ],
)
def test_settings_that_make_no_pace_are_refused(wrong: dict[str, float]) -> None:
    """A number outside its range is a configuration error at construction, not an odd sleep later."""
    with pytest.raises(ConfigurationError, match="polling"):
        PollSettings(**wrong)  # type: ignore[arg-type]
