"""The testing kit: time that stands still, jobs that run where the test stands, nodes that die on purpose."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from ratchet import (
    AttemptEnd,
    Backoff,
    JobFailed,
    NodeSettings,
    Priority,
    Scheduler,
    Settings,
    Status,
    current_job,
)
from ratchet.domain.outcome import Failed, Succeeded
from ratchet.errors import JobFailedError, NotRunning, UsageError
from ratchet.testing import InlineNode, InlineRunner, VirtualClock, isolated, run_pending
from tests.unit import scheduler_kit as kit
from tests.unit.scheduler_kit import Heard

START = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


@dataclass
class Order:
    """A class of an allowed module, to travel as an argument."""

    lines: tuple[int, ...]


received: list[object] = []
the_clock: list[VirtualClock] = []
the_scheduler: list[Scheduler] = []


def receive(value: object) -> object:
    received.append(value)
    return value


def take_time(seconds: float) -> None:
    the_clock[-1].advance(timedelta(seconds=seconds))


def submit_next(n: int) -> None:
    received.append(n)
    if n:
        the_scheduler[-1].enqueue(submit_next, n - 1).submit()


def cancel_me() -> str:
    assert the_scheduler[-1].cancel(current_job().id)
    return "too late"


async def on_a_loop() -> int:
    return id(asyncio.get_running_loop())


def raise_exit() -> None:
    raise SystemExit(3)


@pytest.fixture
def clock() -> VirtualClock:
    the_clock.append(VirtualClock())
    return the_clock[-1]


@pytest.fixture
def scheduler(store_url: str, clock: VirtualClock) -> Iterator[Scheduler]:
    settings = Settings(node=NodeSettings(max_crash_redeliveries=1))
    scheduler = Scheduler.from_url(store_url, allow=[kit.__name__, __name__], clock=clock, settings=settings)
    the_scheduler.append(scheduler)
    received.clear()
    yield scheduler
    scheduler.close()


@pytest.fixture
def runner(scheduler: Scheduler, clock: VirtualClock) -> Iterator[InlineRunner]:
    with InlineRunner(scheduler, clock=clock) as runner:
        yield runner


# -- the clock ---------------------------------------------------------------------------------------------------


def test_a_clock_moves_only_forward() -> None:
    """API-DELAY-03: it stands still, goes forward, and refuses to go back, whichever way it is asked."""
    clock = VirtualClock(START)
    assert clock.now() == clock.now() == START
    assert clock.advance(SECOND) == START + SECOND
    assert clock.set(START + HOUR) == clock.now() == START + HOUR
    assert clock.advance(timedelta(0)) == clock.set(START + HOUR)
    for back in (partial(clock.advance, -SECOND), partial(clock.set, START)):
        with pytest.raises(UsageError, match="a clock does not run backwards"):
            back()
    assert clock.now() == START + HOUR


def test_a_clock_needs_a_zone() -> None:
    """Naive instants are refused; those of other zones are the same instant."""
    with pytest.raises(UsageError, match="needs an aware datetime"):
        VirtualClock(datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(UsageError, match="a step is a timedelta, not int"):
        VirtualClock().advance(3)  # type: ignore[arg-type]
    assert VirtualClock().now().tzinfo is UTC


# -- running -----------------------------------------------------------------------------------------------------


def test_due_jobs_run_in_this_thread_and_nothing_runs_before(
    scheduler: Scheduler, runner: InlineRunner
) -> None:
    """Nothing happens until the runner is called; then the due job runs in the calling thread."""
    name = uuid4().hex
    handle = scheduler.enqueue(kit.count, name).submit()
    later = scheduler.schedule(HOUR, kit.count, name).submit()
    assert kit.runs[name] == 0
    threads = set(threading.enumerate())
    (ran,) = runner.run_pending()
    assert (ran.job_id, ran.status, ran.attempt, ran.claim_seq) == (handle.id, Status.SUCCEEDED, 1, 1)
    assert isinstance(ran.outcome, Succeeded)
    assert (ran.error, ran.refused) == (None, None)
    assert not set(threading.enumerate()) - threads  # none is made; one of an earlier test may end meanwhile
    assert handle.result(timeout=0) == 1
    assert later.status is Status.PENDING
    assert runner.run_pending() == []


def test_payloads_make_the_round_trip(scheduler: Scheduler, runner: InlineRunner) -> None:
    """The body receives a decoded copy, equal and of the same type, never the object that was submitted."""
    order = Order((1, 2))
    handle = scheduler.enqueue(receive, order).submit()
    runner.run_pending()
    (got,) = received
    assert got == order
    assert got is not order
    again = handle.result(timeout=0)
    assert again == order
    assert again is not got


def test_the_order_is_that_of_claims(scheduler: Scheduler, runner: InlineRunner, clock: VirtualClock) -> None:
    """Higher priority first, then the earlier due time, then the order of submission."""
    scheduler.enqueue(receive, "first").submit()
    scheduler.enqueue(receive, "second").submit()
    scheduler.schedule(SECOND, receive, "later").submit()
    scheduler.enqueue(receive, "urgent").with_priority(Priority.HIGH).submit()
    clock.advance(SECOND)
    runner.run_pending()
    assert received == ["urgent", "first", "second", "later"]


def test_jobs_that_become_due_meanwhile_run_too(scheduler: Scheduler, runner: InlineRunner) -> None:
    """What a body submits is run by the same call, and an endless chain is told."""
    scheduler.enqueue(submit_next, 3).submit()
    assert len(runner.run_pending()) == 4
    assert received == [3, 2, 1, 0]
    scheduler.enqueue(submit_next, 50).submit()
    with pytest.raises(UsageError, match="still due after 20 executions"):
        runner.run_pending(most=20)


def test_async_bodies_run_on_one_loop(scheduler: Scheduler, runner: InlineRunner) -> None:
    """Async bodies of one runner share an event loop, also over several calls."""
    handles = [scheduler.enqueue(on_a_loop).submit() for _ in range(2)]
    runner.run_pending()
    handles.append(scheduler.enqueue(on_a_loop).submit())
    runner.run_pending()
    assert len({handle.result(timeout=0) for handle in handles}) == 1


@pytest.mark.asyncio
async def test_it_runs_inside_a_running_loop(scheduler: Scheduler) -> None:
    """In an async test sync and async bodies and callbacks run as well, on a helper thread."""
    kit.said.clear()
    with InlineRunner(scheduler) as runner:
        one = scheduler.enqueue(kit.add, 1).on_success(kit.after_success).submit()
        two = scheduler.enqueue(on_a_loop).submit()
        assert [ran.status for ran in runner.run_pending()] == [Status.SUCCEEDED] * 2
        assert two.result(timeout=0) != id(asyncio.get_running_loop())
    assert kit.said == [("success", one.id, 2)]


def test_the_function_form(scheduler: Scheduler) -> None:
    """`run_pending(scheduler)` is the runner for one call."""
    handle = scheduler.enqueue(kit.add_later, 1).submit()
    assert [ran.job_id for ran in run_pending(scheduler)] == [handle.id]


# -- time --------------------------------------------------------------------------------------------------------


def test_a_delay_ends_when_the_clock_says_so(
    scheduler: Scheduler, runner: InlineRunner, clock: VirtualClock
) -> None:
    """API-DELAY-01: a job delayed by 5 minutes does not run at half time and runs once the time has come."""
    name = uuid4().hex
    handle = scheduler.schedule(timedelta(minutes=5), kit.count, name).submit()
    clock.advance(timedelta(minutes=2.5))
    assert runner.run_pending() == []
    clock.set(START + timedelta(minutes=5))  # inclusive
    assert len(runner.run_pending()) == 1
    job = handle.job()
    assert job is not None
    assert (job.started_at, job.ended_at, job.queue_wait) == (clock.now(), clock.now(), timedelta(0))
    assert kit.runs[name] == 1


def test_a_canceled_delay_never_ends(scheduler: Scheduler, runner: InlineRunner) -> None:
    """API-DELAY-02: canceled before its time, the job never runs."""
    name = uuid4().hex
    handle = scheduler.schedule(timedelta(minutes=5), kit.count, name).submit()
    assert scheduler.cancel(handle.id)
    assert runner.advance(HOUR) == []
    assert kit.runs[name] == 0


def test_advance_runs_each_job_at_its_own_time(
    scheduler: Scheduler, runner: InlineRunner, clock: VirtualClock
) -> None:
    """Moving the time by an hour runs what falls due on the way, in order, at its due time, and ends there."""
    late = scheduler.schedule(timedelta(minutes=30), receive, "late").submit()
    early = scheduler.schedule(timedelta(minutes=10), receive, "early").submit()
    scheduler.schedule(2 * HOUR, receive, "never").submit()
    assert [ran.job_id for ran in runner.advance(HOUR)] == [early.id, late.id]
    assert clock.now() == START + HOUR
    for handle, minutes in ((early, 10), (late, 30)):
        job = handle.job()
        assert job is not None
        assert job.started_at == START + timedelta(minutes=minutes)
    with pytest.raises(UsageError, match="backwards"):
        runner.advance(-SECOND)


def test_retries_follow_the_clock(scheduler: Scheduler, runner: InlineRunner, clock: VirtualClock) -> None:
    """A retry is due exactly its back-off later: exponential delays, without any waiting."""
    name, heard = uuid4().hex, Heard(scheduler)
    builder = scheduler.enqueue(kit.fail, name).with_max_retries(3)
    handle = builder.with_backoff(Backoff.exponential(timedelta(minutes=1))).submit()
    (first,) = runner.run_pending()
    assert (first.status, kit.runs[name]) == (Status.PENDING, 1)
    assert isinstance(first.error, RuntimeError)
    ran = runner.run_all()
    assert [each.attempt for each in ran] == [2, 3, 4]
    assert clock.now() == START + timedelta(minutes=1 + 2 + 4)
    assert ran[-1].status is Status.FAILED
    assert heard.names(handle.id) == ["JobStarted", "JobRetrying"] * 3 + ["JobStarted", "JobFailed", "JobDlq"]
    history = scheduler.store.history(handle.id)
    assert [each.ended_at - START for each in history] == [timedelta(minutes=m) for m in (0, 1, 3, 7)]
    with pytest.raises(JobFailedError):
        handle.result(timeout=0)


def test_retry_after_is_a_lower_bound(
    scheduler: Scheduler, runner: InlineRunner, clock: VirtualClock
) -> None:
    """A body that raises RetryAfter is not run again before that."""
    scheduler.enqueue(kit.wait_a_while, 90.0).with_max_retries(1).submit()
    assert len(runner.advance(timedelta(seconds=89))) == 1
    assert len(runner.advance(SECOND)) == 1
    assert clock.now() == START + timedelta(seconds=90)


def test_run_all_without_jumping(scheduler: Scheduler, runner: InlineRunner, clock: VirtualClock) -> None:
    """`run_all(advance=False)` leaves the clock alone; with jumping an endless schedule is told."""
    scheduler.schedule(HOUR, kit.add, 1).submit()
    assert runner.run_all(advance=False) == []
    assert clock.now() == START
    assert len(runner.run_all()) == 1


def test_time_cannot_be_moved_without_the_clock(scheduler: Scheduler) -> None:
    """A runner that was given no clock says how to give it one."""
    with InlineRunner(scheduler) as runner:
        for move in (partial(runner.advance, HOUR), runner.run_all):
            with pytest.raises(UsageError, match="the VirtualClock of its store"):
                move()


def test_a_time_limit_in_store_time(scheduler: Scheduler, runner: InlineRunner) -> None:
    """A body in which the clock passes its timeout ends as timed out; below it the duration is exact."""
    heard = Heard(scheduler)
    slow = scheduler.enqueue(take_time, 60.0).with_timeout(timedelta(seconds=60)).submit()
    good = scheduler.enqueue(take_time, 59.0).with_timeout(timedelta(seconds=60)).submit()
    runner.run_pending()
    assert heard.names(slow.id) == ["JobStarted", "JobTimedOut", "JobFailed", "JobDlq"]
    assert [each.end for each in scheduler.store.history(slow.id)] == [AttemptEnd.TIMED_OUT]
    job = good.job()
    assert job is not None
    assert (job.status, job.duration) == (Status.SUCCEEDED, timedelta(seconds=59))


# -- the rest of an attempt --------------------------------------------------------------------------------------


def test_callbacks_and_listeners_have_run_on_return(scheduler: Scheduler, runner: InlineRunner) -> None:
    """When the runner returns, events were delivered and callbacks have run, in that order, failures told."""
    kit.said.clear()
    name = uuid4().hex
    scheduler.add_listener(lambda event: kit.said.append(type(event).__name__), JobFailed)
    bad = scheduler.enqueue(kit.fail, name).on_failure(kit.after_failure).submit()
    runner.run_pending()
    assert kit.said == ["JobFailed", ("failure", bad.id, "no luck")]
    heard = Heard(scheduler)
    broken = scheduler.enqueue(kit.add, 1).on_success(kit.broken_callback).submit()
    runner.run_pending()
    assert heard.names(broken.id) == ["JobStarted", "JobCompleted", "JobCallbackFailed"]


def test_the_context_is_that_of_an_attempt(scheduler: Scheduler, runner: InlineRunner) -> None:
    """`current_job()` works in the body and not outside of it."""
    handle = scheduler.enqueue(kit.context_of).with_param("p", (1, 2)).submit()
    runner.run_pending()
    seen = handle.result(timeout=0)
    assert seen == {"id": str(handle.id), "attempt": 1, "params": {"p": (1, 2)}, "node": "inline"}
    with pytest.raises(LookupError):
        current_job()


def test_a_job_canceled_in_its_body_stays_canceled(scheduler: Scheduler, runner: InlineRunner) -> None:
    """Its result is refused, and canceled is told when the body has ended."""
    heard = Heard(scheduler)
    handle = scheduler.enqueue(cancel_me).submit()
    (ran,) = runner.run_pending()
    assert ran.status is None
    assert ran.refused is not None
    assert handle.status is Status.CANCELED
    assert heard.names(handle.id) == ["JobStarted", "JobCanceling", "JobCanceled"]


def test_a_body_that_exits_is_a_failure(scheduler: Scheduler, runner: InlineRunner) -> None:
    """SystemExit in a body ends the attempt, not the test."""
    scheduler.enqueue(raise_exit).submit()
    (ran,) = runner.run_pending()
    assert ran.status is Status.FAILED
    assert isinstance(ran.error, SystemExit)
    assert isinstance(ran.outcome, Failed)


def test_an_unknown_target_does_not_loop(
    scheduler: Scheduler, runner: InlineRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose function is not there is put back once per call, not for ever."""
    store = scheduler.store
    handle = scheduler.enqueue(kit.add, 1).submit()
    monkeypatch.delattr(kit, "add")
    assert len(runner.run_pending()) == 1
    assert handle.status is Status.PENDING
    monkeypatch.undo()
    assert len(runner.run_pending()) == 1
    assert [each.end for each in store.history(handle.id)] == [AttemptEnd.DEFERRED, AttemptEnd.SUCCEEDED]


