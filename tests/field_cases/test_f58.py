"""F58: clocks that disagree. Store time judges; a node's own clock decides nothing.

Store time is a file that moves when the test says so. Nodes with a wrong clock are processes whose
`time.time` is off; in this process the wall clock of every node is put off at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from ratchet import Backoff, Job, JobHandle, Scheduler, Selection, Status
from ratchet.domain.lifecycle import Execution, Trigger
from ratchet.domain.settlement import Change, Settlement
from ratchet.spi.store import RecoverRequest, Settled
from tests.conftest import not_yet
from tests.field_cases.faults import FaultyStore
from tests.field_cases.kit import START, FileClock, Gates, Ledger, wait_until
from tests.field_cases.stage import Stage, running
from tests.field_cases.worker import ROOT, Worker

pytestmark = pytest.mark.field_case("F58")

SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)
TEN: Final = 10 * MINUTE
STEP: Final = 10 * SECOND
QUICK: Final[dict[str, Any]] = {"threads": 2, "grace": 30.0, "heartbeat": 0.05, "sweep": 0.05, "poll": 0.05}


def standing(folder: str, gate: str) -> None:
    """J: as long as its gate is closed."""
    with Ledger(folder).entry():
        Gates(folder).wait(gate)


def quick(folder: str) -> None:
    """One row in the ledger."""
    with Ledger(folder).entry():
        pass


# -- nodes whose clocks are wrong


class Skewed(Worker):
    """A worker process whose wall clock is off by so much."""

    def __init__(self, stage: Stage, offset: timedelta) -> None:
        self.folder = stage.folder
        words = json.dumps({"url": stage.url, "allow": stage.allow, **QUICK})
        code = f"from tests.field_cases.test_f58 import main; main({offset.total_seconds()})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "FIELD_CASE": words, "FIELD_CASE_FOLDER": str(self.folder)},
        )


def main(offset: float) -> None:
    """`ratchet worker`; every clock of its own that tells the time of day is wrong."""
    from ratchet.cli import main

    put_off(lambda name, function: setattr(time, name, function), offset)
    sys.argv[1:] = ["worker", "tests.field_cases.worker:application", "--app-dir", str(ROOT)]
    main()


def put_off(put: Callable[[str, Any], None], offset: float) -> None:
    """Replace the wall clock by one that is off by `offset` seconds."""
    right, right_ns = time.time, time.time_ns
    put("time", lambda: right() + offset)
    put("time_ns", lambda: right_ns() + int(offset * 1e9))


class Three:
    """A, whose clock is right, B, ten minutes fast, and C, ten minutes slow; A works before the others start."""

    def __init__(self, stage: Stage, clock: FileClock) -> None:
        self.stage, self.clock = stage, clock
        self.store = stage.open(clock=clock)
        self.client = stage.node(self.store, start=False)
        self.workers: dict[str, Skewed] = {}
        self._jobs: dict[str, JobHandle[Any]] = {}

    def start(self, name: str) -> None:
        self.workers[name] = Skewed(self.stage, {"A": timedelta(), "B": TEN, "C": -TEN}[name])
        self.workers[name].wait_started(60)

    def give(self, gate: str, name: str) -> JobHandle[Any]:
        """A job that stands at a gate of this node, which is the only one with a free slot."""
        handle = self.client.enqueue(standing, str(self.stage.folder), gate).submit()
        wait_until(lambda: self.stage.gates.reached(gate), 30, f"{gate} begins")
        (row,) = self.stage.ledger.rows(handle.id)
        assert row.pid == self.workers[name].pid
        return handle

    def settle_down(self) -> None:
        """Every process has reported itself at this instant."""
        now, pids = self.store.now(), {each.pid for each in self.workers.values() if each.alive}
        wait_until(
            lambda: pids <= {each.info.pid for each in self.store.nodes() if each.last_heartbeat >= now},
            30, "every process reports itself",
        )  # fmt: skip

    def pass_by(self, span: timedelta) -> None:
        """Store time goes on in small steps."""
        end = self.clock.now() + span
        while self.clock.now() < end:
            self.clock.advance(STEP)
            self.settle_down()

    def recovered(self) -> dict[str, str]:
        """How many jobs each has recovered, as it reports itself."""
        by_pid = {each.info.pid: each.info.detail["recovered"] for each in self.store.nodes()}
        return {name: by_pid[each.pid] for name, each in self.workers.items() if each.alive}

    def close(self) -> None:
        for each in self.workers.values():
            each.close()


@pytest.fixture
def three(stage: Stage, file_clock: FileClock) -> Iterator[Three]:
    """The nodes of the case."""
    three = Three(stage, file_clock)
    yield three
    three.close()


@pytest.mark.stores("sqlite")
def test_f58_fast_and_slow_nodes_recover_nobody_who_lives(three: Three, stage: Stage) -> None:
    """A runs J for 2 min, grace 30 s: the sweeps of B (+10 min) and C (-10 min) change 0 jobs, J has 1 execution.

    The same for what B and C run. In the end A is killed, and its job recovered: their sweeps do work.
    """
    handles = []
    for name in ("A", "B", "C"):
        three.start(name)
        handles += [three.give(f"{name}{place}", name) for place in range(2)]
    three.pass_by(2 * MINUTE)
    three.settle_down()
    assert three.recovered() == {"A": "0", "B": "0", "C": "0"}
    for handle in handles:
        job = handle.job()
        assert job is not None
        assert (job.status, job.claim_seq, job.crash_count) == (Status.RUNNING, 1, 0)
    for gate in ("A0", "B0", "B1", "C0", "C1"):
        stage.gates.open(gate)
    for handle in (handles[0], *handles[2:]):
        assert handle.wait(30).claim_seq == 1
        assert stage.ledger.executions(handle.id) == 1
    three.workers["A"].kill()
    stage.gates.open("A1")
    three.pass_by(MINUTE)
    job = handles[1].wait(30)
    assert (job.status, job.crash_count, stage.ledger.executions(job.id)) == (Status.SUCCEEDED, 1, 2)


@pytest.mark.stores("sqlite")
def test_f58_no_node_starts_a_job_before_store_time_says_so(three: Three, stage: Stage) -> None:
    """A job delayed to 12:10:00Z store time is not started before 12:09:59Z by any node, and then by one."""
    for name in ("A", "B", "C"):
        three.start(name)
    due = START + TEN
    handle = three.client.schedule(due, quick, str(stage.folder)).submit()
    for instant in (START + SECOND, due - 2 * SECOND, due - SECOND):
        three.clock.set(instant)
        three.settle_down()
        probes = three.client.enqueue_many(quick, [(str(stage.folder),)] * 20)  # everybody polls
        for probe in probes:
            probe.wait(30)
        assert handle.status is Status.PENDING
    three.clock.set(due)
    handle.result(30)
    (row,) = stage.ledger.rows(handle.id)
    assert row.start >= (due - SECOND).timestamp()


# -- this process: every node's clock is off at once


@pytest.fixture(params=[TEN, -24 * HOUR], ids=["ten minutes fast", "a day slow"])
def off(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> timedelta:
    """The wall clock of this process is off by so much."""
    offset: timedelta = request.param
    put_off(lambda name, function: monkeypatch.setattr(time, name, function), offset.total_seconds())
    return offset


def test_f58_what_a_client_with_a_wrong_clock_submits_is_due_by_store_time(
    stage: Stage, file_clock: FileClock, off: timedelta
) -> None:
    """Delays count from store time, instants are as given, "now" is store time, whatever the client's clock says."""
    client = stage.node(stage.open(clock=file_clock), start=False)
    folder = str(stage.folder)
    due = {
        client.enqueue(quick, folder).submit().id: START,
        client.schedule(5 * MINUTE, quick, folder).submit().id: START + 5 * MINUTE,
        client.schedule(START + HOUR, quick, folder).submit().id: START + HOUR,
        client.enqueue_now(quick, folder).id: START,
    }
    assert {job.id: job.scheduled_time for job in client.query.iterate()} == due
    assert {job.created_at for job in client.query.iterate()} == {START}


