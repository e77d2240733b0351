"""Process bodies with real processes: what they answer, how they die, what they never take with them."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from textwrap import dedent
from typing import Any
from uuid import UUID

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest

from ratchet.defaults.codec import JsonCodec
from ratchet.engine import child_process
from ratchet.engine.child_process import BodyReply, BodyRequest, ChildProcess, Died, Raised, Refused, Returned
from ratchet.errors import NotRunning

HERE = str(Path(__file__).parent)
CODEC = JsonCodec()
JOB = UUID("019b76da-a800-7000-8000-000000000001")
sequence = count(1)
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")


def until(condition: Callable[[], bool], seconds: float = 20.0) -> float:
    """Wait until the condition holds; answers how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "the condition did not come true"
        time.sleep(0.002)
    return time.monotonic() - began


def is_gone(pid: int) -> bool:
    """True if the process has ended, whether or not somebody has collected its status."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    return True


def body(name: str, *args: object, **kwargs: object) -> BodyRequest:
    return BodyRequest(
        job_id=str(JOB),
        claim_seq=next(sequence),
        attempt=1,
        target=name if ":" in name else f"child_bodies:{name}",
        payload=CODEC.encode_arguments(args, kwargs),
        format=CODEC.format,
        node="node-1",
    )


def make_child(*allow: str, path: tuple[Path, ...] = (), **options: Any) -> ChildProcess:
    folders = [HERE, *map(str, path), *sys.path]
    return ChildProcess(allow=["child_bodies", *allow], sys_path=folders, **options)


class Bench:
    """A child with the shorthands that the tests share."""

    def __init__(self, child: ChildProcess) -> None:
        self.child = child
        self.records: list[logging.LogRecord] = []
        self._threads = ThreadPoolExecutor(1)

    def run(self, request: BodyRequest) -> BodyReply:
        return self.child.run(request, on_log=self.records.append)

    def begin(self, request: BodyRequest) -> "Future[BodyReply]":
        """Run it on a thread, as a slot does."""
        return self._threads.submit(self.run, request)

    def value(self, name: str, *args: object, **kwargs: object) -> Any:
        reply = self.run(body(name, *args, **kwargs))
        assert isinstance(reply, Returned), reply
        assert reply.result is not None
        return CODEC.decode_value(reply.result)

    def close(self) -> None:
        self.child.close()
        self._threads.shutdown()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(make_child())
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Bench]:
    """One child for the bodies that harm nobody: they also show that it goes on after each of them."""
    made = Bench(make_child())
    yield made
    made.close()


# -- ordinary bodies -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "args", "result"),
    [
        ("add", (1,), 11),
        ("add", (1, 2), 3),
        ("add_async", (1,), 11),
        ("Till.count", ((1, 2, 3),), 6),
        ("Till.name", (), "Till"),
    ],
)
def test_bodies_of_every_kind_return(
    shared: Bench, name: str, args: tuple[object, ...], result: object
) -> None:
    """Functions, coroutine functions, static and class methods run in the child and their result comes back."""
    assert shared.value(name, *args) == result


def test_one_child_runs_body_after_body(shared: Bench) -> None:
    """Bodies of one slot share one process, which is not this one."""
    assert shared.value("pid") == shared.value("pid") == shared.child.pid != os.getpid()


def test_the_body_sees_its_attempt(shared: Bench) -> None:
    """Id, attempt, claim, node, decoded params, metadata and deadline arrive in the job's context."""
    request = replace(
        body("seen"),
        attempt=3,
        params={"size": CODEC.encode_value((1, 2), what="param")},
        metadata={"tags": "a,b"},
        timeout_seconds_left=40.0,
    )
    before = datetime.now(UTC)
    reply = shared.run(request)
    assert isinstance(reply, Returned)
    seen: Any = CODEC.decode_value(reply.result or "")
    deadline = seen.pop("deadline")
    assert before + timedelta(seconds=39) < deadline <= datetime.now(UTC) + timedelta(seconds=40)
    assert seen == {
        "id": str(JOB),
        "attempt": 3,
        "claim_seq": request.claim_seq,
        "node": "node-1",
        "params": {"size": (1, 2)},
        "metadata": {"tags": "a,b"},
        "requested": False,
    }