# -- nodes that die ----------------------------------------------------------------------------------------------


def test_a_crash_is_charged_and_the_job_runs_elsewhere(scheduler: Scheduler, runner: InlineRunner) -> None:
    """A node that dies in the middle of an attempt: the job is recovered with a crash charged, and finished."""
    handle = scheduler.enqueue(kit.add, 1).submit()
    node = InlineNode(scheduler, name="doomed")
    claim = node.claim()
    assert claim is not None
    assert handle.status is Status.RUNNING
    assert node.die() == (handle.id,)
    job = handle.job()
    assert job is not None
    assert (job.status, job.crash_count, job.attempts) == (Status.PENDING, 1, 0)
    assert [ran.status for ran in runner.run_pending()] == [Status.SUCCEEDED]
    ends = [each.end for each in scheduler.store.history(handle.id)]
    assert ends == [AttemptEnd.CRASHED, AttemptEnd.SUCCEEDED]


def test_a_zombie_changes_nothing(scheduler: Scheduler, runner: InlineRunner) -> None:
    """A node that finishes a body after it was found dead is refused, before and after the job ran again."""
    handle = scheduler.enqueue(receive, "work").submit()
    zombie = InlineNode(scheduler)
    claim = zombie.claim()
    assert claim is not None
    body = zombie.run(claim)
    zombie.die()
    before = handle.job()
    early = zombie.write(body)
    assert early.refused is not None
    assert handle.job() == before
    runner.run_pending()
    after = handle.job()
    late = zombie.write(body)
    assert (late.status, late.refused is not None) == (None, True)
    assert handle.job() == after
    assert received == ["work", "work"]


