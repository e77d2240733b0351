"""F49: work whose code is missing, broken or changed is kept for who has it, or fails by name; nothing is deleted."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any
from uuid import uuid4

import pytest

from ratchet import AttemptEnd, JobCallbackFailed, JobDlq, JobRetrying, Scheduler, Status
from ratchet.errors import PayloadError
from tests.conftest import not_yet
from tests.field_cases.exact import Recorder, slots
from tests.field_cases.kit import stays, wait_until
from tests.field_cases.stage import Stage

pytestmark = pytest.mark.field_case("F49")

EXECUTORS = ("threads", "processes")
"""Where targets are found: in the node itself, and in its children."""


class Code:
    """A package of an application whose modules are deployed, changed and removed while nodes live."""

    def __init__(self, folder: Path) -> None:
        self.name = f"f49_{uuid4().hex}"
        self._folder = folder / self.name
        self._folder.mkdir()
        self.deploy("__init__", "")
        self.deploy("others", 'def fine(): return "fine"')

    def deploy(self, module: str, source: str) -> None:
        """Write a module; whoever imports it from now on gets it."""
        (self._folder / f"{module}.py").write_text(dedent(source))
        self._forget(module)

    def remove(self, module: str) -> None:
        """Take a module away."""
        (self._folder / f"{module}.py").unlink()
        self._forget(module)

    def load(self, module: str) -> Any:
        """Import it, as the application does."""
        return importlib.import_module(f"{self.name}.{module}")

    def _forget(self, module: str) -> None:
        sys.modules.pop(f"{self.name}.{module}", None)
        package = sys.modules.get(self.name)
        if package is not None and hasattr(package, module):
            delattr(package, module)
        for cached in (self._folder / "__pycache__").glob(f"{module}.*"):
            cached.unlink()
        importlib.invalidate_caches()

    def forget_all(self) -> None:
        """Leave no module of it behind."""
        for name in [each for each in sys.modules if each.partition(".")[0] == self.name]:
            del sys.modules[name]


@pytest.fixture
def code(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Code]:
    """The application's code, which is all that the nodes of this test may run."""
    folder = stage.folder / "code"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    made = Code(folder)
    stage.allow = made.name
    yield made
    made.forget_all()


M = "def f(x): return x + 1"
SHAPES = """
    import dataclasses, enum

    @dataclasses.dataclass
    class Gone:
        x: int

    class Color(enum.Enum):
        RED = 1
        GONE = 2
"""
TAKES = "def take(value): return str(value)"


def read_everything(node: Scheduler) -> None:
    """Whatever a listing, a dashboard or an operator reads."""
    for job in node.query.iterate():
        node.query.detail(job.id)
        repr(job)
        with suppress(PayloadError):
            node.query.arguments(job)
    node.query.health()
    node.query.nodes()
    node.query.counts()


@pytest.fixture(params=EXECUTORS)
def moved(request: pytest.FixtureRequest, make_node: Any, code: Code) -> Any:
    """Five jobs for a function and one for a class that the running node does not have, and others that it has."""
    code.deploy("m", M)
    code.deploy("shapes", SHAPES)
    code.deploy("takes", TAKES)
    where = request.param
    submitter = make_node(start=False)
    m, shapes, takes = (code.load(name) for name in ("m", "shapes", "takes"))

    def submit(function: Any, *arguments: Any) -> Any:
        return submitter.enqueue(function, *arguments).with_executor(where).submit()

    missing = [submit(m.f, number) for number in range(5)]
    gone = submit(takes.take, shapes.Gone(1))
    others = [submit(code.load("others").fine) for _ in range(5)]
    code.remove("m")
    code.deploy("shapes", "")
    node = make_node(**slots(where, 2))
    return node, missing, gone, others, where


def test_f49_nothing_is_deleted(moved: Any) -> None:
    """While a node without the code polls, lists and sweeps, every job stays."""
    node, missing, gone, others, _ = moved
    for handle in others:
        handle.result(30)

    def all_there() -> bool:
        read_everything(node)
        return bool(node.query.count() == len(missing) + len(others) + 1)

    stays(all_there, 1.5, "every job is there, through polls and a sweep")  # a sweep comes every second
    assert all(handle.job() is not None for handle in (*missing, gone))