def test_a_body_without_time_limit_has_no_deadline(shared: Bench) -> None:
    """A request without time left gives the body no deadline."""
    assert shared.value("seen")["deadline"] is None


def test_surroundings_are_those_of_a_program_of_its_own(shared: Bench) -> None:
    """Empty standard input, the main thread, an own session, the node's import path and PYTHONPATH, no arguments."""
    around = shared.value("surroundings")
    assert around == {
        "argv": [],
        "stdin": "",
        "path": [HERE, *(entry or str(Path.cwd()) for entry in sys.path)],
        "python_path": os.environ.get("PYTHONPATH"),
        "thread": True,
        "session": True,
        "pydantic": around["pydantic"],
    }


def test_the_start_of_a_child_imports_no_pydantic(bench: Bench) -> None:
    """A first body without annotations is not slowed down by libraries that it does not need."""
    assert bench.value("surroundings")["pydantic"] is False


def test_what_a_body_prints_goes_to_the_output_of_the_node(capfd: pytest.CaptureFixture[str]) -> None:
    """Standard output is inherited and flushed after each body; it never mixes with the child's messages."""
    bench = Bench(make_child())
    reply = bench.run(body("say", "to the operator"))
    said = capfd.readouterr().out
    bench.close()
    assert isinstance(reply, Returned)
    assert said == "to the operator\n"


def test_timings_are_told(shared: Bench, tmp_path: Path) -> None:
    """Duration covers the body alone and age what came after it."""
    reply = shared.run(body("add", 1))
    assert isinstance(reply, Returned)
    assert 0 <= reply.duration < 5
    assert 0 <= reply.age < 5


def test_large_results_tell_only_their_size(shared: Bench) -> None:
    """A result over the limit succeeds without its text; one exactly at the limit travels."""
    limit = 64 * 1024
    at_limit, above = shared.run(body("big", limit - 2)), shared.run(body("big", limit - 1))
    assert isinstance(at_limit, Returned)
    assert at_limit.result_size == limit == len(at_limit.result or "")
    assert isinstance(above, Returned)
    assert (above.result, above.result_size) == (None, limit + 1)


def test_a_result_that_cannot_travel_fails_the_attempt(shared: Bench) -> None:
    """The body returned, but its attempt fails with an error that names the result."""
    reply = shared.run(body("unencodable"))
    assert isinstance(reply, Raised)
    assert reply.unencodable_result
    assert "result" in reply.error


def test_lone_surrogates_and_nul_travel(shared: Bench) -> None:
    """Metadata and errors with characters that no encoding likes come through."""
    request = replace(body("seen"), metadata={"key": "\ud800\x00é"})
    reply = shared.run(request)
    assert isinstance(reply, Returned)
    seen: Any = CODEC.decode_value(reply.result or "")
    assert seen["metadata"] == {"key": "\ud800\x00é"}


# -- refusals ------------------------------------------------------------------------------------


def test_a_target_outside_the_policy_is_never_imported(tmp_path: Path) -> None:
    """The refusal comes before the import: the module's side effect does not happen."""
    mark = tmp_path / "imported"
    (tmp_path / "secret.py").write_text(f"open({str(mark)!r}, 'w')\ndef run(): ...\n", encoding="utf-8")
    bench = Bench(make_child(path=(tmp_path,)))
    reply = bench.run(body("secret:run"))
    bench.close()
    assert isinstance(reply, Refused)
    assert reply.kind == "policy"
    assert not mark.exists()


@pytest.mark.parametrize("target", ["child_bodies:os.getpid", "child_bodies:asyncio.runners.run"])
def test_no_name_leads_from_an_allowed_module_into_another(shared: Bench, target: str) -> None:
    """What an allowed module imported is not allowed by that: the policy was asked about the module alone."""
    reply = shared.run(body(target))
    assert isinstance(reply, Refused)
    assert reply.kind == "policy"


