"""``ratchet worker`` as a real process: starting, signals, exit codes, logs."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from ratchet.domain.lifecycle import AttemptEnd, Status
from ratchet.domain.options import JobOptions
from tests.cli import cli_jobs
from tests.cli.conftest import World

pytestmark = pytest.mark.stores("sqlite")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def is_one_sentence(text: str) -> bool:
    """One line of the command's own, below what was logged before, and nothing else."""
    *logged, sentence = text.strip().splitlines()
    return sentence.startswith("ratchet: ") and all(" INFO " in line for line in logged)


def test_a_worker_runs_jobs_and_drains_on_sigterm(world: World) -> None:
    """A worker executes what another process submits, ends with 0 on SIGTERM and leaves no node behind."""
    worker = world.worker()
    handle = world.scheduler.enqueue_now(cli_jobs.add, 2, 3)
    assert handle.result(timeout=30) == 5
    assert worker.stop() == 0, worker.text
    assert world.scheduler.store.nodes() == []


def test_sigint_drains_as_sigterm_does(world: World) -> None:
    """Ctrl-C lets a running body finish, writes its outcome and ends with 0."""
    worker = world.worker()
    handle = world.scheduler.enqueue_now(cli_jobs.brief, 1.0)
    world.wait_for_executions(1)
    worker.signal(signal.SIGINT)
    assert worker.end() == 0, worker.text
    assert handle.status is Status.SUCCEEDED
    assert "KeyboardInterrupt" not in worker.text


def test_log_lines_name_the_job(world: World) -> None:
    """What a body logs carries its job, attempt and node, in a line for people."""
    worker = world.worker("--name", "web-1")
    handle = world.scheduler.enqueue_now(cli_jobs.add, 1, 1)
    handle.wait(30)
    worker.wait_for_line(f"[job {handle.id} attempt 1 on web-1] adding 1 and 1")
    assert worker.stop() == 0


def test_json_log_lines_name_the_job(world: World) -> None:
    """With --log-json every line is an object, and a body's record has its job, attempt and node."""
    worker = world.worker("--log-json", "--name", "web-1")
    handle = world.scheduler.enqueue_now(cli_jobs.add, 1, 1)
    handle.wait(30)
    assert worker.stop() == 0
    entries = [json.loads(line) for line in worker.text.splitlines()]
    (entry,) = [each for each in entries if each["message"] == "adding 1 and 1"]
    assert (entry["job_id"], entry["job_attempt"], entry["job_node"]) == (str(handle.id), 1, "web-1")


def test_a_worker_does_not_import_what_only_tables_need(world: World) -> None:
    """Neither rich nor SQLAlchemy is loaded in a worker on SQLite."""
    world.worker()
    handle = world.scheduler.enqueue_now(cli_jobs.loaded, "rich", "sqlalchemy", "ratchet")
    assert handle.result(timeout=30) == ["ratchet"]


def test_process_slots_run_bodies_in_children(world: World) -> None:
    """--process-slots gives a node slots whose bodies run in children of the worker."""
    worker = world.worker("--process-slots", "1", "--threads", "0", "--async", "0")
    builder = world.scheduler.enqueue(cli_jobs.in_own_process).with_executor("processes")
    assert builder.submit().result(timeout=30) == worker.process.pid
    assert worker.stop() == 0, worker.text


def test_sigterm_amid_twenty_running_jobs(world: World) -> None:
    """SIGTERM with 20 running bodies, some of which never return: each is finished or given back, nothing is
    charged, the process is gone within the time-out and 2 s, and says by 70 that bodies were left.
    """
    bodies = [(cli_jobs.cooperative, ())] * 8 + [(cli_jobs.deaf, ())] * 4 + [(cli_jobs.in_c, ())] * 4
    handles = [world.scheduler.enqueue(body, *args).submit() for body, args in bodies]
    handles += [world.scheduler.enqueue(cli_jobs.brief, 2.5).submit() for _ in range(4)]
    worker = world.worker("--threads", "20", "--stop-timeout", "4")
    world.wait_for_executions(20)

    signaled = time.monotonic()
    worker.signal()
    code = worker.end()
    took = time.monotonic() - signaled

    assert took < 6.0, worker.text
    assert code == 70, worker.text
    jobs = [handle.job() for handle in handles]
    assert {job.status for job in jobs if job} <= {Status.PENDING, Status.SUCCEEDED}
    assert [(job.attempts, job.crash_count) for job in jobs if job] == [(0, 0)] * 20
    for handle in handles:
        (ended,) = world.scheduler.store.history(handle.id)
        assert ended.end in (AttemptEnd.SUCCEEDED, AttemptEnd.RELEASED)
    assert [job.status for job in jobs[16:] if job] == [Status.SUCCEEDED] * 4
    assert world.scheduler.store.nodes() == []


