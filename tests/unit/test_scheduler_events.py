"""Events: in order for each job, after the commit they describe, and no listener harms anybody."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from ratchet import (
    Backoff,
    JobCanceled,
    JobCompleted,
    JobDlq,
    JobFailed,
    JobRequeued,
    JobRetrying,
    JobStarted,
    JobTimedOut,
    Scheduler,
    Status,
    circuit_breaker,
)
from ratchet.defaults.resilience import PassThrough
from ratchet.engine.bus import QUEUE_LIMIT, Bus
from ratchet.testing import InlineRunner, VirtualClock
from tests.unit import scheduler_kit as kit
from tests.unit.scheduler_kit import WAIT, Gate, Heard

START = datetime(2030, 1, 1, tzinfo=UTC)
clocks: list[VirtualClock] = []


def overrun(seconds: float) -> None:
    clocks[-1].advance(timedelta(seconds=seconds))


@circuit_breaker(service="bank")
def call_the_bank() -> str:
    kit.said.append("called")
    return "paid"


@pytest.fixture
def clock() -> VirtualClock:
    clocks.append(VirtualClock(START))
    return clocks[-1]


@pytest.fixture
def scheduler(store_url: str, clock: VirtualClock) -> Iterator[Scheduler]:
    scheduler = Scheduler.from_url(store_url, allow=[kit.__name__, __name__], clock=clock)
    yield scheduler
    scheduler.close()


@pytest.fixture
def runner(scheduler: Scheduler, clock: VirtualClock) -> Iterator[InlineRunner]:
    with InlineRunner(scheduler, clock=clock) as runner:
        yield runner


# -- what they say -----------------------------------------------------------------------------------------------


def test_each_event_carries_what_its_listener_needs(scheduler: Scheduler, runner: InlineRunner) -> None:
    """Job id, attempt, instant and node on all; error, next due time, elapsed time and timeout where they belong."""
    heard, name = Heard(scheduler), uuid4().hex
    builder = scheduler.enqueue(kit.fail, name, "password=hunter2").with_max_retries(1)
    handle = builder.with_backoff(Backoff.fixed(timedelta(minutes=1))).submit()
    runner.run_all()
    started, retrying, again, failed, dlq = heard.events
    assert isinstance(started, JobStarted)
    assert (started.job_id, started.attempt, started.at, started.node) == (handle.id, 1, START, "inline")
    assert started.target == f"{kit.__name__}:fail"
    assert isinstance(retrying, JobRetrying)
    assert retrying.scheduled_time == START + timedelta(minutes=1)
    assert retrying.error.startswith("RuntimeError: password=")
    assert "hunter2" not in retrying.error
    assert isinstance(again, JobStarted)
    assert (again.attempt, again.at) == (2, START + timedelta(minutes=1))
    assert isinstance(failed, JobFailed)
    assert isinstance(dlq, JobDlq)
    assert (
        (failed.error, failed.attempts, failed.attempt)
        == (dlq.error, dlq.attempts, 2)
        == (retrying.error, 2, 2)
    )


def test_timed_out_comes_before_retrying_and_before_failed(
    scheduler: Scheduler, runner: InlineRunner
) -> None:
    """A timeout is told after its transition was applied, before what follows from it."""
    heard = Heard(scheduler)
    handle = scheduler.enqueue(overrun, 5.0).with_timeout(timedelta(seconds=2)).with_max_retries(1).submit()
    runner.run_pending()
    one = ["JobStarted", "JobTimedOut"]
    assert heard.names(handle.id) == [*one, "JobRetrying", *one, "JobFailed", "JobDlq"]
    timed_out = heard.events[1]
    assert isinstance(timed_out, JobTimedOut)
    assert (timed_out.timeout, timed_out.elapsed) == (timedelta(seconds=2), timedelta(seconds=5))


def test_completed_tells_duration_and_wait(
    scheduler: Scheduler, runner: InlineRunner, clock: VirtualClock
) -> None:
    """Completed carries how long the body ran and how long the job had waited since it was due."""
    heard = Heard(scheduler)
    scheduler.enqueue(overrun, 3.0).submit()
    clock.advance(timedelta(seconds=4))
    runner.run_pending()
    completed = heard.events[-1]
    assert isinstance(completed, JobCompleted)
    assert (completed.duration, completed.queue_wait) == (timedelta(seconds=3), timedelta(seconds=4))


def test_a_listener_hears_the_types_it_asked_for(scheduler: Scheduler, runner: InlineRunner) -> None:
    """Types narrow, and after `close` nothing more is heard."""
    completed: list[object] = []
    subscription = scheduler.add_listener(completed.append, JobCompleted, JobCanceled)
    handle = scheduler.enqueue(kit.add, 1).submit()
    canceled = scheduler.schedule(timedelta(1), kit.add, 1).submit()
    runner.run_pending()
    scheduler.cancel(canceled.id)
    assert subscription.drain(WAIT)
    assert [type(each) for each in completed] == [JobCompleted, JobCanceled]
    subscription.close()
    scheduler.retry(handle.id)
    scheduler.enqueue(kit.add, 1).submit()
    runner.run_pending()
    assert len(completed) == 2


def test_nothing_is_told_before_its_commit(scheduler: Scheduler, runner: InlineRunner) -> None:
    """When a listener is told, the store already says so."""
    seen: dict[str, Status | None] = {}
    scheduler.add_listener(
        lambda event: seen.setdefault(type(event).__name__, scheduler.handle(event.job_id).status)
    )
    name = uuid4().hex
    handle = scheduler.enqueue(kit.fail, name).submit()
    runner.run_pending()
    scheduler.retry(handle.id)
    scheduler._bus.drain(WAIT)
    scheduler.pause(handle.id)
    scheduler._bus.drain(WAIT)
    scheduler.cancel(handle.id)
    scheduler._bus.drain(WAIT)
    assert seen == {
        "JobStarted": seen["JobStarted"],  # by the time it is heard the job may be settled already
        "JobFailed": Status.FAILED,
        "JobDlq": Status.FAILED,
        "JobRequeued": Status.PENDING,
        "JobPaused": Status.PAUSED,
        "JobCanceled": Status.CANCELED,
    }


# -- order against the running node ------------------------------------------------------------------------------


def test_a_requeued_job_is_told_as_requeued_before_it_is_told_as_started(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However fast the node takes it: the control call's event comes first, and nothing is lost."""
    scheduler = Scheduler.from_url(store_url, allow=[kit.__name__])
    heard, name = Heard(scheduler), uuid4().hex
    with scheduler:
        handle = scheduler.enqueue(kit.fail_times, name, 1).submit()
        handle.wait(WAIT)
        heard.until_told("JobDlq", handle.id)
        apply = scheduler.store.apply

        def slow_to_answer(change: object) -> object:
            answer = apply(change)  # type: ignore[arg-type]
            scheduler._wake()
            assert handle.wait(WAIT).status is Status.SUCCEEDED  # run to its end before the caller knows
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(scheduler.store, "apply", slow_to_answer)
            assert scheduler.retry(handle.id)
        heard.until_told("JobCompleted", handle.id)
    assert heard.names(handle.id)[3:] == ["JobRequeued", "JobStarted", "JobCompleted"]
    scheduler.close()


