"""F71: callbacks and listeners that raise. Hooks of the user are no part of the outcome."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, ClassVar, Final

import pytest

from ratchet import (
    AttemptEnd,
    Backoff,
    JobCallbackFailed,
    JobCompleted,
    JobDlq,
    JobFailed,
    JobHandle,
    JobRetrying,
    JobStarted,
    Scheduler,
    Status,
)
from tests.conftest import not_yet
from tests.field_cases.exact import Recorder
from tests.field_cases.faults import FaultyStore
from tests.field_cases.kit import SCALE, Ledger, wait_until
from tests.field_cases.stage import Stage, busy, is_at_work, running

pytestmark = pytest.mark.field_case("F71")

POLL: Final = 0.1


def body(folder: str) -> str:
    """A job that succeeds."""
    with Ledger(folder).entry():
        return "done"


async def body_async(folder: str) -> str:
    """The same on the loop."""
    return body(folder)


def failing(folder: str) -> None:
    """A job that fails."""
    with Ledger(folder).entry():
        raise ValueError("no")


# -- listeners


def raises(gate: threading.Event) -> None:
    raise AttributeError("an event has no such field")


def exits(gate: threading.Event) -> None:
    sys.exit("a listener leaves")


def interrupts(gate: threading.Event) -> None:
    raise KeyboardInterrupt


def blocks(gate: threading.Event) -> None:
    assert gate.wait(30)


HOOKS: Final = [raises, exits, interrupts, blocks]


class Three:
    """Three listeners, the second of which misbehaves at every event."""

    def __init__(self, node: Scheduler, how: Callable[[threading.Event], None]) -> None:
        self.first: list[Any] = []
        self.third: list[Any] = []
        self.calls = 0
        self.gate = threading.Event()

        def second(event: Any) -> None:
            self.calls += 1
            how(self.gate)

        self.subscriptions = [
            node.add_listener(each) for each in (self.first.append, second, self.third.append)
        ]

    def of(self, events: list[Any], handle: JobHandle[Any]) -> list[type]:
        return [type(event) for event in events if event.job_id == handle.id]


@pytest.fixture
def three(
    make_node: Callable[..., Scheduler], request: pytest.FixtureRequest
) -> Iterator[tuple[Scheduler, Three]]:
    """A node, and its three listeners."""
    node = make_node(threads=2, async_=2, poll=POLL)
    listeners = Three(node, request.param)
    yield node, listeners
    listeners.gate.set()


@pytest.mark.parametrize("three", HOOKS, indirect=True)
def test_f71_listeners_change_no_outcome(three: tuple[Scheduler, Three], stage: Stage) -> None:
    """The second of three listeners raises, exits or blocks: outcomes are as without it, 1 execution each."""
    node, listeners = three
    folder = str(stage.folder)
    good = [*node.enqueue_many(body, [(folder,)] * 10), *node.enqueue_many(body_async, [(folder,)] * 10)]
    bad = node.enqueue_many(failing, [(folder,)] * 5)
    assert [handle.result(30) for handle in good] == ["done"] * 20
    assert {handle.wait(30).status for handle in bad} == {Status.FAILED}
    assert {stage.ledger.executions(handle.id) for handle in (*good, *bad)} == {1}
    wait_until(lambda: busy(node) == 0)
    assert is_at_work(node)
    assert listeners.calls >= 1


@pytest.mark.parametrize("three", HOOKS, indirect=True)
def test_f71_the_other_listeners_get_every_event(three: tuple[Scheduler, Three], stage: Stage) -> None:
    """Listeners 1 and 3 get every event, per job in order; the second is called for each, unless it blocks."""
    node, listeners = three
    folder = str(stage.folder)
    retried = node.enqueue(failing, folder).with_max_retries(1).with_backoff(Backoff.none()).submit()
    good = node.enqueue(body, folder).submit()
    for handle in (retried, good):
        handle.wait(30)
    expected = {
        retried.id: [JobStarted, JobRetrying, JobStarted, JobFailed, JobDlq],
        good.id: [JobStarted, JobCompleted],
    }
    total = sum(map(len, expected.values()))
    for events in (listeners.first, listeners.third):
        wait_until(lambda events=events: len(events) == total)  # type: ignore[misc]
        for handle in (retried, good):
            assert listeners.of(events, handle) == expected[handle.id]
    if not listeners.gate.is_set() and listeners.subscriptions[1].failures:
        wait_until(lambda: listeners.calls == total)
        assert listeners.subscriptions[1].failures == total


@pytest.mark.parametrize("three", [blocks], indirect=True)
def test_f71_a_slow_listener_delays_neither_claiming_nor_heartbeats(
    three: tuple[Scheduler, Three], stage: Stage, faulty: FaultyStore
) -> None:
    """While the second listener blocks, jobs are claimed within 3 polls, heartbeats go on, and a stop is in time."""
    node, listeners = three
    folder = str(stage.folder)
    node.enqueue(body, folder).submit().result(30)
    wait_until(lambda: listeners.calls == 1)
    before = node.store.nodes()[0].last_heartbeat
    began = time.monotonic()
    for handle in node.enqueue_many(body, [(folder,)] * 20):
        handle.result(30)
    assert time.monotonic() - began <= 3 * POLL * SCALE
    wait_until(lambda: node.store.nodes()[0].last_heartbeat > before + timedelta(seconds=0.5), 5)
    assert is_at_work(node)
    assert listeners.calls == 1
    began = time.monotonic()
    assert node.stop(2).drained
    assert time.monotonic() - began <= 4.0


def test_f71_a_listener_may_control_jobs(make_node: Callable[..., Scheduler], stage: Stage) -> None:
    """A listener that cancels, pauses, resumes and submits from inside its call dead-locks nobody."""
    node = make_node()
    folder = str(stage.folder)
    waiting = node.schedule(timedelta(hours=1), body, folder).submit()
    made: list[JobHandle[Any]] = []

    def listener(event: Any) -> None:
        if isinstance(event, JobCompleted) and not made:
            made.append(node.enqueue(body, folder).submit())
            assert node.pause(waiting.id)
            assert node.resume(waiting.id)
            assert node.cancel(waiting.id)
            assert not node.cancel(event.job_id)

    subscription = node.add_listener(listener)
    node.enqueue(body, folder).submit().result(30)
    wait_until(lambda: waiting.status is Status.CANCELED)
    assert made[0].result(30) == "done"
    assert subscription.failures == 0


# -- callbacks


class Calls:
    """What callbacks of this module have seen and may use."""

    seen: ClassVar[list[Any]] = []
    gate: ClassVar[threading.Event] = threading.Event()
    scheduler: ClassVar[Scheduler]
    made: ClassVar[list[JobHandle[Any]]] = []
    answers: ClassVar[list[bool]] = []


@pytest.fixture(autouse=True)
def _fresh_calls() -> Iterator[None]:
    Calls.seen, Calls.made, Calls.answers, Calls.gate = [], [], [], threading.Event()
    yield
    Calls.gate.set()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def takes_nothing() -> None:
    """What `wrong_signature` has become."""


def wrong_signature(*given: Any) -> None:
    """Passes the check at submission, and takes nothing when it is called: as after a deployment that changed it."""
    takes_nothing(*given)


def call_raises(context: Any, argument: Any) -> None:
    raise LookupError("a callback fails")


def call_exits(context: Any, argument: Any) -> None:
    sys.exit(3)


def call_interrupts(context: Any, argument: Any) -> None:
    raise KeyboardInterrupt


def call_unprintable(context: Any, argument: Any) -> None:
    raise Unprintable


def call_canceled(context: Any, argument: Any) -> None:
    raise asyncio.CancelledError


async def call_async(context: Any, argument: Any) -> None:
    await asyncio.sleep(0)
    raise LookupError("a callback fails later")


def call_good(context: Any, argument: Any) -> None:
    Calls.seen.append((context.id, argument))


def call_blocks(context: Any, argument: Any) -> None:
    Calls.seen.append((context.id, argument))
    assert Calls.gate.wait(30)


def call_submits(context: Any, argument: Any) -> None:
    Calls.made.append(Calls.scheduler.enqueue(body, context.params["folder"]).submit())


def call_cancels_itself(context: Any, argument: Any) -> None:
    Calls.answers.append(Calls.scheduler.cancel(context.id))


BAD: Final = {
    wrong_signature: "TypeError",
    call_raises: "LookupError",
    call_exits: "SystemExit",
    call_interrupts: "KeyboardInterrupt",
    call_unprintable: "Unprintable",
    call_canceled: "CancelledError",
    call_async: "LookupError",
}


def pending(node: Scheduler) -> int:
    """How many callbacks are still recorded as not done; takes them, so the node must have stopped."""
    return len(node.store.take_callbacks("nobody", grace=timedelta(), limit=100))


@pytest.mark.parametrize("hook", BAD, ids=lambda hook: hook.__name__)
@pytest.mark.parametrize("kind", ["on_success", "on_failure"])
def test_f71_a_callback_that_raises_changes_no_outcome(
    make_node: Callable[..., Scheduler],
    stage: Stage,
    hook: Any,
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """SUCCEEDED stays SUCCEEDED and FAILED FAILED, 1 execution; the failure is told once, by name, and is done with."""
    node = make_node()
    recorder = Recorder(node)
    builder: Any = node.enqueue(body if kind == "on_success" else failing, str(stage.folder))
    with caplog.at_level(logging.ERROR, "ratchet.engine"):
        handle = getattr(builder, kind)(hook).submit()
        job = handle.wait(30)
        wait_until(lambda: recorder.count(JobCallbackFailed))
        wait_until(lambda: f"callback {kind} of job {handle.id} failed" in caplog.text)
    assert handle.job() == job
    assert job.status is (Status.SUCCEEDED if kind == "on_success" else Status.FAILED)
    assert stage.ledger.executions(handle.id) == 1
    (event,) = recorder.of(JobCallbackFailed, handle.id)
    assert (event.callback, event.attempt) == (kind, 1)
    assert BAD[hook] in event.error
    ends = [entry.end for entry in node.store.history(handle.id)]
    assert ends == [AttemptEnd.SUCCEEDED if kind == "on_success" else AttemptEnd.FAILED]
    # The next callback runs.
    node.enqueue(body, str(stage.folder)).on_success(call_good).submit().result(30)
    wait_until(lambda: len(Calls.seen) == 1)
    node.stop()
    assert pending(node) == 0


@pytest.mark.mongodb_needs("distinct in arrays")
def test_f71_callbacks_that_block_delay_nobody(make_node: Callable[..., Scheduler], stage: Stage) -> None:
    """Callbacks block: jobs are claimed within 3 polls, heartbeats go on, a stop is in time, another node does them."""
    node = make_node(poll=POLL, threads=2)
    folder = str(stage.folder)
    blocked = [node.enqueue(body, folder).on_success(call_blocks).submit() for _ in range(5)]
    for handle in blocked:
        assert handle.result(30) == "done"
    wait_until(lambda: Calls.seen)
    before = node.store.nodes()[0].last_heartbeat
    began = time.monotonic()
    for handle in node.enqueue_many(body, [(folder,)] * 20):
        handle.result(30)
    assert time.monotonic() - began <= 3 * POLL * SCALE
    wait_until(lambda: node.store.nodes()[0].last_heartbeat > before + timedelta(seconds=0.5), 5)
    assert busy(node) == 0
    began = time.monotonic()
    assert node.stop(2).drained
    assert time.monotonic() - began <= 4.0
    # What was not done is done by another node: at least once each.
    Calls.gate.set()
    make_node()
    wait_until(lambda: {job_id for job_id, _ in Calls.seen} == {handle.id for handle in blocked}, 20)


def test_f71_a_callback_that_submits_a_job(make_node: Callable[..., Scheduler], stage: Stage) -> None:
    """A callback submits a new job: it runs, and the outcome of its own job is untouched."""
    node = Calls.scheduler = make_node()
    folder = str(stage.folder)
    for target, kind in ((body, "on_success"), (failing, "on_failure")):
        builder: Any = node.enqueue(target, folder).with_param("folder", folder)
        job = getattr(builder, kind)(call_submits).submit().wait(30)
        assert job.status is (Status.SUCCEEDED if kind == "on_success" else Status.FAILED)
    wait_until(lambda: len(Calls.made) == 2)
    assert [handle.result(30) for handle in Calls.made] == ["done", "done"]


def test_f71_a_callback_that_cancels_its_own_job(make_node: Callable[..., Scheduler], stage: Stage) -> None:
    """A callback cancels its own job: false, for it has settled; SUCCEEDED stays SUCCEEDED, FAILED FAILED."""
    node = Calls.scheduler = make_node()
    folder = str(stage.folder)
    good = node.enqueue(body, folder).on_success(call_cancels_itself).submit()
    bad = node.enqueue(failing, folder).on_failure(call_cancels_itself).submit()
    assert good.result(30) == "done"
    bad.wait(30)
    wait_until(lambda: len(Calls.answers) == 2)
    assert Calls.answers == [False, False]
    assert (good.status, bad.status) == (Status.SUCCEEDED, Status.FAILED)


def test_f71_a_node_that_lacks_the_callback(make_node: Callable[..., Scheduler], stage: Stage) -> None:
    """The executing node does not have the callback's function: told as a failed callback; the outcome stands."""
    client = make_node(start=False)
    client.job(name="only-there")(call_good)
    node = make_node()
    recorder = Recorder(node)
    handle = client.enqueue(body, str(stage.folder)).on_success(call_good).submit()
    assert handle.result(30) == "done"
    wait_until(lambda: recorder.count(JobCallbackFailed))
    (event,) = recorder.of(JobCallbackFailed)
    assert "only-there" in event.error
    assert handle.status is Status.SUCCEEDED
    assert node.enqueue(body, str(stage.folder)).submit().result(30) == "done"
    assert Calls.seen == []


