"""F23: a killed worker's job never comes back.

A is a real process that gets SIGKILL; B is a node of this process, on a clock that the test moves. Where B is said to
be on another host, it cannot see whether A's process is gone and must go by its heartbeats.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ratchet import JobHandle, Scheduler, Status
from ratchet.spi.store import Node
from tests.field_cases.faults import FaultyStore, Stop
from tests.field_cases.kit import SCALE, FileClock, Gates, Ledger, stays, wait_until
from tests.field_cases.stage import Stage

pytestmark = pytest.mark.stores("sqlite")

GRACE, SWEEP = 60.0, 0.1
QUICK: Any = {"grace": GRACE, "heartbeat": 0.05, "sweep": SWEEP, "poll": 0.05, "threads": 1}


def work(folder: str) -> str:
    """J: on A it stands at a gate for ever; the node that gets it next finishes it."""
    with Ledger(folder).entry() as context:
        if context.claim_seq == 1:
            Gates(folder).wait("never")
        return context.node


def filler(folder: str) -> None:
    """Keeps B's only slot taken until A has claimed J and is dead."""
    with Ledger(folder).entry():
        Gates(folder).wait("b")


@pytest.fixture(params=["same host", "other host"])
def blind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether B must go by heartbeats alone."""
    if request.param == "other host":
        monkeypatch.setattr("platform.node", lambda: "other-host")
    return bool(request.param == "other host")


def idle_node(stage: Stage, clock: FileClock, faulty: FaultyStore) -> Scheduler:
    """B: started, and idle for 2 hours of store time."""
    b = stage.node(faulty.store, name="b", **QUICK)
    for _ in range(12):
        now = clock.advance(timedelta(minutes=10))
        wait_until(lambda now=now: b.query.nodes()[0].last_heartbeat >= now)  # type: ignore[misc]
    return b


def claimed_and_killed(stage: Stage, b: Scheduler, faulty: FaultyStore) -> tuple[JobHandle[str], Node, Stop]:
    """A starts, claims J while B's only slot is taken, and is killed; B's sweep waits at a barrier."""
    filler_job = b.enqueue_now(filler, str(stage.folder))
    wait_until(lambda: stage.ledger.executions(filler_job.id))
    a = stage.spawn(**QUICK)
    handle = b.enqueue_now(work, str(stage.folder))
    wait_until(lambda: stage.gates.reached("never"))
    barrier = faulty.hold("nodes", when="before", matches=lambda arguments: in_sweep())
    assert barrier.reached.wait(30)
    (node,) = [each for each in b.query.nodes() if each.info.pid == a.pid]
    a.kill()
    return handle, node, barrier


def in_sweep() -> bool:
    return threading.current_thread().name == "ratchet-sweep"


def until_recovered(handle: JobHandle[str], clock: FileClock, blind: bool) -> None:
    """J is taken by the first sweep that can know; without sight of the process not before A's time-out."""
    if blind:
        clock.advance(timedelta(seconds=GRACE / 2))
        stays(lambda: handle.status is Status.RUNNING, 3 * SWEEP, "A may still be alive")
        clock.advance(timedelta(seconds=GRACE / 2 + 0.001))
    wait_until(lambda: handle.status is not Status.RUNNING, SCALE * SWEEP + 2, "J is recovered")


def check(stage: Stage, handle: JobHandle[str]) -> None:
    """Two executions, the second B's; SUCCEEDED; one crash charged."""
    stage.gates.open("b")
    assert handle.result(10) == "b"
    assert stage.ledger.executions(handle.id) == 2
    job = handle.job()
    assert job is not None
    assert (job.status, job.crash_count, job.attempts, job.claim_seq) == (Status.SUCCEEDED, 1, 0, 2)


def test_f23_recovered_within_the_timeout_and_one_sweep(
    stage: Stage, file_clock: FileClock, blind: bool
) -> None:
    """B, idle for 2 h and not restarted, recovers J within heartbeat time-out + one sweep; 2 executions; SUCCEEDED.

    B has no free slot at the time: it is the sweep that leads back from RUNNING, not the claim.
    """
    faulty = stage.faulty(clock=file_clock)
    b = idle_node(stage, file_clock, faulty)
    handle, _, barrier = claimed_and_killed(stage, b, faulty)
    barrier.release()
    until_recovered(handle, file_clock, blind)
    assert handle.status is Status.PENDING
    check(stage, handle)


def test_f23_reused_name_and_pid_do_not_keep_it_alive(
    stage: Stage, file_clock: FileClock, blind: bool
) -> None:
    """A new process under A's host name and process id does not count as A being alive for J."""
    faulty = stage.faulty(clock=file_clock)
    b = idle_node(stage, file_clock, faulty)
    # It takes only async jobs, and after its first sweep it looks for orphans every 20 s: J is B's business.
    reuser = stage.spawn(**{**QUICK, "threads": 0, "sweep": 3600.0})
    handle, node, barrier = claimed_and_killed(stage, b, faulty)
    # The kernel gives a process id again when it likes: A's row is made to name the new process. The clock has
    # stood still since A's last heartbeat, so that this one does not renew it.
    name = f"{node.info.host}:{reuser.pid}"
    b.store.heartbeat(replace(node.info, pid=reuser.pid, name=name))
    assert sum(each.info.name == name for each in b.query.nodes()) == 2
    barrier.release()
    until_recovered(handle, file_clock, blind)
    check(stage, handle)
    assert reuser.alive