def test_f58_a_node_with_a_wrong_clock_is_alive_and_punctual(
    stage: Stage, file_clock: FileClock, off: timedelta
) -> None:
    """Nodes whose clocks are off: nobody recovers anybody, a delayed job starts at its time, timings are store time."""
    stores = [stage.faulty(clock=file_clock) for _ in range(2)]
    nodes = [stage.node(store.store, **QUICK) for store in stores]
    folder = str(stage.folder)
    handle = nodes[0].enqueue(standing, folder, "J").submit()
    wait_until(lambda: stage.gates.reached("J"))
    late = nodes[0].schedule(2 * MINUTE, quick, folder).submit()
    for _ in range(12):
        assert late.status is Status.PENDING
        file_clock.advance(STEP)
        all_seen(stores, beats=1)
    late.result(10)
    stage.gates.open("J")
    job = handle.wait(10)
    assert (job.claim_seq, job.crash_count, stage.ledger.executions(handle.id)) == (1, 0, 1)
    assert_plausible(job, nodes[0].store.history(handle.id))
    assert job.picked_at == START
    assert job.ended_at is not None
    assert START + 2 * MINUTE - SECOND <= job.ended_at <= START + 2 * MINUTE
    (row,) = stage.ledger.rows(late.id)
    assert row.start >= (START + 2 * MINUTE - SECOND).timestamp()
    assert {node.parts.endings.tally.recovered for node in map(running, nodes)} == {0}


