"""F54: failures, successes, cancels and timeouts leave no memory, thread or descriptor behind.

A series of the case has 5,000 jobs; here RATCHET_STORM_SCALE of them. The measured process has glibc's limit
for own mappings fixed, so that what is freed goes back to the system and is not taken for a leak.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from ratchet import JobHandle
from ratchet.defaults.codec import JsonCodec
from tests.field_cases.exact import Once, slots, submitter
from tests.field_cases.kit import holds, wait_until
from tests.field_cases.leaking import (
    MEGABYTE,
    MODULE,
    SERIES,
    Local,
    Measure,
    Series,
    errors,
    fail,
    last,
    leftovers,
    stand,
    take,
    take_async,
)
from tests.field_cases.stage import Stage, running
from tests.field_cases.worker import ROOT

# What is shown is the engine's: the embedded stores are enough.
pytestmark = [
    pytest.mark.field_case("F54"),
    pytest.mark.stores("memory", "sqlite"),
    pytest.mark.storm,
    pytest.mark.timeout(1200),
]

GROWTH: Final = 30 * MEGABYTE
SLOTS: Final = 16

once: Final[Once[tuple[Measure, Measure]]] = Once()


@pytest.fixture(params=["threads", "async", "processes"])
def kind(request: pytest.FixtureRequest) -> str:
    """Where the bodies run."""
    return str(request.param)


@pytest.fixture
def halves(
    request: pytest.FixtureRequest, store_url: str, tmp_path: Path, kind: str, scaled: Callable[..., int]
) -> Callable[[str], tuple[Measure, Measure]]:
    """What a process held after the first and after the second half of a series."""

    def play(name: str) -> tuple[Measure, Measure]:
        half = scaled(5_000, least=200) // 2
        if kind == "processes":  # each job costs a round trip, each timeout a new child
            half = max(half // (25 if name == "is timed out" else 5), 6)
        words = {"url": store_url, "folder": str(tmp_path), "half": half, "name": name, "kind": kind}
        words["slots"] = 2 if kind == "processes" else SLOTS
        ended = subprocess.run(
            [sys.executable, "-m", MODULE, json.dumps(words)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "MALLOC_MMAP_THRESHOLD_": "131072"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        first, second = (Measure(**each) for each in json.loads((tmp_path / "measures").read_text()))
        print(f"{name}, {kind}, 2 x {half} jobs: {first}, then {second}")
        return first, second

    return lambda name: once((store_url.partition(":")[0], kind, name), lambda: play(name))


@pytest.mark.parametrize("name", SERIES)
def test_f54_resident_memory_does_not_grow(
    halves: Callable[[str], tuple[Measure, Measure]], name: str
) -> None:
    """Resident memory after the second half of a series is within 30 MB of that after the first."""
    first, second = halves(name)
    assert second.rss - first.rss < GROWTH


@pytest.mark.parametrize("name", SERIES)
def test_f54_threads_and_descriptors_are_constant(
    halves: Callable[[str], tuple[Measure, Measure]], name: str
) -> None:
    """The numbers of threads, of open files and sockets, and of children are the same after both halves."""
    first, second = halves(name)
    # A slot's thread that was hit by a hard stop, and an idle reader of the store, may be there or not.
    assert abs(second.threads - first.threads) <= (SLOTS if name == "is timed out" else 2)
    assert abs(second.files - first.files) <= 6
    assert second.children == first.children or name == "is timed out"


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Cycles are not collected meanwhile: what dies does so because nothing refers to it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def leaky(stage: Stage) -> Stage:
    """The stage, for the jobs of `leaking`."""
    stage.allow = MODULE
    return stage


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("where", ["threads", "async"])
@pytest.mark.parametrize("name", SERIES)
def test_f54_the_last_jobs_local_object_dies(leaky: Stage, name: str, where: str) -> None:
    """A weak reference to the last job's local object, and to its error, is dead within 5 s, on an idle node."""
    series = Series(leaky.node(**slots(where, 2)), name, where)
    for _ in range(3):
        series.batch(1)
        assert last
        assert holds(lambda: not leftovers(), 5), [
            gc.get_referrers(each()) for each in last if each() is not None
        ]


@pytest.mark.stores("memory")
@pytest.mark.parametrize("name", ["fails", "succeeds", "is cancelled"])
def test_f54_the_last_jobs_local_object_dies_in_a_child(leaky: Stage, name: str) -> None:
    """The next body in the same child process finds nothing of the last one's objects alive."""
    node = leaky.node(**slots("processes", 1))
    Series(node, name, "processes").batch(1)
    assert node.enqueue(leftovers).with_executor("processes").submit().result(30) == 0


class WatchedCodec(JsonCodec):
    """Adds an object that can be watched to the arguments of every job."""

    __slots__ = ("decoded",)

    def __init__(self) -> None:
        super().__init__()
        self.decoded: list[weakref.ref[Any]] = []

    def decode_arguments(self, text: str, format: int) -> tuple[tuple[object, ...], dict[str, object]]:
        args, kwargs = super().decode_arguments(text, format)
        argument = Local()
        self.decoded.append(weakref.ref(argument))
        return (*args, argument), kwargs


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("where", ["threads", "async"])
def test_f54_the_last_jobs_arguments_die(leaky: Stage, where: str) -> None:
    """The arguments that were decoded for the last job are not kept by an idle node."""
    codec = WatchedCodec()
    node = leaky.node(parts={"codec": codec}, **slots(where, 2))
    for number in range(3):
        assert submitter(node, where)(take, take_async, number).submit().result(30) == number
        assert len(codec.decoded) == number + 1
        assert holds(lambda: all(each() is None for each in codec.decoded), 5), [
            gc.get_referrers(each()) for each in codec.decoded if each() is not None
        ]


def test_f54_slow_callbacks_keep_few_errors(leaky: Stage) -> None:
    """However many failure callbacks wait, few of them keep the exception with its frames; all are called."""
    node = leaky.node(threads=4)
    errors.clear()
    handles: list[JobHandle[Any]] = [
        node.enqueue(fail).on_failure(stand).with_params(folder=str(leaky.folder)).submit() for _ in range(60)
    ]
    for handle in handles:
        handle.wait(30)
    wait_until(lambda: not running(node).known)
    assert len(errors) == len(handles)
    assert holds(lambda: sum(each() is not None for each in errors) <= 20, 5), (
        "errors are kept by waiting callbacks"
    )
    leaky.gates.open("go")
    wait_until(lambda: leaky.gates.reached("go") == len(handles), 30, "every callback is called")
    assert holds(lambda: not any(each() for each in errors), 5)