def test_given_back_jobs_run_again_elsewhere(world: World) -> None:
    """A job given back by a shutdown is claimed by the next worker at once, in its second execution."""
    handle = world.scheduler.enqueue_now(cli_jobs.cooperative)
    first = world.worker("--stop-timeout", "2")
    world.wait_for_executions(1)
    assert first.stop() == 0, first.text
    assert handle.status is Status.PENDING

    second = world.worker("--stop-timeout", "2")
    world.wait_for_executions(2)
    assert second.stop() == 0
    assert [each.end for each in world.scheduler.store.history(handle.id)] == [AttemptEnd.RELEASED] * 2


@pytest.mark.parametrize("body", [cli_jobs.deaf, cli_jobs.in_c])
def test_a_second_signal_skips_the_wait(world: World, body: Callable[[], None]) -> None:
    """The second SIGTERM ends a worker whose body never returns long before the time-out; nothing is charged."""
    handle = world.scheduler.enqueue_now(body)
    worker = world.worker("--stop-timeout", "120")
    world.wait_for_executions(1)
    worker.signal()
    worker.wait_for_line("stopping within 120 s")
    assert worker.process.poll() is None

    worker.signal()
    assert worker.end(10) == 70, worker.text
    job = handle.job()
    assert job is not None
    assert (job.status, job.attempts, job.crash_count) == (Status.PENDING, 0, 0)


def test_a_worker_with_stuck_bodies_ends_with_70(world: World) -> None:
    """When half the slots hold bodies past their deadline the worker settles them, deregisters and exits with 70."""
    options = JobOptions.of({"timeout": timedelta(seconds=1)})
    handle = world.scheduler.enqueue(cli_jobs.deaf).with_options(options).submit()
    worker = world.worker("--threads", "2")
    assert worker.end() == 70, worker.text
    assert handle.status is Status.FAILED
    assert [each.end for each in world.scheduler.store.history(handle.id)] == [AttemptEnd.TIMED_OUT]
    assert world.scheduler.store.nodes() == []
    assert "unhealthy" in worker.text


def test_exit_hooks_run_and_threads_do_not_hold_up_the_end(world: World) -> None:
    """After a drained shutdown the application's exit hooks run; a thread it has left does not keep the process."""
    hooked = world.folder / "hooked"
    worker = world.worker()
    world.scheduler.enqueue_now(cli_jobs.at_exit, str(hooked)).result(timeout=30)
    assert worker.stop() == 0, worker.text
    assert hooked.exists()

    other = world.worker()
    world.scheduler.enqueue_now(cli_jobs.leave_a_thread).result(timeout=30)
    other.signal()
    assert other.end(10) == 0, other.text


def test_a_forked_child_of_a_body_has_its_own_signals(world: World) -> None:
    """SIGTERM for a child that a body forked ends that child and is not taken for one of the worker's."""
    worker = world.worker()
    for _ in range(20):
        assert world.scheduler.enqueue_now(cli_jobs.forks).result(timeout=30) == signal.SIGTERM
    assert world.scheduler.enqueue_now(cli_jobs.add, 1, 1).result(timeout=30) == 2
    assert "stopping" not in worker.text
    assert worker.stop() == 0, worker.text