def test_f49_each_is_left_for_others_or_fails_by_name(moved: Any) -> None:
    """The five stay PENDING and uncharged; the job of the missing class is FAILED and names it."""
    node, missing, gone, others, _ = moved
    job = gone.wait(30)
    assert job.status is Status.FAILED
    assert "Gone" in job.last_error
    for handle in others:
        handle.result(30)
    wait_until(lambda: any(node.store.history(handle.id) for handle in missing), what="one was tried")
    wait_until(lambda: not node.node.known)
    for handle in missing:
        job = handle.job()
        assert (job.status, job.attempts, job.crash_count) == (Status.PENDING, 0, 0)
        assert job.picked_by is None
        assert {entry.end for entry in node.query.detail(handle.id).history} <= {AttemptEnd.DEFERRED}
        assert node.query.arguments(job), "its arguments can be read"


def test_f49_there_is_no_tight_loop(moved: Any) -> None:
    """What cannot run is tried at most once (R = 0), not again and again."""
    _, missing, gone, others, _ = moved
    for handle in (gone, *others):
        handle.wait(30)
    wait_until(lambda: any(handle.job().claim_seq for handle in missing))
    stays(lambda: all(handle.job().claim_seq <= 1 for handle in (*missing, gone)), 1.0)


def test_f49_other_jobs_run(moved: Any, code: Code) -> None:
    """Jobs beside them, and jobs submitted later, run as ever."""
    node, _, _, others, where = moved
    assert [handle.result(30) for handle in others] == ["fine"] * 5
    later = node.enqueue(code.load("others").fine).with_executor(where).submit()
    assert later.result(30) == "fine"


def test_f49_a_node_with_the_code_runs_them(moved: Any, make_node: Any, code: Code) -> None:
    """When a node with the code appears and failed ones are retried, all of them are SUCCEEDED."""
    node, missing, gone, others, where = moved
    for handle in (gone, *others):
        handle.wait(30)
    wait_until(lambda: any(node.store.history(handle.id) for handle in missing))
    code.deploy("m", M)
    code.deploy("shapes", SHAPES)
    newer = make_node(**slots(where, 2))
    assert [handle.result(30) for handle in missing] == [1, 2, 3, 4, 5]
    node.stop(5)  # it would take the retried one, too, and still lacks its class
    assert newer.retry(gone.id)
    assert "Gone" in gone.result(30)
    assert all(newer.query.detail(handle.id).job.attempts == 0 for handle in missing)


def test_f49_recurring_definition() -> None:
    """A recurring definition of the missing function is kept and fires at its next tick once the code is there."""
    not_yet("recurring")


# -- changed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", EXECUTORS)
@pytest.mark.parametrize(
    "changed",
    [
        "def f(a): return a",
        "def f(a, b, c): return a",
        "def f(a, *, d): return a",
        "def f(a, b: dict): return a",
        "def f(): return None",
    ],
)
def test_f49_a_changed_signature_fails_with_a_message_about_arguments(
    make_node: Any, code: Code, where: str, changed: str
) -> None:
    """A job that does not fit the function any more is FAILED at once, says so, and is no engine error."""
    code.deploy("m", "def f(a, b): return [a, b]")
    handle = (
        make_node(start=False)
        .enqueue(code.load("m").f, 1, 2).with_executor(where).with_max_retries(3).submit()
    )  # fmt: skip
    code.deploy("m", changed)
    node = make_node(start=False, **slots(where, 1))
    recorder = Recorder(node)
    node.start()
    job = handle.wait(30)
    assert job.status is Status.FAILED
    assert "argument" in job.last_error, job.last_error
    assert job.last_error.startswith("ratchet.errors.ArgumentError"), job.last_error
    assert (job.attempts, job.claim_seq) == (0, 1)
    wait_until(lambda: recorder.count(JobDlq, job.id))
    assert recorder.count(JobRetrying) == 0