def all_seen(stores: list[FaultyStore], *, beats: int = 2) -> None:
    """Every node has reported itself, swept and polled at this instant."""
    for store in stores:
        wanted = {name: store.calls[name] + beats for name in ("heartbeat", "claim", "recover")}
        wait_until(
            lambda s=store, w=wanted: all(s.calls[name] >= w[name] for name in w),  # type: ignore[misc]
            30, "every node reports itself, sweeps and polls",
        )  # fmt: skip


def assert_plausible(job: Job, history: Any) -> None:
    """No negative duration, no end before its start."""
    entries: list[Execution] = list(history)
    for entry in entries:
        assert entry.duration >= timedelta()
        assert entry.started_at <= entry.ended_at
    if job.duration is not None:
        assert job.duration >= timedelta()
        assert job.queue_wait is not None
        assert job.queue_wait >= timedelta()
        assert job.started_at is not None
        assert job.ended_at is not None
        assert job.started_at <= job.ended_at


# -- a clock jumps while J runs


def jump_wall(monkeypatch: pytest.MonkeyPatch, clock: FileClock) -> None:
    put_off(lambda name, function: monkeypatch.setattr(time, name, function), -3600.0)


def jump_store(monkeypatch: pytest.MonkeyPatch, clock: FileClock) -> None:
    clock.set(clock.now() - HOUR)


def jump_both(monkeypatch: pytest.MonkeyPatch, clock: FileClock) -> None:
    jump_wall(monkeypatch, clock)
    jump_store(monkeypatch, clock)


JUMPS: Final = [jump_wall, jump_store, jump_both]


def ends_well(folder: str) -> None:
    """J, which succeeds."""
    standing(folder, "J")


def ends_badly(folder: str) -> None:
    """J, which fails."""
    standing(folder, "J")
    raise ValueError("no")


@pytest.mark.parametrize(("jump", "body"), [*[(jump, ends_well) for jump in JUMPS], (jump_both, ends_badly)])
def test_f58_a_clock_that_jumps_back_shortens_no_lease_and_no_duration(
    stage: Stage, file_clock: FileClock, monkeypatch: pytest.MonkeyPatch, jump: Any, body: Any
) -> None:
    """A's clock (or the store's) jumps back 1 h during J: J's duration is >= 0 and its lease is still renewed."""
    stores = [stage.faulty(clock=file_clock) for _ in range(2)]
    nodes = [stage.node(store.store, **QUICK) for store in stores]
    handle = nodes[0].enqueue(body, str(stage.folder)).submit()
    wait_until(lambda: stage.gates.reached("J"))
    file_clock.advance(10 * SECOND)
    all_seen(stores)
    jump(monkeypatch, file_clock)
    for _ in range(4):
        all_seen(stores)
        assert {node.last_heartbeat for node in nodes[0].query.nodes()} == {file_clock.now()}
        file_clock.advance(STEP)
    stage.gates.open("J")
    job = handle.wait(10)
    assert (job.claim_seq, job.crash_count, stage.ledger.executions(handle.id)) == (1, 0, 1)
    assert job.status is (Status.SUCCEEDED if body is ends_well else Status.FAILED)
    assert_plausible(job, nodes[0].store.history(handle.id))
    # And the nodes work on: what is submitted now is due now.
    assert nodes[1].enqueue(quick, str(stage.folder)).submit().wait(10).status is Status.SUCCEEDED