def event(job_id: UUID, kind: type = JobRequeued) -> JobRequeued:
    made: JobRequeued = kind(job_id=job_id, attempt=0, at=START, node="n")
    return made


def test_only_the_events_of_that_job_wait() -> None:
    """While a control call is under way other jobs' events pass; an error in the call loses none."""
    bus, told = Bus(), list[UUID]()
    subscription = bus.subscribe(lambda each: told.append(each.job_id))
    mine, other = uuid4(), uuid4()
    with suppress(RuntimeError), bus.ahead(mine) as publish:
        bus.publish(event(mine))
        bus.publish(event(other))
        publish(event(UUID(int=1)))
        raise RuntimeError
    assert subscription.drain(WAIT)
    assert told == [other, UUID(int=1), mine]
    with bus.ahead() as publish:
        bus.publish(event(other))
        publish(event(mine))
    assert subscription.drain(WAIT)
    assert told[3:] == [mine, other]


# -- listeners harm nobody ---------------------------------------------------------------------------------------


def test_a_raising_listener_harms_neither_the_job_nor_the_others(
    scheduler: Scheduler, runner: InlineRunner, caplog: pytest.LogCaptureFixture
) -> None:
    """A listener that raises on every event is counted and logged; the job and another listener go on."""

    def broken(event: object) -> None:
        raise SystemExit(1)

    subscription = scheduler.add_listener(broken)
    heard = Heard(scheduler)
    handle = scheduler.enqueue(kit.add, 1).submit()
    with caplog.at_level(logging.ERROR, "ratchet.events"):
        runner.run_pending()
        assert subscription.drain(WAIT)
    assert handle.status is Status.SUCCEEDED
    assert heard.names(handle.id) == ["JobStarted", "JobCompleted"]
    assert subscription.failures == 2
    assert "broken raised SystemExit" in caplog.text