def test_an_ignored_sigint_stays_ignored(world: World) -> None:
    """A worker in the background of a script, which has SIGINT ignored, is not ended by another's Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        worker = world.worker()
    finally:
        signal.signal(signal.SIGINT, before)
    world.wait_for_nodes(1)
    worker.signal(signal.SIGINT)
    assert world.scheduler.enqueue_now(cli_jobs.add, 1, 1).result(timeout=30) == 2
    assert worker.stop() == 0
    assert "SIGINT" not in worker.text


def test_a_locked_database_does_not_hold_up_the_end(world: World) -> None:
    """SIGTERM while another process holds the database's lock: the process is gone within the time-out and 2 s,
    with 1, because what it held could not be given back.
    """
    handle = world.scheduler.enqueue_now(cli_jobs.cooperative)
    worker = world.worker("--stop-timeout", "2")
    world.wait_for_executions(1)
    lock = sqlite3.connect(world.folder / "jobs.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    try:
        signaled = time.monotonic()
        worker.signal()
        assert worker.end() == 1, worker.text
        assert time.monotonic() - signaled < 4.0
    finally:
        lock.execute("ROLLBACK")
        lock.close()
    assert world.scheduler.store.counts()[Status.RUNNING] == 1
    rescuer = world.worker("--stop-timeout", "2")
    world.wait_for_executions(2)
    assert rescuer.stop() == 0
    assert handle.status is Status.PENDING


@pytest.mark.parametrize(
    ("app", "says"),
    [
        ("cli_jobs", "MODULE:NAME"),
        ("tests/cli/cli_jobs.py:scheduler", "tests.cli.cli_jobs:scheduler"),
        ("nowhere.jobs:scheduler", "there is no module 'nowhere'"),
        ("tests.cli.cli_jobs:missing", "has no 'missing'"),
        ("tests.cli.cli_jobs:NOT_A_SCHEDULER", "is not a Scheduler"),
        ("tests.cli.cli_jobs:nothing_allowed", "nothing may be executed"),
        ("os:system", "function without arguments"),
        ("tests.cli.cli_jobs:add", "missing a required argument: 'one'"),
    ],
)
def test_a_wrong_app_is_told_in_one_sentence(world: World, run_cli: Run, app: str, says: str) -> None:
    """An APP that names no runnable scheduler ends with 2 and one sentence that says what to do."""
    done = run_cli("worker", app)
    assert done.returncode == 2
    assert done.stdout == ""
    assert is_one_sentence(done.stderr), done.stderr
    assert says in done.stderr


def test_wrong_numbers_are_usage_errors(world: World, run_cli: Run) -> None:
    """A node without a single slot, and an option that is none, end with 2."""
    done = run_cli("worker", cli_jobs.APP, "--threads", "0", "--async", "0")
    assert (done.returncode, is_one_sentence(done.stderr)) == (2, True), done.stderr
    assert run_cli("worker", cli_jobs.APP, "--threads", "-1").returncode == 2
    assert run_cli("worker", cli_jobs.APP, "--nonsense").returncode == 2
    assert run_cli("worker").returncode == 2


def test_an_app_that_raises_is_an_error_with_its_line(world: World, run_cli: Run, tmp_path: Path) -> None:
    """An application whose import raises ends with 1 and names the line; --debug adds the traceback."""
    (tmp_path / "sad.py").write_text("x = 1\nraise KeyError('DB_PASSWORD=hunter2')\n", encoding="ascii")
    done = run_cli("worker", "sad:scheduler", "--app-dir", str(tmp_path))
    assert done.returncode == 1
    assert is_one_sentence(done.stderr), done.stderr
    assert "KeyError" in done.stderr
    assert "sad.py:2" in done.stderr
    assert "hunter2" not in done.stderr
    debugged = run_cli("worker", "sad:scheduler", "--app-dir", str(tmp_path), "--debug")
    assert "Traceback" in debugged.stderr


def test_a_syntax_error_is_told_with_its_own_line(world: World, run_cli: Run, tmp_path: Path) -> None:
    """An application that cannot be compiled: the sentence names its file and line, not ours."""
    (tmp_path / "sad.py").write_text("x = 1\ndef (\n", encoding="ascii")
    done = run_cli("worker", "sad:scheduler", "--app-dir", str(tmp_path))
    assert (done.returncode, is_one_sentence(done.stderr)) == (1, True), done.stderr
    assert "SyntaxError" in done.stderr
    assert "sad.py:2" in done.stderr
    assert "loading.py" not in done.stderr


def test_an_interrupted_import_is_told(world: World, run_cli: Run, tmp_path: Path) -> None:
    """A KeyboardInterrupt while the application is imported ends with 130, and says where."""
    (tmp_path / "sad.py").write_text("raise KeyboardInterrupt\n", encoding="ascii")
    done = run_cli("worker", "sad:scheduler", "--app-dir", str(tmp_path))
    assert (done.returncode, is_one_sentence(done.stderr)) == (130, True), done.stderr
    assert "interrupted while sad was being imported" in done.stderr
    assert "sad.py:1" in done.stderr


def test_an_app_that_imports_what_is_missing_is_an_error(world: World, run_cli: Run, tmp_path: Path) -> None:
    """A missing dependency of the application is not taken for a missing application."""
    (tmp_path / "sad.py").write_text("import nowhere_to_be_found\n", encoding="ascii")
    done = run_cli("worker", "sad:scheduler", "--app-dir", str(tmp_path))
    assert (done.returncode, is_one_sentence(done.stderr)) == (1, True), done.stderr
    assert "nowhere_to_be_found" in done.stderr


def test_a_database_that_is_too_new_is_an_error(world: World, run_cli: Run) -> None:
    """A store that cannot be used ends the start with 1 and one sentence."""
    world.scheduler.store.counts()
    with sqlite3.connect(world.folder / "jobs.db") as database:
        database.execute("INSERT INTO ratchet_schema (version, applied_at) VALUES (99, 0)")
    database.close()
    done = run_cli("worker", cli_jobs.APP)
    assert (done.returncode, is_one_sentence(done.stderr)) == (1, True), done.stderr
    assert "99" in done.stderr


def test_a_name_in_use_refuses_the_start(world: World, run_cli: Run) -> None:
    """A second worker under the name of a living one does not start, and the first goes on."""
    worker = world.worker("--name", "only-one")
    world.wait_for_nodes(1)
    done = run_cli("worker", cli_jobs.APP, "--name", "only-one")
    assert (done.returncode, is_one_sentence(done.stderr)) == (2, True), done.stderr
    assert worker.stop() == 0


def test_no_secret_of_a_url_is_written(world: World, run_cli: Run) -> None:
    """A URL with a password appears in no output, whatever is wrong with it."""
    for url in (
        "postgresql://me:s3cr3t-9@db.example/x",
        "nonsense://me:s3cr3t-9@db.example/x",
        "me:s3cr3t-9@x",
    ):
        for words in (["jobs", "list", "--url", url], ["health", "--url", url, "--debug"]):
            done = run_cli(*words)
            assert done.returncode in (1, 2)
            assert "s3cr3t-9" not in done.stdout + done.stderr, words
