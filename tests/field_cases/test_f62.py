"""F62: cancel and completion at the same moment; whoever commits first is the truth, for everybody."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final
from uuid import UUID

import pytest

from ratchet import (
    AttemptEnd,
    Backoff,
    CancellationRequested,
    Job,
    JobCanceled,
    JobCanceling,
    JobCompleted,
    JobDlq,
    JobFailed,
    JobRetrying,
    Scheduler,
    Status,
    current_job,
)
from ratchet.domain.lifecycle import Trigger
from ratchet.domain.settlement import Change, RunCallback, Settlement
from ratchet.spi.store import ClaimRequest, JobStore, Settled
from tests.conftest import not_yet
from tests.field_cases.exact import Recorder
from tests.field_cases.faults import FaultyStore
from tests.field_cases.kit import wait_until
from tests.field_cases.stage import Stage, each_store, running, stage_on, together

pytestmark = pytest.mark.field_case("F62")

TERMINAL: Final = (JobCompleted, JobCanceled, JobFailed)


class Meeting:
    """Where body and canceller of one round meet, by the job's number; both are in this process."""

    places: ClassVar[dict[int, threading.Barrier]] = {}
    lead: ClassVar[float] = 0.0
    callbacks: ClassVar[Counter[UUID]] = Counter()

    @classmethod
    def come(cls, number: int) -> None:
        """The body's side: meet the canceller, then give it the lead that it has been found to need."""
        cls.places[number].wait(30)
        time.sleep(cls.lead)  # aims at a race; to spin would keep the interpreter from the canceller


def succeed(number: int) -> str:
    """Meets the canceller and is done."""
    Meeting.come(number)
    return "done"


def fail(number: int) -> None:
    """Meets the canceller and fails; a second attempt is told at once that it is one too many."""
    if current_job().attempt == 1:
        Meeting.come(number)
    raise ValueError("no")


def obey(number: int) -> str:
    """Meets the canceller, and stops if it has been asked to by then."""
    Meeting.come(number)
    current_job().raise_if_cancellation_requested()
    return "done"


async def succeed_async(number: int) -> str:
    """The same on the loop: only this job is on it."""
    Meeting.come(number)
    return "done"


def called_back(context: Any, argument: object) -> None:
    """Counts."""
    Meeting.callbacks[context.id] += 1


@dataclass
class Aim:
    """Keeps the canceller near the moment of the completion's commit: later when it won, earlier when it lost.

    Earlier than at once is a lead, which the body gives: where cancel makes more round trips than completion.
    """

    seconds: float = 0.001
    step: float = 0.0005

    def wait(self) -> None:
        """Let so much time pass: this aims at a race, it synchronises nothing."""
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass

    def learn(self, won: bool) -> None:
        self.seconds += self.step if won else -self.step
        Meeting.lead = max(0.0, -self.seconds)


@dataclass
class Round:
    """One job, what cancel answered, and what became of it."""

    job_id: UUID
    answer: bool
    again: bool
    job: Job


class Story:
    """Rounds of one kind over one node, canceled from it or from another one."""

    def __init__(self, stage: Stage, body: Callable[..., Any], *, other: bool, **options: Any) -> None:
        self.node = stage.node(threads=2, async_=2)
        self.canceller = stage.node(start=False) if other else self.node
        self.recorder = Recorder(self.node)
        self.elsewhere = Recorder(self.canceller) if other else self.recorder
        self.body, self.options = body, options
        self.rounds: list[Round] = []
        self.callbacks: Counter[UUID] = Counter()
        Meeting.callbacks.clear()

    def play(self, rounds: int) -> Story:
        """So many rounds, one after another."""
        aim = Aim()
        for number in range(rounds):
            Meeting.places[number] = barrier = threading.Barrier(2)
            builder = self.node.enqueue(self.body, number)
            builder.on_success(called_back).on_failure(called_back)
            if retries := self.options.get("max_retries"):
                builder.with_max_retries(retries).with_backoff(Backoff.none())
            handle = builder.submit()
            barrier.wait(30)
            aim.wait()
            answer = self.canceller.cancel(handle.id)
            job = handle.wait(30)
            self.rounds.append(Round(handle.id, answer, self.canceller.cancel(handle.id), job))
            aim.learn(answer)
        Meeting.lead = 0.0
        wait_until(lambda: running(self.node).known == 0, 30, "every body has ended")
        self.node.stop()  # waits for callbacks, and gives every listener its events
        self.callbacks = Counter(Meeting.callbacks)
        return self

    def of(self, answer: bool) -> list[Round]:
        """The rounds in which cancel answered so; a story without any proves nothing."""
        chosen = [each for each in self.rounds if each.answer is answer]
        assert chosen, f"in {len(self.rounds)} rounds cancel never returned {answer}"
        return chosen

    def terminal(self, each: Round) -> list[type]:
        """The terminal events of a round on the executing node."""
        return [type(event) for kind in TERMINAL for event in self.recorder.of(kind, each.job_id)]

    def ends(self, each: Round) -> list[AttemptEnd]:
        return [entry.end for entry in self.node.store.history(each.job_id)]


