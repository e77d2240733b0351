"""F56: low priority never runs. Ageing lifts what waits, once per interval, and no more.

Store time is the test's. A body lasts 30 s of it: it stands at a gate while the clock moves on. In real time
it takes milliseconds, so that claiming ahead, which looks at real durations, is off here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import ClassVar, Final

import pytest

from ratchet import Backoff, JobHandle, Priority, Scheduler, Status, current_job
from ratchet.domain.priority import effective_priority
from tests.conftest import not_yet
from tests.field_cases.kit import START, FileClock, wait_until
from tests.field_cases.stage import Stage

pytestmark = pytest.mark.field_case("F56")

BODY: Final = timedelta(seconds=30)
MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)


class Slot:
    """The one slot: which job has begun, and its gate."""

    begun: ClassVar[SimpleQueue[str]] = SimpleQueue()
    gate: ClassVar[threading.Semaphore] = threading.Semaphore(0)


def body(name: str) -> None:
    """30 s of work."""
    Slot.begun.put(name)
    assert Slot.gate.acquire(timeout=30)


def one_slot(stage: Stage, clock: FileClock, boost: timedelta) -> Scheduler:
    """A node with one slot, not started, and a fresh gate, which is closed."""
    Slot.begun, Slot.gate = SimpleQueue(), threading.Semaphore(0)
    node = stage.node(stage.open(clock=clock), start=False, threads=1, async_=0, ahead=0.0)
    execution = replace(node.settings.execution, boost_interval=boost)
    node.settings = replace(node.settings, execution=execution)
    return node


def order(node: Scheduler, count: int) -> list[str]:
    """Start it with the gate open: in which order the next bodies begin."""
    Slot.gate.release(99)
    node.start()
    return [Slot.begun.get(timeout=30) for _ in range(count)]


class Story:
    """One node with one slot, a LOWEST job, and a feeder that keeps exactly two HIGH jobs waiting."""

    def __init__(self, stage: Stage, clock: FileClock, boost: timedelta) -> None:
        self.clock = clock
        self.client = stage.node(stage.open(clock=clock), start=False)
        self.node = one_slot(stage, clock, boost)
        self.low = self.client.enqueue(body, "L").with_priority(Priority.LOWEST).submit()
        self.begun: list[tuple[timedelta, str]] = []
        self.high: list[JobHandle[None]] = []
        self._fed = 0

    @property
    def now(self) -> timedelta:
        return self.clock.now() - START

    def feed(self) -> None:
        """One more HIGH job."""
        self._fed += 1
        builder = self.client.enqueue(body, f"H{self._fed}").with_priority(Priority.HIGH)
        self.high.append(builder.submit())

    def next(self) -> str:
        """The next body begins."""
        name = Slot.begun.get(timeout=30)
        self.begun.append((self.now, name))
        return name

    def finish(self) -> None:
        """30 s pass, and the body that holds the slot ends."""
        self.clock.advance(BODY)
        Slot.gate.release()

    def run(self, until: Callable[[], bool]) -> None:
        """From t = 0, with two HIGH jobs: the feeder replaces each that begins, so that two are waiting."""
        for _ in range(2):
            self.feed()
        self.node.start()
        while not until():
            if self.next() != "L":
                self.feed()
            self.finish()


def test_f56_the_lowest_job_starts_at_the_tie(stage: Stage, file_clock: FileClock) -> None:
    """Boost 15 min: L does not start before 45:00, and at the first free slot after it, by 45:31."""
    story = Story(stage, file_clock, 15 * MINUTE)
    story.run(lambda: story.now >= HOUR)
    (started,) = [at for at, name in story.begun if name == "L"]
    assert 45 * MINUTE <= started <= 45 * MINUTE + timedelta(seconds=31)
    assert story.low.wait(30).status is Status.SUCCEEDED
    submitted = {f"H{n + 1}": handle.job() for n, handle in enumerate(story.high)}
    for at, name in story.begun:
        if (job := submitted.get(name)) is not None:
            assert START + at - job.scheduled_time <= timedelta(seconds=90)
    assert [name for _, name in story.begun if name != "L"] == [
        f"H{n + 1}" for n in range(len(story.begun) - 1)
    ]
    Slot.gate.release(9)


def test_f56_without_boost_it_waits_for_the_end(stage: Stage, file_clock: FileClock) -> None:
    """Boost off: L does not run during the 3 h, and runs right after the last HIGH job."""
    story = Story(stage, file_clock, timedelta())
    story.run(lambda: story.now >= 3 * HOUR)
    assert {name for _, name in story.begun} == {f"H{n + 1}" for n in range(360)}
    assert story.low.status is Status.PENDING
    left = [story.next()]
    while left[-1] != "L":
        story.finish()
        left.append(story.next())
    assert left == ["H361", "H362", "L"]
    Slot.gate.release()
    story.low.result(30)


@pytest.mark.parametrize(
    "due",
    [START - timedelta(days=3653), datetime(1970, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)],
    ids=["ten years", "1970", "year 1"],
)
@pytest.mark.parametrize("interval", [15 * MINUTE, timedelta(milliseconds=1), timedelta(days=36_500)])
def test_f56_an_ancient_due_time_does_not_overflow(
    stage: Stage, file_clock: FileClock, due: datetime, interval: timedelta
) -> None:
    """Due ten years ago (and at the first instant there is): claimed and run like any job, by plain arithmetic."""
    node = one_slot(stage, file_clock, interval)
    handles = {
        "critical": node.enqueue(body, "critical").with_priority(Priority.CRITICAL).submit(),
        "ancient": node.schedule(due, body, "ancient").with_priority(Priority.LOWEST).submit(),
        "fresh": node.enqueue(body, "fresh").with_priority(Priority.LOWEST).submit(),
    }
    begun = order(node, 3)
    levels = (START - due) // interval
    assert levels >= 0
    expected = ["ancient", "critical", "fresh"] if levels >= 4 else ["critical", "ancient", "fresh"]
    assert begun == expected
    for handle in handles.values():
        assert handle.wait(30).status is Status.SUCCEEDED
    job = handles["ancient"].job()
    assert job is not None
    assert job.scheduled_time == due
    assert job.queue_wait is not None
    assert timedelta() <= file_clock.now() - due - job.queue_wait < MINUTE


def test_f56_the_boost_counts_whole_intervals_only(stage: Stage, file_clock: FileClock) -> None:
    """One millisecond before an interval is full nothing is added; a due time in the future never subtracts."""
    quarter = 15 * MINUTE
    ms = timedelta(milliseconds=1)
    for levels in (1, 2, 40, 350_640):
        due = START - levels * quarter
        assert effective_priority(0, due, START, quarter) == levels
        assert effective_priority(0, due + ms, START, quarter) == levels - 1
    assert effective_priority(3, START + HOUR, START, quarter) == 3
    assert effective_priority(3, START - 1000 * HOUR, START, timedelta()) == 3
    # The same at the store: L, one millisecond short of the third level, comes after HIGH; then before it.
    node = one_slot(stage, file_clock, quarter)
    file_clock.set(START + 3 * quarter)
    node.schedule(START + ms, body, "short").with_priority(Priority.LOWEST).submit()
    node.enqueue(body, "high").with_priority(Priority.HIGH).submit()
    node.schedule(START, body, "full").with_priority(Priority.LOWEST).submit()
    assert order(node, 3) == ["full", "high", "short"]


def test_f56_paused_time_counts_as_waiting_as_documented(stage: Stage, file_clock: FileClock) -> None:
    """PAUSED for 10 h: resume keeps the due time, and paused time counts as waiting, as is documented."""
    node = one_slot(stage, file_clock, 15 * MINUTE)
    paused = node.enqueue(body, "paused").with_priority(Priority.LOWEST).submit()
    assert node.pause(paused.id)
    file_clock.advance(10 * HOUR)
    node.enqueue(body, "critical").with_priority(Priority.CRITICAL).submit()
    assert node.resume(paused.id)
    job = paused.job()
    assert job is not None
    assert job.scheduled_time == START
    assert order(node, 2) == ["paused", "critical"]
    assert "paused time counts as waiting" in (Scheduler.resume.__doc__ or "")


def test_f56_waiting_for_a_signal_does_not_age() -> None:
    """WAITING for 10 h: it does not come back with a 40-level boost."""
    not_yet("signal")


def fails_once() -> None:
    """Fails at the first attempt."""
    Slot.begun.put("retried")
    if current_job().attempt == 1:
        raise ValueError("once")


def test_f56_a_retry_does_not_age_while_it_waits_for_its_time(stage: Stage, file_clock: FileClock) -> None:
    """A retry that is due after 10 h of back-off has no 40-level boost then: it is due anew."""
    node = one_slot(stage, file_clock, 15 * MINUTE)
    builder = node.enqueue(fails_once).with_priority(Priority.LOWEST)
    handle = builder.with_max_retries(1).with_backoff(Backoff.fixed(10 * HOUR)).submit()
    assert order(node, 1) == ["retried"]
    wait_until(lambda: (job := handle.job()) is not None and job.attempts == 1)
    node.stop()
    file_clock.advance(10 * HOUR)
    node.enqueue(body, "low").with_priority(Priority.LOW).submit()
    assert order(node, 2) == ["low", "retried"]
    handle.result(30)