@pytest.mark.parametrize("where", EXECUTORS)
def test_f49_a_removed_enum_member_fails_by_name(make_node: Any, code: Code, where: str) -> None:
    """A job with an Enum member that was removed is FAILED and names class and member; restored and retried it runs."""
    code.deploy("shapes", SHAPES)
    code.deploy("takes", TAKES)
    node = make_node(start=False, **slots(where, 1))
    member = code.load("shapes").Color.GONE
    handle = node.enqueue(code.load("takes").take, member).with_executor(where).submit()
    code.deploy("shapes", SHAPES.replace("        GONE = 2\n", ""))
    node.start()
    job = handle.wait(30)
    assert job.status is Status.FAILED
    assert "Color" in job.last_error
    assert "GONE" in job.last_error
    node.stop(5)
    code.deploy("shapes", SHAPES)
    newer = make_node(**slots(where, 1))
    assert newer.retry(handle.id)
    assert "GONE" in str(handle.result(30))


# -- broken -----------------------------------------------------------------------------------------------

BROKEN = {
    "raises": "raise ValueError('not today')",
    "exits": "import sys; sys.exit(3)",
    "exits quietly": "raise SystemExit",
    "interrupts": "raise KeyboardInterrupt",
    "generator exit": "raise GeneratorExit",
    "lacks a dependency": "import no_such_module_anywhere",
    "has a syntax error": "def f(x: return x",
    "recurses": "def g(): g()\ng()",
    "removes itself": "import sys; del sys.modules[__name__]; raise ValueError",
    "raises what cannot be printed": """
        class Odd(Exception):
            def __str__(self): raise KeyboardInterrupt
        raise Odd
    """,
    "has no such name": "def g(x): return x",
    "has none in its place": "f = None",
    "has a number in its place": "f = 5",
    "lies about its names": "def __getattr__(name): raise RuntimeError(name)",
}


@pytest.mark.parametrize("where", EXECUTORS)
def test_f49_a_module_that_fails_to_import_counts_as_unresolvable(
    make_node: Any, code: Code, where: str
) -> None:
    """A module that raises, exits or lacks the function when it is imported leaves its job PENDING, uncharged."""
    submitter = make_node(start=False)
    handles = {}
    for number, name in enumerate(BROKEN):
        code.deploy(f"m{number}", M)
        handles[name] = submitter.enqueue(code.load(f"m{number}").f, 1).with_executor(where).submit()
        code.deploy(f"m{number}", BROKEN[name])
    node = make_node(**slots(where, 1))
    for name, handle in handles.items():
        wait_until(lambda h=handle: node.store.history(h.id), 30, f"the job whose module {name} was tried")  # type: ignore[misc]
        job = handle.job()
        assert job.status is Status.PENDING, (name, job.last_error)
        assert (job.attempts, job.crash_count, job.claim_seq) == (0, 0, 1), name
        assert [entry.end for entry in node.store.history(handle.id)] == [AttemptEnd.DEFERRED], name
    assert node.node.state == "running"
    fine = node.enqueue(code.load("others").fine).with_executor(where).submit()
    assert fine.result(30) == "fine", "the worker lives"


@pytest.mark.parametrize("where", EXECUTORS)
def test_f49_a_repaired_module_runs_its_jobs(make_node: Any, code: Code, where: str) -> None:
    """A job whose module raised at import runs on a node that finds the module repaired."""
    code.deploy("m", M)
    handle = make_node(start=False).enqueue(code.load("m").f, 1).with_executor(where).submit()
    code.deploy("m", BROKEN["raises"])
    first = make_node(**slots(where, 1))
    wait_until(lambda: first.store.history(handle.id))
    first.stop(5)
    code.deploy("m", M)
    make_node(**slots(where, 1))
    assert handle.result(30) == 2


def test_f49_a_missing_callback_changes_no_outcome(make_node: Any, code: Code) -> None:
    """A callback that is not deployed any more is reported, and its job stays SUCCEEDED."""
    code.deploy("m", "def done(ctx, result): ...")
    node = make_node(start=False)
    recorder = Recorder(node, JobCallbackFailed)
    handle = node.enqueue(code.load("others").fine).on_success(code.load("m").done).submit()
    code.remove("m")
    node.start()
    assert handle.result(30) == "fine"
    wait_until(lambda: recorder.count(JobCallbackFailed, handle.id) == 1)
    assert "m" in recorder.events[0].error
    assert handle.status is Status.SUCCEEDED