def check_canceled(story: Story) -> None:
    """Cancel returned true: CANCELED, no callback, no result, one terminal event, one end."""
    for each in story.of(True):
        assert each.job.status is Status.CANCELED
        assert each.job.result is None
        assert story.callbacks[each.job_id] == 0
        assert story.terminal(each) == [JobCanceled]
        assert story.recorder.count(JobDlq, each.job_id) == 0


def check_again(story: Story) -> None:
    """A second cancel returns false, whatever the first one did, and changes nothing."""
    assert [each.again for each in story.rounds] == [False] * len(story.rounds)
    for each in story.rounds:
        assert story.node.get(each.job_id) == each.job


@pytest.fixture(scope="module", params=["same node", "other node"])
def canceller(request: pytest.FixtureRequest) -> str:
    """From where it is canceled."""
    return str(request.param)


@pytest.fixture(scope="module", params=each_store())
def story(
    request: pytest.FixtureRequest,
    canceller: str,
    tmp_path_factory: pytest.TempPathFactory,
    scaled: Callable[..., int],
) -> Iterator[Story]:
    """1,000 rounds (scaled) of a body that returns; the clauses of the case look at them."""
    stage = stage_on(request.param, tmp_path_factory.mktemp("f62"), __name__)
    story = Story(stage, succeed, other=canceller == "other node").play(scaled(1000, least=50))
    yield story
    stage.close()


def test_f62_cancel_true_leaves_canceled(story: Story) -> None:
    """Cancel returned true: CANCELED, no success callback, result absent, no event of success."""
    for each in story.of(True):
        assert each.job.status is Status.CANCELED
        assert each.job.result is None
        assert each.job.last_error is None
        assert story.callbacks[each.job_id] == 0
        assert story.recorder.count(JobCompleted, each.job_id) == 0


def test_f62_cancel_false_leaves_succeeded(story: Story) -> None:
    """Cancel returned false: SUCCEEDED with its result and its callback, and no event of a cancel."""
    for each in story.of(False):
        assert each.job.status is Status.SUCCEEDED
        assert each.job.result == '"done"'
        assert story.callbacks[each.job_id] == 1
        assert story.elsewhere.count(JobCanceling, each.job_id) == 0
        assert story.recorder.count(JobCanceled, each.job_id) == 0


def test_f62_exactly_one_terminal_event(story: Story) -> None:
    """Never both events: exactly one terminal event per round, the one that cancel's answer promised."""
    for each in story.rounds:
        assert story.terminal(each) == [JobCanceled if each.answer else JobCompleted]


def test_f62_a_second_cancel_is_false(story: Story) -> None:
    """A second cancel returns false, whatever the first one did, and changes nothing."""
    check_again(story)


def test_f62_the_history_shows_one_end(story: Story) -> None:
    """Attempt history shows one end per round, the one that cancel's answer promised."""
    for each in story.rounds:
        assert story.ends(each) == [AttemptEnd.CANCELED if each.answer else AttemptEnd.SUCCEEDED]