def test_a_slow_listener_loses_the_oldest_and_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Beyond 10,000 queued events the oldest is dropped, counted and warned of; publishing never blocks."""
    bus, gate, told = Bus(), Gate(), list[int]()

    def slow(each: JobRequeued) -> None:
        gate.entered.set()
        assert gate.leave.wait(WAIT)
        told.append(each.attempt)

    def numbered(n: int) -> JobRequeued:
        return JobRequeued(job_id=UUID(int=n), attempt=n, at=START, node="n")

    subscription = bus.subscribe(slow)
    fast = list[int]()
    other = bus.subscribe(lambda each: fast.append(each.attempt))
    bus.publish(numbered(0))
    assert gate.entered.wait(WAIT)
    with caplog.at_level(logging.WARNING, "ratchet.events"):
        for n in range(1, QUEUE_LIMIT + 4):
            bus.publish(numbered(n))
            if n % 1000 == 0:
                assert other.drain(WAIT)
    assert subscription.dropped == 3
    assert "is too slow: 1 events dropped" in caplog.text
    gate.leave.set()
    assert subscription.drain(WAIT)
    assert told == [0, *range(4, QUEUE_LIMIT + 4)]
    assert other.drain(WAIT)
    assert len(fast) == QUEUE_LIMIT + 4


# -- the gate of the circuit breaker -----------------------------------------------------------------------------


class Open(PassThrough):
    """A breaker that is open for a while."""

    def __init__(self, wait: timedelta | None) -> None:
        self.wait = wait

    def retry_delay(self, service: str | None) -> timedelta | None:
        return self.wait if service == "bank" else None


@pytest.mark.parametrize(("wait", "later"), [(timedelta(seconds=30), 30), (timedelta(seconds=-5), 1)])
def test_an_open_circuit_defers_without_an_attempt(
    store_url: str, clock: VirtualClock, wait: timedelta, later: int
) -> None:
    """API-RES-01, API-RES-02: the body is not called, no attempt is consumed, and the delay is at least 1 s."""
    kit.said.clear()
    breaker = Open(wait)
    scheduler = Scheduler.from_url(store_url, allow=[__name__], clock=clock, resilience=breaker)
    with InlineRunner(scheduler, clock=clock) as runner:
        handle = scheduler.enqueue(call_the_bank).submit()
        ran = runner.run_one()
        assert ran is not None
        assert ran.status is Status.PENDING
        job = handle.job()
        assert job is not None
        assert (job.attempts, job.scheduled_time, kit.said) == (0, START + timedelta(seconds=later), [])
        breaker.wait = None
        runner.run_all()
        assert handle.result(timeout=0) == "paid"
    scheduler.close()


# -- a forked child ----------------------------------------------------------------------------------------------

FORKING = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads is what is being shown
from ratchet import Scheduler
import textwrap
scheduler = Scheduler.from_url(sys.argv[1], allow=["textwrap"])
with scheduler:
    scheduler.enqueue(textwrap.indent, "a", "> ").submit().result(timeout=20)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert scheduler.node is None
            handle = scheduler.enqueue(textwrap.indent, "b", "> ").with_idempotency_key("child").submit()
            code = 0 if handle.created else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    found = scheduler.store.find_by_key(idempotency="child")
    print(scheduler.handle(found.id).result(timeout=20))
"""


def test_a_forked_child_submits_and_is_not_started(tmp_path: Path) -> None:
    """After a fork the child's scheduler is not running but submits; the parent's node runs the job."""
    command = [sys.executable, "-c", FORKING, f"sqlite:///{tmp_path / 'jobs.db'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "> b\n", done.stderr


def test_two_schedulers_do_not_hear_each_other(store_url: str) -> None:
    """Events are local to the node where they happen, and closing a scheduler ends its threads."""
    before = threading.active_count()
    one = Scheduler.from_url(store_url, allow=[kit.__name__])
    two = Scheduler.from_url(store_url, allow=[kit.__name__])
    there = Heard(two)
    with one:
        assert one.enqueue(kit.add, 1).submit().result(timeout=WAIT) == 2
    assert there.events == []
    one.close()
    two.close()
    end = time.monotonic() + WAIT
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before