def test_f71_a_callback_whose_store_is_away(stage: Stage, faulty: FaultyStore) -> None:
    """The store goes away while a callback runs and raises: it is still told, done, and not run a second time."""
    node = stage.node(faulty.store)
    recorder = Recorder(node)
    handle = node.enqueue(body, str(stage.folder)).on_success(call_waits_and_raises).submit()
    wait_until(lambda: Calls.seen)
    assert handle.result(30) == "done"
    with faulty.outage():
        Calls.gate.set()
        wait_until(lambda: faulty.failed["callback_done"] or faulty.failed["now"])
    wait_until(lambda: recorder.count(JobCallbackFailed) == 1)
    node.enqueue(body, str(stage.folder)).on_success(call_good).submit().result(30)
    wait_until(lambda: len(Calls.seen) == 2)
    node.stop()
    assert pending(node) == 0


def call_waits_and_raises(context: Any, argument: Any) -> None:
    call_blocks(context, argument)
    raise LookupError("a callback fails")


def test_f71_a_listener_survives_a_failing_callback(
    make_node: Callable[..., Scheduler], stage: Stage
) -> None:
    """Failing callbacks and failing listeners together: 50 jobs SUCCEEDED, 50 failures told to the good listener."""
    node = make_node()
    listeners = Three(node, raises)
    builders = [node.enqueue(body, str(stage.folder)).on_success(call_raises) for _ in range(50)]
    for handle in node.submit_many(builders):
        assert handle.result(30) == "done"
    told = [JobStarted, JobCompleted, JobCallbackFailed]
    wait_until(lambda: len(listeners.third) == 50 * len(told))
    assert [sum(isinstance(event, kind) for event in listeners.first) for kind in told] == [50, 50, 50]
    assert running(node).state == "running"


def test_f71_the_chain_goes_on() -> None:
    """A success callback that raises does not stop the next step."""
    not_yet("workflow")


def test_f71_a_completion_callback_of_a_batch_that_raises() -> None:
    """The batch's outcome stands."""
    not_yet("batch")