def test_a_spent_crash_budget_fails_the_job(scheduler: Scheduler) -> None:
    """The crash after the last allowed one fails the job: events, and its on_failure with the stored error."""
    kit.said.clear()
    heard = Heard(scheduler)
    handle = scheduler.enqueue(kit.add, 1).on_failure(kit.after_failure).submit()
    for _ in range(2):
        node = InlineNode(scheduler)
        assert node.claim() is not None
        node.die()
    job = handle.job()
    assert job is not None
    assert (job.status, job.crash_count, job.attempts) == (Status.FAILED, 1, 0)
    assert heard.names(handle.id) == ["JobFailed", "JobDlq"]
    assert kit.said == [("failure", handle.id, job.last_error)]


def test_a_given_job_can_be_claimed(scheduler: Scheduler, runner: InlineRunner) -> None:
    """Jobs before the given one are put back; one that is not due is not claimed."""
    first = scheduler.enqueue(kit.add, 1).submit()
    second = scheduler.enqueue(kit.add, 2).submit()
    later = scheduler.schedule(HOUR, kit.add, 3).submit()
    node = InlineNode(scheduler)
    claim = node.claim(second.id)
    assert claim is not None
    assert claim.job_id == second.id
    assert first.status is Status.PENDING
    assert node.claim(later.id) is None
    assert node.execute(claim).status is Status.SUCCEEDED