@pytest.mark.parametrize("end", ["cancel", "recover", "crash-fail", "retry"])
def test_f58_every_end_after_a_jump_back_has_a_plausible_duration(
    stage: Stage, file_clock: FileClock, end: str
) -> None:
    """Canceled, recovered, failed for good or retried after store time jumped back 1 h: no duration is negative."""
    lost: FaultyStore = stage.faulty(clock=file_clock)
    node = stage.node(lost.store, **QUICK)
    client = stage.node(stage.open(clock=file_clock), start=False)
    builder = client.enqueue(ends_badly, str(stage.folder))
    if end == "retry":
        builder.with_max_retries(1).with_backoff(Backoff.fixed(HOUR))
    handle = builder.submit()
    wait_until(lambda: stage.gates.reached("J"))
    incarnation = running(node).info.incarnation
    file_clock.set(START - HOUR)
    match end:
        case "cancel":
            assert client.cancel(handle.id)
        case "retry":
            stage.gates.open("J")
            wait_until(lambda: (job := handle.job()) is not None and job.attempts == 1)
        case "recover":
            lost.go_down()
            gone = RecoverRequest(grace=MINUTE, crash_budget=3, known_gone=frozenset({incarnation}))
            assert len(client.store.recover(gone).recovered) == 1
        case _:
            lost.go_down()
            change = Change(Trigger.CRASH_FAIL, handle.id, 1, error="NodeCrashed: it died")
            assert isinstance(client.store.settle(Settlement(change)), Settled)
    job = handle.job()
    assert job is not None
    history = client.store.history(handle.id)
    assert len(history) == 1
    assert_plausible(job, history)
    stage.gates.open("J")


@pytest.mark.parametrize("jump", [45 * SECOND, 24 * HOUR])
def test_f58_a_store_clock_that_jumps_forward_kills_nobody(
    stage: Stage, file_clock: FileClock, jump: timedelta
) -> None:
    """Store time jumps ahead, as after a suspended machine wakes: everybody looks dead, and nobody is recovered.

    Heartbeats are far slower than sweeps here, so that sweeps come first after the jump; the jump itself
    falls between two sweeps of each node.
    """
    words = {**QUICK, "heartbeat": 0.2}
    stores = [stage.faulty(clock=file_clock) for _ in range(3)]
    nodes = [stage.node(store.store, **words) for store in stores]
    handles = [
        node.enqueue(standing, str(stage.folder), f"J{place}").submit() for place, node in enumerate(nodes)
    ]
    wait_until(lambda: all(stage.gates.reached(f"J{place}") for place in range(3)))
    all_seen(stores, beats=1)  # they may recover by now
    for _ in range(2):
        stops = [store.hold("nodes") for store in stores]
        assert all(stop.reached.wait(30) for stop in stops)
        file_clock.advance(jump)
        for stop in stops:
            stop.release()
        all_seen(stores, beats=1)
    assert {node.parts.endings.tally.recovered for node in map(running, nodes)} == {0}
    for place, handle in enumerate(handles):
        stage.gates.open(f"J{place}")
        job = handle.wait(10)
        assert (job.status, job.claim_seq, job.crash_count) == (Status.SUCCEEDED, 1, 0)


def test_f58_an_hourly_definition_fires_once_per_hour() -> None:
    """`0 * * * *` fires once per hour for 3 h, whichever node looks."""
    not_yet("recurring")


def test_f58_leases_of_a_slow_node_are_not_born_expired() -> None:
    """Leases taken by C, ten minutes slow, last as long as anybody's."""
    not_yet("lease")


@pytest.mark.stores("sqlite")
def test_f58_without_a_clock_of_the_test_store_time_is_the_machines(stage: Stage, make_node: Any) -> None:
    """Control: the patches above do move the time that an ordinary SQLite store takes from its machine."""
    node: Scheduler = make_node(start=False)
    before: datetime = node.store.now()
    job = node.enqueue(quick, str(Path(stage.folder))).submit().job()
    assert job is not None
    assert before <= job.created_at
    with pytest.MonkeyPatch.context() as patch:
        put_off(lambda name, function: patch.setattr(time, name, function), 3600.0)
        assert node.store.now() >= before + HOUR
    assert node.query.count(Selection(created_from=before + HOUR)) == 0
