"""F31: SIGTERM in the wrong microsecond, and the drain that costs an attempt.

Real processes, run by ``ratchet worker``. The storm's size follows the scale.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ratchet import Job, JobHandle, Scheduler, Status, current_job
from ratchet.domain.lifecycle import Trigger
from tests.field_cases.kit import SCALE, Gates, Ledger, append, holds, wait_until
from tests.field_cases.stage import Stage, stage_on
from tests.field_cases.worker import Worker

POLL = 0.2
GRACE = 2.0
EXIT_WITHIN = 2.0
"""A process is gone within its time-out and this."""


def short(folder: str) -> None:
    """One of the 500."""
    with Ledger(folder).entry():
        time.sleep(0.1)


def cooperative(folder: str) -> str:
    """Would take 60 s; asks whether it should stop, and says why it was to."""
    with Ledger(folder).entry() as context:
        if context.claim_seq > 1:
            return "done"
        Gates(folder).folder.joinpath("began-cooperative").touch()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if context.is_cancellation_requested():
                append(Gates(folder).folder / "reasons", f"{context.cancellation_reason}\n")
                context.raise_if_cancellation_requested()
            time.sleep(0.01)
        return "took its time"


async def awaiting(folder: str) -> str:
    """Would take 60 s on the event loop; says why its task was cancelled."""
    with Ledger(folder).entry() as context:
        if context.claim_seq > 1:
            return "done"
        Gates(folder).folder.joinpath("began-awaiting").touch()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            append(Gates(folder).folder / "reasons", f"{current_job().cancellation_reason}\n")
            raise
        return "took its time"


def stubborn(folder: str) -> str:
    """Ignores every request, in plain code."""
    with Ledger(folder).entry() as context:
        if context.claim_seq > 1:
            return "done"
        Gates(folder).folder.joinpath("began-stubborn").touch()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(0.01)
        return "took its time"


def in_a_child(folder: str) -> str:
    """The same in a child process."""
    Gates(folder).folder.joinpath("began-child").touch()
    if current_job().claim_seq > 1:
        return "done"
    time.sleep(60)
    return "took its time"


# -- (a) ------------------------------------------------------------------------------------------


@dataclass
class Storm:
    """Short jobs under a random SIGTERM every 300 ms; everything has settled."""

    stage: Stage
    jobs: list[Job]
    signals: int


@pytest.fixture(scope="module", params=[pytest.param("sqlite", marks=pytest.mark.stores("sqlite"))])
def storm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, scaled: Callable[..., int]
) -> Iterator[Storm]:
    """Part (a), played once."""
    stage = stage_on(request.param, tmp_path_factory.mktemp("f31a"), __name__)
    client = stage.node(start=False)
    try:
        workers = [stage.spawn(wait=False) for _ in range(3)]
        for worker in workers:
            worker.wait_started()
        count = scaled(500, least=150)
        handles = client.enqueue_many(short, [(str(stage.folder),)] * count)
        signals = 0
        while not holds(lambda: client.query.counts()[Status.SUCCEEDED] == count, 0.3):
            # One of those that have begun a job: on a busy machine that takes a worker longer than 300 ms.
            at_work = {row.pid for row in stage.ledger.rows()}
            victim = random.choice([worker for worker in workers if worker.pid in at_work] or [None])
            if victim is not None:
                victim.signal(signal.SIGTERM)
                workers[workers.index(victim)] = stage.spawn(wait=False)
                signals += 1
        yield Storm(stage, [job for handle in handles if (job := handle.job()) is not None], signals)
    finally:
        stage.close()


def test_f31a_none_is_lost(storm: Storm) -> None:
    """All of the jobs SUCCEEDED, though workers got SIGTERM all the time."""
    assert {job.status for job in storm.jobs} == {Status.SUCCEEDED}
    assert storm.signals >= 3, "the storm was over too soon"


def test_f31a_at_most_two_executions_each(storm: Storm) -> None:
    """Each has at most 2 executions."""
    executions = Counter(row.job for row in storm.stage.ledger.rows())
    assert len(executions) == len(storm.jobs)
    assert max(executions.values()) <= 2


def test_f31a_nothing_is_charged(storm: Storm) -> None:
    """A drain costs neither an attempt nor a crash."""
    assert {(job.attempts, job.crash_count) for job in storm.jobs} == {(0, 0)}


# -- (b) ------------------------------------------------------------------------------------------


@dataclass
class Drain:
    """A got SIGTERM while it ran bodies of every kind; B was there."""

    stage: Stage
    b: Scheduler
    a: Worker
    handles: dict[str, JobHandle[str]]
    after: list[JobHandle[None]]
    took: float
    left: dict[str, Job]

    def jobs(self) -> list[Job]:
        return [job for handle in self.handles.values() if (job := handle.job()) is not None]


def begin(stage: Stage) -> tuple[Worker, Scheduler, dict[str, JobHandle[str]]]:
    """A runs a body of every kind; a client is there, not started."""
    settings: dict[str, Any] = {"threads": 4, "async_": 4, "processes": 1, "poll": POLL / 2}
    a = stage.spawn(stop_timeout=GRACE, **settings)
    client = stage.node(start=False, name="b", **settings)
    folder = str(stage.folder)
    handles = {
        "cooperative": client.enqueue_now(cooperative, folder),
        "awaiting": client.enqueue_now(awaiting, folder),
        "stubborn": client.enqueue_now(stubborn, folder),
        "child": client.enqueue(in_a_child, folder).with_executor("processes").submit(),
    }
    for name in handles:
        wait_until((stage.folder / f"began-{name}").exists, 20, f"{name} begins")
    return a, client, handles


@pytest.fixture(scope="module", params=[pytest.param("sqlite", marks=pytest.mark.stores("sqlite"))])
def drain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drain]:
    """Part (b), played once."""
    stage = stage_on(request.param, tmp_path_factory.mktemp("f31b"), __name__)
    try:
        a, b, handles = begin(stage)
        start = time.monotonic()
        a.signal(signal.SIGTERM)
        wait_until(lambda: "SIGTERM" in a.log, 10, "A notices the signal")
        after = b.enqueue_many(short, [(str(stage.folder),)] * 5)
        a.process.wait(30)
        took = time.monotonic() - start
        left = {name: job for name, handle in handles.items() if (job := handle.job()) is not None}
        b.start()
        for handle in (*handles.values(), *after):
            handle.wait(30)
        yield Drain(stage, b, a, handles, after, took, left)
    finally:
        stage.close()


def test_f31b_no_claim_after_the_signal(drain: Drain) -> None:
    """Jobs submitted after the signal are not claimed by A: B has their first claim."""
    rows = [row for handle in drain.after for row in drain.stage.ledger.rows(handle.id)]
    assert len(rows) == 5
    assert drain.a.pid not in {row.pid for row in rows}
    assert {row.claim_seq for row in rows} == {1}


def test_f31b_process_exits_within_the_grace_time(drain: Drain) -> None:
    """With bodies that would take 60 s, one of which ignores everything, the process is gone in time."""
    assert drain.took < GRACE + EXIT_WITHIN, drain.a.log


def test_f31b_all_are_pending_and_uncharged(drain: Drain) -> None:
    """When A was gone, all were PENDING and unowned, attempts and crash counts unchanged; none was ever CANCELED."""
    found = {
        name: (job.status, job.picked_by, job.attempts, job.crash_count) for name, job in drain.left.items()
    }
    assert found == dict.fromkeys(drain.handles, (Status.PENDING, None, 0, 0))
    for handle in drain.handles.values():
        history = [each.trigger for each in drain.b.store.history(handle.id)]
        assert history == [Trigger.RELEASE, Trigger.SUCCEED]


def test_f31b_cooperative_body_is_told_shutdown(drain: Drain) -> None:
    """Cooperative bodies, in a thread and on the loop, can tell "shutdown" from "canceled"."""
    assert (drain.stage.folder / "reasons").read_text().splitlines() == ["shutdown", "shutdown"]


@pytest.mark.stores("sqlite")
def test_f31b_starts_elsewhere_within_one_poll(stage: Stage) -> None:
    """A running B starts the released job within one poll of its release (0.2 s; asserted: ten times that)."""
    a, b, handles = begin(stage)
    b.start()
    a.signal(signal.SIGTERM)
    job = handles["cooperative"]
    job.wait(30)
    released = b.store.history(job.id)[0]
    assert released.trigger is Trigger.RELEASE
    (_, second) = stage.ledger.rows(job.id)
    assert second.start - released.ended_at.timestamp() <= POLL * SCALE


def test_f31b_two_executions_in_all(drain: Drain) -> None:
    """Total executions 2, and the second one SUCCEEDED."""
    for name in ("cooperative", "awaiting", "stubborn"):
        assert drain.stage.ledger.executions(drain.handles[name].id) == 2
    assert {job.status for job in drain.jobs()} == {Status.SUCCEEDED}
    assert {job.claim_seq for job in drain.jobs()} == {2}


@pytest.mark.stores("sqlite")
@pytest.mark.parametrize("signals", [2, 20])
def test_f31b_a_second_sigterm_corrupts_nothing(stage: Stage, signals: int) -> None:
    """A second SIGTERM, and twenty in a row, only make it quicker: uncharged, never CANCELED, done elsewhere."""
    a, b, handles = begin(stage)
    start = time.monotonic()
    for _ in range(signals):
        a.signal(signal.SIGTERM)
        holds(lambda: not a.alive, 0.05)
        if not a.alive:
            break
    a.process.wait(30)
    assert time.monotonic() - start < GRACE + EXIT_WITHIN, a.log
    b.start()
    for handle in handles.values():
        job = handle.wait(30)
        assert (job.status, job.attempts, job.crash_count, job.claim_seq) == (Status.SUCCEEDED, 0, 0, 2)
        history = [each.trigger for each in b.store.history(handle.id)]
        assert history == [Trigger.RELEASE, Trigger.SUCCEED]