@pytest.mark.parametrize("body", [succeed_async, obey])
def test_f62_the_same_for_other_bodies(stage: Stage, scaled: Callable[..., int], body: Any) -> None:
    """A body on the loop, and one that asks whether it should stop: the same truth in every round."""
    story = Story(stage, body, other=False).play(scaled(300, least=30))
    check_canceled(story)
    for each in story.of(False):
        assert each.job.status is Status.SUCCEEDED
        assert story.callbacks[each.job_id] == 1
        assert story.terminal(each) == [JobCompleted]
        assert story.ends(each) == [AttemptEnd.SUCCEEDED]
    check_again(story)


def test_f62_cancel_and_permanent_failure_agree(stage: Stage, scaled: Callable[..., int]) -> None:
    """Failure instead of success: true leaves CANCELED without error, callback and DLQ entry; false leaves FAILED."""
    story = Story(stage, fail, other=False).play(scaled(300, least=30))
    check_canceled(story)
    for each in story.of(False):
        assert each.job.status is Status.FAILED
        assert story.callbacks[each.job_id] == 1
        assert story.terminal(each) == [JobFailed]
        assert story.recorder.count(JobDlq, each.job_id) == 1
        assert story.ends(each) == [AttemptEnd.FAILED]
    check_again(story)


def test_f62_cancel_and_automatic_retry_agree(stage: Stage, scaled: Callable[..., int]) -> None:
    """A retry instead of success: true leaves CANCELED whichever side of the retry it met, false FAILED."""
    story = Story(stage, fail, other=False, max_retries=1).play(scaled(300, least=30))
    for each in story.rounds:
        ends = story.ends(each)
        retried = story.recorder.count(JobRetrying, each.job_id)
        assert ends.count(AttemptEnd.FAILED) == retried + (not each.answer)
        assert each.job.status is (Status.CANCELED if each.answer else Status.FAILED)
        assert story.terminal(each) == [JobCanceled if each.answer else JobFailed]
        assert story.callbacks[each.job_id] == (not each.answer)
    check_again(story)


def test_f62_a_canceled_step_starts_no_next_one() -> None:
    """Cancel returned true: the next step of the chain does not run."""
    not_yet("workflow")


# -- at the store: two handles, two writers, one barrier


@pytest.mark.mongodb_needs("distinct in arrays")
def test_f62_exactly_one_of_two_writers_is_applied(
    open_here: Callable[..., JobStore], stage: Stage, scaled: Callable[..., int]
) -> None:
    """Completion and cancel reach the store from two nodes at a barrier: one is applied, with all it brings."""
    one, two = open_here(), open_here()
    submitter = stage.node(one, start=False)
    won: Counter[Trigger] = Counter()
    for number in range(scaled(1000, least=50)):
        job_id = submitter.enqueue(succeed, number).submit().id
        (claim,) = one.claim(ClaimRequest(incarnation="n", limits={"threads": 1})).claims
        barrier = threading.Barrier(2)
        success = Settlement(
            Change(Trigger.SUCCEED, job_id, claim.claim_seq, result='"done"'),
            (RunCallback("on_success", "m:f", '"done"'),),
        )
        cancel = Settlement(Change(Trigger.CANCEL_RUNNING, job_id))

        def write(store: JobStore, what: Settlement, barrier: Any = barrier) -> tuple[Trigger, Any]:
            barrier.wait(30)
            return what.change.trigger, store.settle(what)

        answers = together(partial(write, one, success), partial(write, two, cancel))
        (winner,) = [trigger for trigger, answer in answers if isinstance(answer, Settled)]
        won[winner] += 1
        job = one.get(job_id)
        assert job is not None
        (entry,) = one.history(job_id)
        assert entry.trigger is winner
        # What is not told as pending is not run: the callback is there exactly if the success is.
        one.forget_node("n")
        pending = one.take_callbacks("other", grace=entry.duration, limit=10)
        for each in pending:
            one.callback_done(each.job_id, each.claim_seq, each.name)
        if winner is Trigger.SUCCEED:
            assert (job.status, job.result, len(pending)) == (Status.SUCCEEDED, '"done"', 1)
        else:
            assert (job.status, job.result, len(pending)) == (Status.CANCELED, None, 0)
    print(dict(won))