@pytest.mark.parametrize(
    "target", ["child_bodies:gone", "child_bodies.gone:run", "child_bodies:Till.open", "child_bodies:HERE"]
)
def test_what_is_not_here_is_unknown(shared: Bench, target: str) -> None:
    """Missing modules and names, methods that need a service, and things that cannot be called are 'unknown'."""
    reply = shared.run(body(target))
    assert isinstance(reply, Refused)
    assert reply.kind == "unknown"


@pytest.mark.parametrize(
    "source",
    ["import sys; sys.exit(7)", "raise KeyboardInterrupt", "1 / 0", "def broken(:", "import no_such_module"],
)
def test_a_module_that_cannot_be_imported_is_unknown(tmp_path: Path, source: str) -> None:
    """Whatever an import raises, the attempt is refused as unknown and the child goes on."""
    (tmp_path / "broken.py").write_text(source, encoding="utf-8")
    bench = Bench(make_child("broken", path=(tmp_path,)))
    before = bench.value("pid")
    reply = bench.run(body("broken:run"))
    after = bench.value("pid")
    bench.close()
    assert isinstance(reply, Refused)
    assert reply.kind == "unknown"
    assert before == after


def test_a_module_that_ends_the_process_at_import_fails_its_attempt(tmp_path: Path) -> None:
    """os._exit at import is a death like any other, charged to the job that wanted the module."""
    (tmp_path / "ends.py").write_text("import os; os._exit(9)", encoding="utf-8")
    bench = Bench(make_child("ends", path=(tmp_path,)))
    reply = bench.run(body("ends:run"))
    bench.close()
    assert isinstance(reply, Died)
    assert reply.started
    assert "exit status 9" in reply.description


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"payload": "not json"}, "poison"),
        ({"params": {"x": "{"}}, "poison"),
        ({"format": 99}, "newer_format"),
        ({"payload": CODEC.encode_arguments((), {})}, "arguments"),
        ({"payload": CODEC.encode_arguments(("one",), {})}, "arguments"),
        ({"payload": CODEC.encode_arguments((1,), {"third": 1})}, "arguments"),
    ],
)
def test_calls_that_cannot_be_made_are_refused(shared: Bench, change: dict[str, Any], kind: str) -> None:
    """Unreadable payloads, newer formats and arguments that do not fit are told apart, and no body runs."""
    reply = shared.run(replace(body("add", 1), **change))
    assert isinstance(reply, Refused)
    assert reply.kind == kind
    assert reply.message


# -- bodies that raise ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fail", "fail_async"])
@pytest.mark.parametrize(
    ("how", "type_name"),
    [
        ("plain", "child_bodies.CardDeclined"),
        ("exit", "SystemExit"),
        ("interrupt", "KeyboardInterrupt"),
        ("generator", "GeneratorExit"),
        ("memory", "MemoryError"),
        ("recursion", "RecursionError"),
        ("nasty", "child_bodies.Nasty"),
        ("asyncio", "asyncio.exceptions.CancelledError"),
        ("early", "ratchet.errors.CancellationRequested"),
    ],
)
def test_whatever_a_body_raises_is_a_failure_of_its_attempt(
    shared: Bench, name: str, how: str, type_name: str
) -> None:
    """Also what ends programs and what cannot be printed (F43): the child answers and goes on."""
    before = shared.value("pid")
    reply = shared.run(body(name, how))
    assert isinstance(reply, Raised)
    assert reply.type_name == type_name
    assert type_name.rpartition(".")[2] in reply.error
    assert (reply.do_not_retry, reply.retry_after, reply.cancellation) == (None, None, False)
    assert shared.value("pid") == before


def test_permanent_errors_and_wished_delays_are_told(shared: Bench) -> None:
    """A marked class gives its reason, DoNotRetry its message and RetryAfter its delay in seconds."""
    marked, ready_made, later = (
        shared.run(body("fail", how)) for how in ("permanent", "ready-made", "later")
    )
    assert isinstance(marked, Raised)
    assert isinstance(ready_made, Raised)
    assert isinstance(later, Raised)
    assert marked.do_not_retry == "gone for good"
    assert ready_made.do_not_retry == "stop it"
    assert (later.do_not_retry, later.retry_after) == (None, 90.0)


