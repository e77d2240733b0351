"""F35: everybody retries in the same second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest

from ratchet import Backoff, Job, JobOptions, JobRetrying, RetryAfter, Status
from tests.field_cases.exact import Recorder
from tests.field_cases.kit import START, FileClock, wait_until
from tests.field_cases.stage import Stage

JOBS = 1000
DELAY = timedelta(seconds=60)
WINDOW = (START + DELAY, START + timedelta(seconds=72))

Failed = Callable[..., list[Job]]


def down() -> None:
    """A body whose dependency is down."""
    raise ConnectionError("the dependency is down")


def told_to_wait(seconds: float) -> None:
    """A body that was told when to come back."""
    raise RetryAfter(timedelta(seconds=seconds))


@pytest.fixture
def failed(stage: Stage, file_clock: FileClock) -> Failed:
    """Runs jobs that all fail at 12:00:00Z (store time stands still) and answers them as they are then."""

    def run(count: int, jitter: float, *, wait: float | None = None) -> list[Job]:
        store = stage.open(clock=file_clock)
        node = stage.node(store)
        recorder = Recorder(node, JobRetrying)
        options = JobOptions(max_retries=3, backoff=Backoff.fixed(DELAY, jitter=jitter))
        if wait is None:
            node.enqueue_many(down, [() for _ in range(count)], options=options)
        else:
            node.enqueue_many(told_to_wait, [(wait,) for _ in range(count)], options=options)
        wait_until(lambda: recorder.count(JobRetrying) == count, 60, "all have failed once")
        jobs = list(node.query.iterate())
        assert {(job.status, job.attempts) for job in jobs} == {(Status.PENDING, 1)}
        assert len(jobs) == count
        return jobs

    return run


@pytest.mark.mongodb_needs("speed")
def test_f35_next_dates_lie_in_the_window(failed: Failed) -> None:
    """Delay 60 s, jitter 0.2, additive: all 1,000 next dates lie in 12:01:00-12:01:12Z, so none in the past."""
    times = [job.scheduled_time for job in failed(JOBS, 0.2)]
    assert min(times) >= WINDOW[0]
    assert max(times) <= WINDOW[1]


@pytest.mark.mongodb_needs("speed")
def test_f35_no_second_holds_more_than_a_fifth(failed: Failed) -> None:
    """No 1-second bucket holds more than 20 % of them, and there are at least 500 distinct milliseconds."""
    times = [job.scheduled_time for job in failed(JOBS, 0.2)]
    buckets = Counter(time.replace(microsecond=0) for time in times)
    assert max(buckets.values()) <= JOBS / 5, buckets
    assert len(set(times)) >= 500


@pytest.mark.parametrize(("wait", "least"), [(90.0, 90.0), (30.0, 60.0)])
def test_f35_retry_after_is_never_shortened(failed: Failed, wait: float, least: float) -> None:
    """What the body asked for is a lower bound, jitter or not; a shorter wish does not shorten the back-off."""
    times = [job.scheduled_time for job in failed(100, 0.2, wait=wait)]
    assert min(times) >= START + timedelta(seconds=least)
    assert max(times) <= START + timedelta(seconds=max(wait, 72.0) * 1.2)


@pytest.mark.mongodb_needs("speed")
def test_f35_without_jitter_all_at_once(failed: Failed) -> None:
    """With jitter 0 every one of them is due at exactly 12:01:00Z."""
    assert {job.scheduled_time for job in failed(JOBS, 0.0)} == {START + DELAY}
