"""``ratchet worker --processes N``: restarts, signals, and what happens when somebody dies."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest

from ratchet.domain.lifecycle import AttemptEnd, Status
from ratchet.domain.options import JobOptions
from tests.cli import cli_jobs
from tests.cli.conftest import Worker, World, wait_until

pytestmark = pytest.mark.stores("sqlite")


def children(worker: Worker) -> list[Any]:
    found: list[Any] = psutil.Process(worker.process.pid).children()
    return found


def test_workers_are_nodes_of_their_own_and_end_together(world: World) -> None:
    """Two processes are two nodes with numbered names; one SIGTERM drains both, and the command ends with 0."""
    worker = world.worker("--processes", "2", "--name", "web")
    world.wait_for_nodes(2)
    assert {node.info.name for node in world.scheduler.store.nodes()} == {"web-1", "web-2"}
    handle = world.scheduler.enqueue_now(cli_jobs.brief, 1.0)
    world.wait_for_executions(1)
    assert worker.stop() == 0, worker.text
    assert handle.status is Status.SUCCEEDED
    assert world.scheduler.store.nodes() == []


def test_a_signal_to_the_whole_group_counts_once(world: World) -> None:
    """A terminal's Ctrl-C reaches supervisor and workers alike; running bodies are still waited for."""
    worker = world.worker("--processes", "2", "--stop-timeout", "20")
    world.wait_for_nodes(2)
    handles = [world.scheduler.enqueue_now(cli_jobs.brief, 2.0) for _ in range(4)]
    world.wait_for_executions(4)
    os.killpg(worker.process.pid, signal.SIGINT)
    assert worker.end() == 0, worker.text
    assert [handle.status for handle in handles] == [Status.SUCCEEDED] * 4


def test_a_second_signal_skips_the_wait_of_every_worker(world: World) -> None:
    """The supervisor hands the second signal on, too: bodies that never return hold up nobody."""
    handles = [world.scheduler.enqueue_now(cli_jobs.deaf) for _ in range(8)]
    worker = world.worker("--processes", "2", "--stop-timeout", "120")
    world.wait_for_executions(8)
    worker.signal()
    wait_until(lambda: worker.text.count("stopping") >= 1, "the supervisor has heard the first signal")
    worker.signal()
    assert worker.end(15) == 70, worker.text
    assert [handle.status for handle in handles] == [Status.PENDING] * 8


def test_a_killed_worker_is_replaced_and_its_job_comes_back(world: World) -> None:
    """After SIGKILL of one worker another takes its place, and the job it ran is run again."""
    worker = world.worker("--processes", "2")
    world.wait_for_nodes(2)
    handle = world.scheduler.enqueue_now(cli_jobs.brief, 3.0)
    world.wait_for_executions(1)
    victim = int(world.ledger()[0][2])
    before = {each.pid for each in children(worker)}
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len({each.pid for each in children(worker)} - before) == 1, "a new worker")
    assert handle.wait(30).status is Status.SUCCEEDED
    ends = [each.end for each in world.scheduler.store.history(handle.id)]
    assert ends == [AttemptEnd.CRASHED, AttemptEnd.SUCCEEDED]
    assert worker.stop() == 0, worker.text


def test_a_worker_that_ends_with_70_is_replaced(world: World) -> None:
    """Stuck bodies cost their process, not the command."""
    options = JobOptions.of({"timeout": timedelta(seconds=1)})
    world.scheduler.enqueue(cli_jobs.deaf).with_options(options).submit()
    worker = world.worker("--processes", "2", "--threads", "2")
    worker.wait_for_line("exit code 70")
    wait_until(lambda: len(children(worker)) == 2, "a new worker")
    handle = world.scheduler.enqueue_now(cli_jobs.add, 1, 2)
    assert handle.result(timeout=30) == 3
    assert worker.stop() == 0, worker.text


@pytest.mark.parametrize("number", [signal.SIGKILL])
def test_workers_end_with_their_supervisor(world: World, number: int) -> None:
    """A killed supervisor leaves no worker behind: each drains as after SIGTERM."""
    worker = world.worker("--processes", "2")
    world.wait_for_nodes(2)
    handle = world.scheduler.enqueue_now(cli_jobs.brief, 1.0)
    world.wait_for_executions(1)
    orphans = children(worker)
    assert len(orphans) == 2
    worker.signal(number)
    worker.end()
    psutil.wait_procs(orphans, timeout=20)
    assert not [each for each in orphans if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    assert handle.status is Status.SUCCEEDED
    assert world.scheduler.store.nodes() == []


@pytest.mark.parametrize(
    ("app", "code"), [("nowhere.jobs:scheduler", 2), ("tests.cli.cli_jobs:nothing_allowed", 2)]
)
def test_workers_that_cannot_start_are_not_started_again(world: World, app: str, code: int) -> None:
    """An application that cannot run ends the whole command with the worker's own exit code."""
    worker = world.worker("--processes", "2", app=app)
    assert worker.end() == code, worker.text
    assert "started again" not in worker.text


def test_a_worker_told_to_stop_by_name_is_not_replaced(world: World) -> None:
    """SIGTERM for one worker drains that one for good; the command goes on with the other and ends with it."""
    worker = world.worker("--processes", "2")
    world.wait_for_nodes(2)
    one, other = children(worker)
    one.send_signal(signal.SIGTERM)
    world.wait_for_nodes(1)
    wait_until(lambda: len(children(worker)) == 1, "one worker less")
    other.send_signal(signal.SIGTERM)
    assert worker.end() == 0, worker.text