# -- an application's own scheduler ------------------------------------------------------------------------------


def test_isolated_swaps_the_store_for_the_block(scheduler: Scheduler) -> None:
    """Inside, submissions go to an empty store with a clock of its own; outside nothing of them is left."""
    outside = scheduler.enqueue(kit.add, 1).submit()
    with isolated(scheduler) as runner:
        inside = scheduler.schedule(HOUR, kit.add, 2).submit()
        assert scheduler.query.count() == 1
        assert [ran.job_id for ran in runner.run_all()] == [inside.id]
        assert runner.clock is not None
        assert runner.clock.now() == START + HOUR
        assert inside.result(timeout=0) == 3
    assert [job.id for job in scheduler.query.find().jobs] == [outside.id]


def test_isolated_refuses_a_running_scheduler(scheduler: Scheduler) -> None:
    """A running node keeps its store: swapping it would split the application in two."""
    with scheduler, pytest.raises(NotRunning, match="stop this scheduler first"), isolated(scheduler):
        pass


# -- the pytest plugin -------------------------------------------------------------------------------------------

SAMPLE = """
import datetime as dt, sys

def test_nothing_is_loaded_before_a_fixture_is_used():
    loaded = {name for name in sys.modules if name.partition(".")[0] == "ratchet"}
    assert loaded <= {"ratchet", "ratchet.testing", "ratchet.testing.plugin"}, loaded
    assert not any(name.partition(".")[0] in ("pydantic", "sqlalchemy") for name in sys.modules)

def double(x: int) -> int:
    return 2 * x

def test_the_fixtures_fit_together(ratchet_scheduler, ratchet_runner, ratchet_clock):
    handle = ratchet_scheduler.schedule(dt.timedelta(hours=1), double, 4).submit()
    before = ratchet_clock.now()
    assert [ran.status.name for ran in ratchet_runner.run_all()] == ["SUCCEEDED"]
    assert ratchet_clock.now() - before == dt.timedelta(hours=1)
    assert handle.result(timeout=0) == 8
"""

OVERRIDDEN = """
import pytest, textwrap

@pytest.fixture
def ratchet_allow():
    return ["textwrap"]

def test_allow(ratchet_scheduler, ratchet_runner):
    handle = ratchet_scheduler.enqueue(textwrap.indent, "a", "> ").submit()
    ratchet_runner.run_pending()
    assert handle.result(timeout=0) == "> a"
"""


def test_the_fixtures_are_a_plugin_that_costs_nothing(tmp_path: Path) -> None:
    """Pytest finds the fixtures by the installed entry point, and loads Ratchet only where one is used."""
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    (tmp_path / "test_override.py").write_text(OVERRIDDEN)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error\nasyncio_default_fixture_loop_scope = function\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "test_sample.py",
        "test_override.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_the_kit_offers_what_it_names() -> None:
    """Every public name can be imported, and no other."""
    import ratchet.testing

    assert set(ratchet.testing.__all__) <= set(dir(ratchet.testing))
    for name in ratchet.testing.__all__:
        assert getattr(ratchet.testing, name).__module__.startswith("ratchet.testing.")
    with pytest.raises(AttributeError):
        _ = ratchet.testing.nothing