# -- processes that go down ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("exit", "exit status 3"),
        ("kill", "SIGKILL"),
        ("segfault", "SIGSEGV"),
        ("abort", "SIGABRT"),
        ("close descriptors", "exit status"),
    ],
)
def test_a_body_that_takes_its_process_down_fails_alone(
    bench: Bench, shared: Bench, tmp_path: Path, how: str, told: str
) -> None:
    """The death is told in words, a body in another slot's child goes on, and the next body gets a new child."""
    other = shared.begin(body("wait_for_request", str(tmp_path / "other"), "return"))
    until((tmp_path / "other").exists)
    before = bench.value("pid")
    reply = bench.run(body("go_down", how))
    assert isinstance(reply, Died)
    assert told in reply.description
    assert (reply.started, reply.killed) == (True, False)
    assert bench.value("pid") != before
    shared.child.request_cancellation("shutdown")
    assert isinstance(other.result(20), Returned)


@linux_only
def test_a_body_that_scribbles_on_the_socket_fails_alone(bench: Bench) -> None:
    """Bytes that are no message end that child, not the node; the next body gets a new one."""
    before = bench.value("pid")
    reply = bench.run(body("scribble"))
    assert isinstance(reply, Died)
    assert reply.started
    assert "frame" in reply.description
    assert is_gone(before)
    assert bench.value("pid") != before


@pytest.mark.parametrize("name", ["wait_for_ever", "stop_itself", "hold_the_interpreter"])
def test_kill_ends_any_body(bench: Bench, tmp_path: Path, name: str) -> None:
    """A waiting, a stopped (SIGSTOP) and a C-bound body are dead at once, and `run` says who did it."""
    ready = tmp_path / "ready"
    running = bench.begin(body(name, str(ready)))
    until(ready.exists)
    pid = int(ready.read_text())
    if name == "stop_itself":
        until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    bench.child.kill()
    reply = running.result(10)
    assert isinstance(reply, Died)
    assert reply.killed
    assert "killed by this node" in reply.description
    assert is_gone(pid)
    assert bench.value("add", 1) == 11


def test_kill_takes_the_programs_of_the_body_with_it(bench: Bench, tmp_path: Path) -> None:
    """A program that the body waits for does not go on beside the job's retry."""
    ready = tmp_path / "ready"
    running = bench.begin(body("starts_a_program", str(ready)))
    until(lambda: ready.exists() and ready.read_text() != "")
    bench.child.kill()
    assert isinstance(running.result(10), Died)
    until(lambda: is_gone(int(ready.read_text())))


def test_a_late_kill_or_request_hits_no_other_body(bench: Bench, tmp_path: Path) -> None:
    """What is meant for one request does nothing to the next one."""
    earlier = body("pid")
    bench.run(earlier)
    ready = tmp_path / "ready"
    current = body("wait_for_request", str(ready), "return")
    running = bench.begin(current)
    until(ready.exists)
    bench.child.kill(request=earlier)
    bench.child.request_cancellation("timeout", request=earlier)
    bench.child.request_cancellation("shutdown", request=current)
    reply = running.result(20)
    assert isinstance(reply, Returned)
    assert reply.result == '"shutdown"'


def test_a_fork_of_the_body_does_not_answer(bench: Bench, tmp_path: Path) -> None:
    """A forked copy that returns from the body ends there; the child's own answer is the only one."""
    assert bench.value("forks", str(tmp_path / "fork")) == "from the child"
    assert is_gone(int((tmp_path / "fork").read_text()))
    assert bench.value("add", 1) == 11


def test_a_death_is_noticed_though_a_fork_lives_on(bench: Bench, tmp_path: Path) -> None:
    """A process that inherited the child's descriptors does not hide the child's end."""
    reply = bench.run(body("forks_and_goes_down", str(tmp_path / "fork")))
    fork = int((tmp_path / "fork").read_text())
    assert isinstance(reply, Died)
    assert not is_gone(fork)
    os.kill(fork, signal.SIGKILL)


def test_programs_and_forks_of_a_body_can_be_stopped(bench: Bench) -> None:
    """The child's deafness to SIGTERM is inherited neither by programs nor by forks that a body starts."""
    assert bench.value("stops_a_program") == -2 * signal.SIGTERM


