"""F64: paused, yet it ran. A pause that was acknowledged holds until somebody resumes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from ratchet import Backoff, Job, JobHandle, JobOptions, JobPaused, JobResumed, Scheduler, Status
from ratchet.domain.lifecycle import Trigger
from ratchet.domain.settlement import Change, Settlement
from ratchet.spi.store import Applied, ClaimRequest, JobStore, Refused
from tests.conftest import not_yet
from tests.field_cases.exact import Recorder
from tests.field_cases.faults import FaultyStore
from tests.field_cases.kit import Ledger, wait_until
from tests.field_cases.stage import Stage, each_store, running, stage_on, together

pytestmark = pytest.mark.field_case("F64")

CLAIMERS = 4
POLLS = 10


def body(folder: str) -> None:
    """One row in the ledger."""
    with Ledger(folder).entry():
        pass


@dataclass
class Claimers:
    """Nodes of this process, each on a handle of its own; hints reach only the one that was submitted to."""

    stage: Stage
    stores: list[FaultyStore] = field(default_factory=list)
    nodes: list[Scheduler] = field(default_factory=list)

    def start(self) -> Claimers:
        """Four new ones, all claiming."""
        self.stores = [self.stage.faulty() for _ in range(CLAIMERS)]
        # Each sees a job in well under its poll interval after it was submitted, or 10 ms later at most.
        # None claims ahead: what waited for a slot would go back after 10 ms, and be claimed once more.
        self.nodes = [self.stage.node(store.store, threads=2, poll=0.01, ahead=0.0) for store in self.stores]
        return self

    def stop(self) -> None:
        for node in self.nodes:
            node.stop(5)

    def polls(self, count: int = POLLS) -> None:
        """Every one of them polls so often."""
        seen = [store.calls["claim"] for store in self.stores]
        for store, calls in zip(self.stores, seen, strict=True):
            wait_until(lambda s=store, c=calls: s.calls["claim"] >= c + count + 1, 30, "the polls")  # type: ignore[misc]


@dataclass
class Round:
    """One job that was due at once, what pause answered, and the job right after."""

    handle: JobHandle[None]
    answer: bool
    after: Job


@dataclass
class Story:
    """All rounds, what the paused ones were at every look, and how often each job had run by then."""

    ledger: Ledger
    rounds: list[Round]
    looks: list[list[Job]] = field(default_factory=list)
    runs: dict[str, dict[UUID, int]] = field(default_factory=dict)
    resumed: list[Job] = field(default_factory=list)
    ended: dict[UUID, Job] = field(default_factory=dict)

    def of(self, answer: bool) -> list[Round]:
        chosen = [each for each in self.rounds if each.answer is answer]
        assert chosen, f"in {len(self.rounds)} rounds pause never returned {answer}"
        return chosen

    def count(self, when: str) -> None:
        rows = self.ledger.rows()
        self.runs[when] = {
            each.handle.id: sum(row.job == each.handle.id for row in rows) for each in self.rounds
        }


def play(stage: Stage, rounds: int) -> Story:
    """Submit due now and pause at once, again and again; then ten polls, a restart of all nodes, a resume."""
    claimers = Claimers(stage).start()
    story = Story(stage.ledger, [])
    node, delay = claimers.nodes[0], 0.0
    submitter = stage.node(start=False)  # a started one would mostly claim its job with the insert
    for _ in range(rounds):
        handle = submitter.enqueue(body, str(stage.folder)).submit()
        end = time.perf_counter() + delay
        while time.perf_counter() < end:  # aims at the moment of the claim; it synchronises nothing
            pass
        answer = node.pause(handle.id)
        job = handle.job()
        assert job is not None
        story.rounds.append(Round(handle, answer, job))
        delay = min(max(0.0, delay + (0.0002 if answer else -0.0002)), 0.01)
    paused = [each.handle for each in story.rounds if each.answer]

    def look() -> None:
        story.looks.append(list(node.store.get_many([handle.id for handle in paused])))

    for _ in range(POLLS):
        look()
        claimers.polls(1)
    story.count("polls")
    claimers.stop()
    claimers.start()
    node = claimers.nodes[0]
    claimers.polls()
    look()
    story.count("restart")
    claimers.stop()  # to see what resume leaves before anybody claims it
    for handle in paused:
        assert node.resume(handle.id)
    story.resumed = list(node.store.get_many([handle.id for handle in paused]))
    claimers.start()
    for each in story.rounds:
        story.ended[each.handle.id] = each.handle.wait(30)
    claimers.polls()
    story.count("end")
    return story


@pytest.fixture(scope="module", params=each_store())
def story(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, scaled: Callable[..., int]
) -> Iterator[Story]:
    """500 rounds (scaled); the clauses of the case look at them."""
    stage = stage_on(request.param, tmp_path_factory.mktemp("f64"), __name__)
    yield play(stage, scaled(500, least=50))
    stage.close()


def test_f64_pause_true_means_no_execution_in_the_next_ten_polls(story: Story) -> None:
    """Pause returned true: 0 executions while each of 4 claimers polls 10 times."""
    assert {story.runs["polls"][each.handle.id] for each in story.of(True)} == {0}


def test_f64_pause_true_means_paused_throughout(story: Story) -> None:
    """Pause returned true: PAUSED at every look, never claimed, and the same row as right after the pause."""
    after = {each.handle.id: each.after for each in story.of(True)}
    assert len(story.looks) == POLLS + 1
    for look in story.looks:
        assert {job.id: job for job in look} == after
        assert {(job.status, job.claim_seq, job.picked_by) for job in look} == {(Status.PAUSED, 0, None)}


def test_f64_paused_survives_a_restart_of_every_node(story: Story) -> None:
    """After all nodes were stopped and started anew: still PAUSED, still 0 executions."""
    assert {job.status for job in story.looks[-1]} == {Status.PAUSED}
    assert {story.runs["restart"][each.handle.id] for each in story.of(True)} == {0}


def test_f64_pause_false_means_it_was_running_and_finishes(story: Story) -> None:
    """Pause returned false: the job was RUNNING (or had ended by then), and it ends SUCCEEDED after 1 execution."""
    for each in story.of(False):
        assert each.after.status in (Status.RUNNING, Status.SUCCEEDED)
        assert each.after.claim_seq == 1
        assert story.ended[each.handle.id].status is Status.SUCCEEDED
        assert story.runs["end"][each.handle.id] == 1


def test_f64_resume_restores_pending_with_its_due_time(story: Story) -> None:
    """Resume: PENDING, with the due time that it had before the pause."""
    due = {each.handle.id: each.after.scheduled_time for each in story.of(True)}
    assert {job.id: job.scheduled_time for job in story.resumed} == due
    assert {(job.status, job.paused_from_status) for job in story.resumed} == {(Status.PENDING, None)}
    for job in story.resumed:
        assert job.scheduled_time == job.created_at


def test_f64_resumed_runs_exactly_once(story: Story) -> None:
    """Resume: exactly 1 execution, and SUCCEEDED by the first claim."""
    for each in story.of(True):
        assert story.runs["end"][each.handle.id] == 1
        job = story.ended[each.handle.id]
        assert (job.status, job.claim_seq) == (Status.SUCCEEDED, 1)


def test_f64_ten_concurrent_resumes_are_one(stage: Stage) -> None:
    """10 resumes at once from 4 nodes: one answers true, one event, and still exactly 1 execution."""
    claimers, submitter = Claimers(stage).start(), stage.node(start=False)
    recorders = [Recorder(node, JobResumed) for node in claimers.nodes]
    for _ in range(10):
        handle = submitter.schedule(timedelta(hours=1), body, str(stage.folder)).submit()
        assert claimers.nodes[0].pause(handle.id)
        ready = submitter.enqueue(body, str(stage.folder)).submit()
        while not claimers.nodes[0].pause(ready.id):  # the claimers were quicker: another one
            ready.wait(30)
            ready = submitter.enqueue(body, str(stage.folder)).submit()
        barrier = threading.Barrier(10)

        def resume(place: int, handle: Any = ready, barrier: Any = barrier) -> bool:
            barrier.wait(30)
            return claimers.nodes[place % CLAIMERS].resume(handle.id)

        answers = together(*[lambda p=p: resume(p) for p in range(10)])
        assert sorted(answers) == [False] * 9 + [True]
        assert ready.wait(30).claim_seq == 1
        assert claimers.nodes[1].resume(ready.id) is False
        assert handle.status is Status.PAUSED
    claimers.polls()
    claimers.stop()
    executed = [row.job for row in stage.ledger.rows()]
    assert len(executed) == len(set(executed))
    assert sum(recorder.count(JobResumed) for recorder in recorders) == 10


def test_f64_pause_is_idempotent_and_told_once(make_node: Callable[..., Scheduler], stage: Stage) -> None:
    """10 pauses at once: all answer true, and there is one event; the row changes once."""
    node = make_node(start=False)
    recorder = Recorder(node)
    handle = node.enqueue(body, str(stage.folder)).submit()
    barrier = threading.Barrier(10)

    def pause() -> bool:
        barrier.wait(30)
        return node.pause(handle.id)

    assert together(*[pause] * 10) == [True] * 10
    job = handle.job()
    assert job is not None
    assert (job.status, job.version) == (Status.PAUSED, 1)
    node.stop()
    wait_until(lambda: recorder.count(JobPaused) == 1)
    assert recorder.count(JobPaused) == 1


def test_f64_work_in_a_local_queue_is_not_paused_by_name_only(
    make_node: Callable[..., Scheduler], stage: Stage
) -> None:
    """What a node has claimed ahead is RUNNING: pause says false and it runs; what is left PENDING says true."""
    node = make_node(threads=1)
    for handle in node.enqueue_many(body, [(str(stage.folder),)] * 20):  # the node learns that they are short
        handle.wait(30)
    standing_still = node.enqueue(standing, str(stage.folder)).submit()
    wait_until(lambda: stage.gates.reached("go"))
    handles = node.enqueue_many(body, [(str(stage.folder),)] * 100)
    answers = {handle.id: node.pause(handle.id) for handle in handles}
    assert any(answers.values())
    stage.gates.open("go")
    standing_still.wait(30)
    for handle in handles:
        if answers[handle.id]:
            assert handle.status is Status.PAUSED
        else:
            assert handle.wait(30).status is Status.SUCCEEDED
    wait_until(lambda: running(node).known == 0)
    for handle in handles:
        assert stage.ledger.executions(handle.id) == (not answers[handle.id])


def standing(folder: str) -> None:
    """Waits at the gate `go`."""
    from tests.field_cases.kit import Gates

    Gates(folder).wait("go")


def test_f64_no_late_write_of_an_older_copy_ends_a_pause(
    open_here: Callable[..., JobStore], stage: Stage
) -> None:
    """Every outcome of an earlier claim that arrives during the pause is refused: PAUSED, unchanged."""
    store = open_here()
    node = stage.node(store, start=False)
    options = JobOptions(max_retries=3, backoff=Backoff.none())
    (handle,) = node.enqueue_many(body, [(str(stage.folder),)], options=options)
    (claim,) = store.claim(ClaimRequest(incarnation="n", limits={"threads": 1})).claims
    retry = Settlement(Change(Trigger.RETRY, handle.id, claim.claim_seq, error="E: no", delay=timedelta()))
    store.settle(retry)
    assert node.pause(handle.id)
    before = handle.job()
    late = {
        Trigger.SUCCEED: {"result": "1"},
        Trigger.RETRY: {"error": "E: late", "delay": timedelta()},
        Trigger.FAIL: {"error": "E: late", "attempts": 2},
        Trigger.DEFER: {"delay": timedelta()},
        Trigger.RELEASE: {},
        Trigger.CRASH_FAIL: {"error": "E: late"},
        Trigger.CANCEL_RUNNING: {},
    }
    for trigger, words in late.items():
        seq = None if trigger is Trigger.CANCEL_RUNNING else claim.claim_seq
        change = Change(trigger, handle.id, seq, **words)  # type: ignore[arg-type]
        assert isinstance(store.settle(Settlement(change)), Refused), trigger
        assert handle.job() == before
    assert store.claim(ClaimRequest(incarnation="n", limits={"threads": 9})).claims == []
    assert isinstance(store.apply(Change(Trigger.RESUME, handle.id)), Applied)


def test_f64_a_job_paused_between_attempts_stays_paused(
    make_node: Callable[..., Scheduler], stage: Stage
) -> None:
    """A job paused while it waits for its retry: its due time passes and it does not run until resumed, once."""
    node = make_node()
    handle = (
        node.enqueue(fails_once, str(stage.folder))
        .with_max_retries(1)
        .with_backoff(Backoff.fixed(timedelta(seconds=0.3)))
        .submit()
    )
    wait_until(lambda: (job := handle.job()) is not None and job.attempts == 1)
    assert node.pause(handle.id)
    paused = handle.job()
    assert paused is not None
    wait_until(lambda: node.store.now() > paused.scheduled_time + timedelta(seconds=0.5))
    assert handle.job() == paused
    assert stage.ledger.executions(handle.id) == 1
    assert node.resume(handle.id)
    assert handle.wait(30).status is Status.SUCCEEDED
    assert stage.ledger.executions(handle.id) == 2


def fails_once(folder: str) -> None:
    """Fails at the first attempt."""
    with Ledger(folder).entry() as context:
        if context.attempt == 1:
            raise ValueError("once")


def test_f64_paused_through_a_re_registration_of_definitions() -> None:
    """Registering a recurring definition again leaves what is paused paused."""
    not_yet("recurring")


def test_f64_a_definition_paused_just_before_its_tick() -> None:
    """Paused at 09:59:59.9Z: the 10:00Z child or not, but none at 10:01Z."""
    not_yet("recurring")