def test_f62_of_ten_cancels_at_once_one_is_true(make_node: Callable[..., Scheduler], stage: Stage) -> None:
    """Ten cancels of one running job, released together: one answers true, and there is one event of each kind."""
    node = make_node()
    recorder = Recorder(node)
    for number in range(20):
        Meeting.places[number] = barrier = threading.Barrier(2)
        handle = node.enqueue(succeed, number).submit()
        wait_until(lambda barrier=barrier: barrier.n_waiting == 1, what="the body is there")  # type: ignore[misc]
        gate = threading.Barrier(10)

        def cancel(handle: Any = handle, gate: Any = gate) -> bool:
            gate.wait(30)
            return node.cancel(handle.id)

        assert sorted(together(*[cancel] * 10)) == [False] * 9 + [True]
        barrier.wait(30)
        wait_until(lambda: running(node).known == 0)
        wait_until(lambda handle=handle: recorder.count(JobCanceled, handle.id))  # type: ignore[misc]
        assert recorder.count(JobCanceling, handle.id) == 1
        assert len(node.store.history(handle.id)) == 1
    node.stop()
    assert recorder.count(JobCanceled) == recorder.count(JobCanceling) == 20


def test_f62_a_job_canceled_in_progress_stops_nobody(make_node: Callable[..., Scheduler]) -> None:
    """After cancels of running jobs the node goes on: 20 further jobs succeed, and no slot is lost."""
    node = make_node(threads=2)
    for number in range(4):
        Meeting.places[number] = barrier = threading.Barrier(2)
        handle = node.enqueue(succeed, number).submit()
        wait_until(lambda barrier=barrier: barrier.n_waiting == 1, what="the body is there")  # type: ignore[misc]
        assert node.cancel(handle.id)
        barrier.wait(30)
    for each in node.enqueue_many(plain, [() for _ in range(20)]):
        each.result(30)
    wait_until(lambda: running(node).known == 0)
    assert running(node).parts.threads.busy() == 0


def plain() -> None:
    """An ordinary job."""


def stubborn(number: int) -> str:
    """Answers a request of ours with its own error instead."""
    Meeting.places[number].wait(30)
    Meeting.places[number].wait(30)
    raise CancellationRequested("my own reason")


def test_f62_what_a_canceled_body_does_afterwards_is_not_written(make_node: Callable[..., Scheduler]) -> None:
    """A canceled body that then returns, raises, or raises a cancellation: still CANCELED, one end, no error."""
    node = make_node()
    recorder = Recorder(node)
    for number, body in enumerate((succeed, fail, obey, stubborn)):
        Meeting.places[number] = barrier = threading.Barrier(2)
        handle = node.enqueue(body, number).on_failure(called_back).on_success(called_back).submit()
        wait_until(lambda barrier=barrier: barrier.n_waiting == 1, what="the body is there")  # type: ignore[misc]
        if body is stubborn:
            barrier.wait(30)
        assert node.cancel(handle.id)
        before = handle.job()
        barrier.wait(30)
        wait_until(lambda: running(node).known == 0)
        wait_until(lambda handle=handle: recorder.count(JobCanceled, handle.id))  # type: ignore[misc]
        assert handle.job() == before
        assert Meeting.callbacks[handle.id] == 0
        assert [entry.end for entry in node.store.history(handle.id)] == [AttemptEnd.CANCELED]
    node.stop()
    assert recorder.count(JobCanceled) == 4


def test_f62_a_canceled_body_that_ends_in_an_outage_is_told_and_forgotten(
    stage: Stage, faulty: FaultyStore
) -> None:
    """Canceled, and the store is away when the body ends: the event comes all the same, and the claim is let go."""
    node = stage.node(faulty.store)
    recorder = Recorder(node)
    Meeting.places[0] = barrier = threading.Barrier(2)
    handle = node.enqueue(obey, 0).submit()
    wait_until(lambda: barrier.n_waiting == 1, what="the body is there")
    assert node.cancel(handle.id)
    with faulty.outage():
        barrier.wait(30)
        wait_until(lambda: recorder.count(JobCanceled, handle.id) == 1)
        wait_until(lambda: running(node).known == 0)
    assert node.enqueue(plain).submit().wait(30).status is Status.SUCCEEDED
    assert handle.status is Status.CANCELED