def test_signals_to_its_group_do_not_end_the_child(bench: Bench, tmp_path: Path) -> None:
    """SIGINT and SIGTERM, as a terminal or a service manager sends them to all, leave the body running."""
    ready = tmp_path / "ready"
    running = bench.begin(body("wait_for_request", str(ready), "return"))
    until(ready.exists)
    pid = int(ready.read_text())
    assert os.getpgid(pid) == pid != os.getpgid(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        os.killpg(pid, number)
    bench.child.request_cancellation("shutdown")
    reply = running.result(20)
    assert isinstance(reply, Returned), reply
    assert bench.value("pid") == pid


@pytest.mark.parametrize("stopped", [False, True])
def test_a_child_that_dies_while_idle_costs_no_attempt(bench: Bench, stopped: bool) -> None:
    """The next body runs in a fresh child, also when the old one dies with the request unread."""
    before = bench.value("pid")
    if stopped:
        os.kill(before, signal.SIGSTOP)
        until(lambda: psutil.Process(before).status() == psutil.STATUS_STOPPED)
        running = bench.begin(body("pid"))
        until(
            lambda: bool(psutil.Process(before).net_connections("unix")) and bench.child._request is not None
        )
        os.kill(before, signal.SIGKILL)
    else:
        os.kill(before, signal.SIGKILL)
        until(lambda: is_gone(before))
        running = bench.begin(body("pid"))
    reply = running.result(20)
    assert isinstance(reply, Returned), reply
    assert reply.result != str(before)


# -- starting ------------------------------------------------------------------------------------


def test_a_child_that_cannot_be_started_charges_nothing(
    monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    """Without an interpreter to run, the body has certainly not begun."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    reply = bench.run(body("pid"))
    assert isinstance(reply, Died)
    assert not reply.started
    assert "could not be started" in reply.description


def test_a_child_that_ends_before_it_is_ready_charges_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """An interpreter that dies at its start is told with its exit status and is no failure of the job."""
    bench = Bench(make_child(env={**os.environ, "PYTHONHOME": "/nowhere"}))
    reply = bench.run(body("pid"))
    bench.close()
    capfd.readouterr()
    assert isinstance(reply, Died)
    assert (reply.started, reply.killed) == (False, False)
    assert "exit status 1" in reply.description


def slow_start(folder: Path, seconds: float) -> dict[str, str]:
    """An environment in which every interpreter takes its time to start."""
    (folder / "sitecustomize.py").write_text(f"import time; time.sleep({seconds})", encoding="utf-8")
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_a_child_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    """After `start_seconds` the start counts as failed, and nothing is charged."""
    bench = Bench(make_child(env=slow_start(tmp_path, 60), start_seconds=0.2))
    reply = bench.run(body("pid"))
    bench.close()
    assert isinstance(reply, Died)
    assert not reply.started
    assert "not ready" in reply.description


def test_the_time_of_the_start_counts_against_the_deadline(tmp_path: Path) -> None:
    """A start that takes 1.5 s leaves the body that much less of its time."""
    bench = Bench(make_child(env=slow_start(tmp_path, 1.5)))
    began = datetime.now(UTC)
    reply = bench.run(replace(body("seen"), timeout_seconds_left=30.0))
    bench.close()
    assert isinstance(reply, Returned)
    seen: Any = CODEC.decode_value(reply.result or "")
    assert seen["deadline"] < began + timedelta(seconds=31)


@pytest.fixture
def during_start(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Has something done at the moment when a child is about to be started."""

    def arrange(act: Callable[[], None]) -> None:
        start = child_process._spawner.start

        def act_and_start(*args: Any) -> Any:
            act()
            return start(*args)

        monkeypatch.setattr(child_process._spawner, "start", act_and_start)

    return arrange


def test_kill_and_request_reach_a_child_that_is_still_starting(
    bench: Bench, during_start: Callable[[Callable[[], None]], None]
) -> None:
    """A request made before the process exists is seen by the body; a kill ends it without a body."""
    during_start(lambda: bench.child.request_cancellation("shutdown"))
    assert bench.value("seen")["requested"] is True
    bench.child.kill()
    during_start(bench.child.kill)
    reply = bench.run(body("pid"))
    assert isinstance(reply, Died)
    assert (reply.killed, reply.started) == (True, False)


# -- stopping on request -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "cancellation"), [("raise", True), ("own", True), ("wrapped", True), ("other error", False)]
)
def test_a_body_that_stops_on_request_says_so(
    bench: Bench, tmp_path: Path, how: str, cancellation: bool
) -> None:
    """CancellationRequested made after the request, also as a cause, is told as such; other errors are not."""
    ready = tmp_path / "ready"
    running = bench.begin(body("wait_for_request", str(ready), how))
    until(ready.exists)
    bench.child.request_cancellation("timeout")
    bench.child.request_cancellation("canceled")  # the first reason stays
    reply = running.result(20)
    assert isinstance(reply, Raised)
    assert reply.cancellation is cancellation


def test_returning_after_a_request_is_success(bench: Bench, tmp_path: Path) -> None:
    """The body reads the reason and returns it."""
    ready = tmp_path / "ready"
    running = bench.begin(body("wait_for_request", str(ready), "return"))
    until(ready.exists)
    bench.child.request_cancellation("claim_lost")
    reply = running.result(20)
    assert isinstance(reply, Returned)
    assert reply.result == '"claim_lost"'


def test_a_request_of_an_earlier_attempt_is_no_excuse(bench: Bench, tmp_path: Path) -> None:
    """The exception of one attempt, kept and raised in the next, is an ordinary failure there."""
    ready = tmp_path / "ready"
    running = bench.begin(body("keep_request", str(ready)))
    until(ready.exists)
    bench.child.request_cancellation("timeout")
    assert isinstance(running.result(20), Returned)
    assert bench.value("seen")["requested"] is False
    reply = bench.run(body("raise_kept"))
    assert isinstance(reply, Raised)
    assert reply.cancellation is False


@pytest.mark.parametrize(("reason", "cancel_task"), [("canceled", False), ("timeout", True)])
def test_the_task_of_an_async_body_is_cancelled(
    bench: Bench, tmp_path: Path, reason: str, cancel_task: bool
) -> None:
    """Cancelling the job, or asking for it, cancels the task: the CancelledError counts as our own request's."""
    ready = tmp_path / "ready"
    running = bench.begin(body("wait_async", str(ready), "raise"))
    until(ready.exists)
    bench.child.request_cancellation(reason, cancel_task=cancel_task)
    reply = running.result(20)
    assert isinstance(reply, Raised)
    assert reply.cancellation
    assert reply.type_name.endswith("CancelledError")


def test_an_async_body_may_finish_after_its_cancellation(bench: Bench, tmp_path: Path) -> None:
    """A body that catches the cancellation and returns has succeeded, and the loop serves the next one."""
    ready = tmp_path / "ready"
    running = bench.begin(body("wait_async", str(ready), "finish"))
    until(ready.exists)
    bench.child.request_cancellation("canceled")
    reply = running.result(20)
    assert isinstance(reply, Returned)
    assert reply.result == '"tidied up"'
    assert bench.value("add_async", 1) == 11


# -- nothing of one job is left to the next ------------------------------------------------------


@pytest.mark.parametrize("name", ["set_colour", "set_colour_async"])
def test_context_variables_do_not_pass_to_the_next_body(shared: Bench, name: str) -> None:
    """What a body sets in a context variable is gone in the next one."""
    assert [shared.value(name, value) for value in ("red", "green")] == ["none", "none"]
    assert shared.value("context_outside") is True


def test_all_async_bodies_share_one_loop(bench: Bench, tmp_path: Path) -> None:
    """Ten async bodies, one failed and one cancelled among them, find the loop of the first (F52)."""
    outcomes = [bench.value("use_loop") for _ in range(4)]
    bench.run(body("fail_async", "plain"))
    ready = tmp_path / "ready"
    running = bench.begin(body("wait_async", str(ready), "raise"))
    until(ready.exists)
    bench.child.request_cancellation("canceled")
    running.result(20)
    outcomes += [bench.value("use_loop") for _ in range(4)]
    assert outcomes == [True] * 8


def test_tasks_left_behind_are_cancelled(bench: Bench) -> None:
    """A task that an async body started and left has ended before the next body begins."""
    bench.value("leave_task")
    assert bench.value("what_was_left") == ["ended"]


# -- logging -------------------------------------------------------------------------------------


def test_log_records_come_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records keep name, level, time and plain extras, gain the job's identity, and cannot break a body."""
    monkeypatch.setattr(logging.getLogger("shop"), "level", logging.INFO)
    bench = Bench(make_child())
    began = time.time()
    reply = bench.run(body("log_things"))
    bench.close()
    assert isinstance(reply, Returned), reply
    assert [record.getMessage() for record in bench.records] == [
        "order 7 of Ann",
        "bad %s (its arguments cannot be formatted: SystemExit)",
        "mismatch %d (its arguments cannot be formatted: TypeError)",
        "<Unprintable> (its arguments cannot be formatted: SystemExit)",
        "it failed",
        "it failed badly",
    ]
    first = bench.records[0].__dict__
    assert first["name"] == "shop.bodies"
    assert (first["levelno"], first["filename"], first["funcName"]) == (20, "child_bodies.py", "log_things")
    assert (first["job_id"], first["job_attempt"], first["job_node"]) == (str(JOB), 1, "node-1")
    assert first["process"] != os.getpid()
    assert began - 1 < first["created"] < time.time() + 1
    assert first["invoice"] == 42
    assert "thing" not in first
    assert "CardDeclined: no money" in logging.Formatter().format(bench.records[4])


def test_records_of_a_child_pass_through_ordinary_handlers(
    shared: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A record can be given to the node's own loggers as it is."""
    shared.child.run(
        body("log_much", 1, 3), on_log=lambda record: logging.getLogger(record.name).handle(record)
    )
    assert caplog.messages == ["0 yyy"]


def test_a_flood_of_logs_neither_blocks_nor_disappears(shared: Bench) -> None:
    """5,000 lines arrive in order, and megabyte lines arrive cut with their size told."""
    shared.records.clear()
    assert shared.value("log_much", 5_000, 100) == 5_000
    assert [int(record.getMessage().partition(" ")[0]) for record in shared.records] == list(range(5_000))
    shared.records.clear()
    assert shared.value("log_much", 20, 1_000_000) == 20
    assert len(shared.records) == 20
    assert all(len(record.getMessage()) < 70_000 for record in shared.records)
    assert shared.records[0].getMessage().endswith("(1,000,002 characters, cut)")


def test_threads_that_log_between_two_bodies_are_not_blocked(bench: Bench) -> None:
    """A thread left behind may log while nobody reads: the next body runs and the thread can be ended."""
    bench.value("log_later")
    assert bench.value("stop_logging") is True


def test_a_log_handler_that_raises_harms_no_body(shared: Bench) -> None:
    """An exception of `on_log` loses that record and nothing else."""

    def broken(record: logging.LogRecord) -> None:
        raise OSError("disk full")

    assert isinstance(shared.child.run(body("log_much", 3, 3), on_log=broken), Returned)


# -- the node's end ------------------------------------------------------------------------------

NODE = """
    import os, sys
    with open(sys.argv[1] + ".main", "a") as mark:
        mark.write("run\\n")
    from ratchet.engine.child_process import BodyRequest, ChildProcess

    child = ChildProcess(allow=["child_bodies"])
    request = BodyRequest(job_id={job!r}, claim_seq=1, attempt=1, target="child_bodies:pid",
                          payload="[[],{{}}]", format=1)
    reply = child.run(request, on_log=print)
    print(reply.result, flush=True)
    if sys.argv[2] == "idle":
        sys.stdin.read()
    request = BodyRequest(job_id={job!r}, claim_seq=1, attempt=1, target="child_bodies:" + sys.argv[2],
                          payload={payload!r}, format=1)
    child.run(request, on_log=print)
"""


@contextlib.contextmanager
def node(folder: Path, name: str) -> "Iterator[tuple[subprocess.Popen[str], int]]":
    """A process with a child of its own, and the child's pid; the child is idle or in the named body."""
    ready = folder / "ready"
    script = folder / "node.py"
    payload = CODEC.encode_arguments((str(ready),), {})
    script.write_text(dedent(NODE).format(job=str(JOB), payload=payload), encoding="utf-8")
    root = str(Path(child_process.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([HERE, root])}
    with subprocess.Popen(
        [sys.executable, str(script), str(ready), name],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        if name != "idle":
            until(ready.exists)
        try:
            yield process, pid
        finally:
            process.kill()


@pytest.mark.parametrize(
    "name",
    [
        "idle",
        "wait_for_ever",
        pytest.param("hold_the_interpreter", marks=linux_only),
        pytest.param("stop_itself", marks=linux_only),
    ],
)
def test_a_child_ends_when_its_node_is_killed(tmp_path: Path, name: str) -> None:
    """After SIGKILL of the node its child is gone within 2 s, whatever the child is doing."""
    with node(tmp_path, name) as (process, pid):
        process.kill()
        process.wait(10)
        assert until(lambda: is_gone(pid)) < 2.0


def test_a_child_ends_with_a_node_that_exits(tmp_path: Path) -> None:
    """A node that ends without `close` leaves no child."""
    with node(tmp_path, "idle") as (process, pid):
        assert process.stdin is not None
        process.stdin.close()  # the node goes on to a body that does not exist, and ends
        process.wait(20)
        until(lambda: is_gone(pid), 5)


def test_the_main_module_of_the_node_is_not_run_again(tmp_path: Path) -> None:
    """The script that runs the node has run once, though it has no guard, and a child ran a body."""
    with node(tmp_path, "idle"):
        assert (tmp_path / "ready.main").read_text() == "run\n"


def test_a_child_outlives_the_thread_that_needed_it_first(bench: Bench) -> None:
    """The kernel's death signal is tied to the process, not to a slot's thread that is retired."""
    with ThreadPoolExecutor(1) as first:
        pid = first.submit(bench.value, "pid").result(20)
    until(lambda: bench.child.pid == pid)
    assert bench.value("pid") == pid


def test_close_ends_an_idle_child_and_is_final(bench: Bench) -> None:
    """After `close` the process is gone and collected, `run` is refused, and closing again is harmless."""
    pid = bench.value("pid")
    bench.child.close()
    assert not psutil.pid_exists(pid)
    bench.child.close()
    with pytest.raises(NotRunning):
        bench.run(body("pid"))


def test_close_kills_a_busy_child(bench: Bench, tmp_path: Path) -> None:
    """The body under way ends with the child and its `run` says so."""
    ready = tmp_path / "ready"
    running = bench.begin(body("wait_for_ever", str(ready)))
    until(ready.exists)
    bench.child.close()
    reply = running.result(10)
    assert isinstance(reply, Died)
    assert reply.killed
    until(lambda: not psutil.pid_exists(int(ready.read_text())))


def test_one_body_at_a_time(bench: Bench, tmp_path: Path) -> None:
    """A second `run` is refused while the first is under way."""
    ready = tmp_path / "ready"
    running = bench.begin(body("wait_for_request", str(ready), "return"))
    until(ready.exists)
    with pytest.raises(NotRunning):
        bench.run(body("pid"))
    bench.child.request_cancellation("shutdown")
    assert isinstance(running.result(20), Returned)


def test_deaths_leak_no_descriptor(bench: Bench) -> None:
    """Ten dead children leave the node with the descriptors it had."""
    bench.value("pid")
    before = psutil.Process().num_fds()
    for _ in range(10):
        bench.run(body("go_down", "exit"))
    bench.value("pid")
    assert psutil.Process().num_fds() == before


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_of_the_node_has_children_of_its_own(bench: Bench) -> None:
    """A forked node runs bodies in a new child and leaves its parent's alone (F51)."""
    before = bench.value("pid")
    reader, writer = os.pipe()
    fork = os.fork()
    if fork == 0:
        status = 1
        try:
            reply = bench.child.run(body("pid"), on_log=print)
            os.write(writer, (reply.result or "").encode() if isinstance(reply, Returned) else b"died")
            bench.child.close()
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as stream:
        other = int(stream.read())
    assert os.waitpid(fork, 0)[1] == 0
    assert other != before
    assert bench.value("pid") == before
