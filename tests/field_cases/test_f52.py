"""F52: an object that is bound to an event loop serves every async job of its worker, one after another and at once."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from ratchet import AttemptEnd, JobCallbackFailed, Scheduler, Status
from ratchet.spi.store import Selection
from tests.field_cases.exact import Recorder
from tests.field_cases.kit import SCALE, append, wait_until
from tests.field_cases.stage import Stage
from tests.field_cases.worker import ROOT

# What is shown is the engine's: the embedded stores are enough.
pytestmark = [pytest.mark.field_case("F52"), pytest.mark.stores("memory", "sqlite")]

HANG: Final = timedelta(seconds=1)


class LoopBound:
    """A client that remembers the loop that it was first used on, and raises on another."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock: asyncio.Lock | None = None
        self.uses = 0

    async def use(self) -> None:
        """Take the connection, of which there is one, for a moment."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop, self._lock = loop, asyncio.Lock()
        if self._loop is not loop or loop.is_closed():
            raise RuntimeError("attached to a different loop")
        assert self._lock is not None
        async with self._lock:  # is bound to its loop as well, once somebody has to wait
            self.uses += 1
            await asyncio.sleep(0.002)


clients: Final[dict[str, LoopBound]] = {}
"""Client of a test (or, in a child process, of the child)."""


async def ask(name: str, how: str) -> str:
    """Uses the client, then ends as it is told."""
    client = clients.setdefault(name, LoopBound())
    await client.use()
    if how == "raise":
        raise ValueError("as asked")
    if how == "hang":
        await asyncio.sleep(60)
    if how == "exit":
        raise SystemExit(1)
    await client.use()
    return how


def decorated(func: Callable[..., Any]) -> Callable[..., Any]:
    """An ordinary decorator, which hides that a function is async."""

    @functools.wraps(func)
    def call(*args: Any) -> Any:
        return func(*args)

    return call


@decorated
async def ask_in_disguise(name: str, how: str) -> str:
    """An async function that looks like an ordinary one: its jobs are stored for threads."""
    return await ask(name, how)


async def tell(ctx: Any, result: Any) -> None:
    """An async callback."""
    await clients.setdefault(ctx.params["name"], LoopBound()).use()
    append(Path(ctx.params["folder"]) / "told", f"{ctx.id}\n")


async def leave_a_bomb(name: str) -> str:
    """Leaves a task behind that raises what would end a program."""
    await clients.setdefault(name, LoopBound()).use()

    async def explode() -> None:
        raise SystemExit(3)

    bombs.append(asyncio.create_task(explode()))
    asyncio.get_running_loop().call_soon(raise_interrupt)
    return "left"


def raise_interrupt() -> None:
    raise KeyboardInterrupt


bombs: Final[list[Any]] = []


# -- two kinds of nodes -----------------------------------------------------------------------------------


class Application:
    """An asyncio application: its loop runs in a thread, and its scheduler on that loop."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        scheduler.start(loop=self.loop)

    def close(self) -> None:
        """End the loop as `asyncio.run` does: cancel what is left on it."""

        async def end() -> None:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@pytest.fixture(params=["sync", "async", "process"])
def node(request: pytest.FixtureRequest, stage: Stage) -> Iterator[Scheduler]:
    """A node with a loop of its own, one on an application's loop, one with a child process."""
    if request.param == "async":
        scheduler = stage.node(start=False, async_=20)
        application = Application(scheduler)
        yield scheduler
        scheduler.stop(5)
        application.close()
    else:
        yield stage.node(async_=20, processes=1 if request.param == "process" else 0)


@pytest.fixture
def submit(node: Scheduler, stage: Stage) -> Callable[..., Any]:
    """Submits `ask`, on the loop or in the child process."""
    where = "processes" if node.settings.execution.processes else "async"
    name = stage.folder.name

    def submit(how: str) -> Any:
        builder = node.enqueue(ask, name, how).with_executor(where)
        return (builder.with_timeout(HANG) if how == "hang" else builder).submit()

    return submit


def test_f52_jobs_one_after_another_use_the_same_loop(submit: Callable[..., Any]) -> None:
    """Ten async jobs, each begun when the one before has ended, can all use a client bound to the first one's loop."""
    assert [submit(f"job {number}").result(30) for number in range(10)] == [f"job {n}" for n in range(10)]


def test_f52_jobs_in_parallel_use_the_same_loop(submit: Callable[..., Any]) -> None:
    """Ten async jobs at once, which wait for each other at the client, all succeed."""
    handles = [submit(f"job {number}") for number in range(10)]
    assert [handle.result(30) for handle in handles] == [f"job {n}" for n in range(10)]


def test_f52_one_that_raises_and_one_that_is_timed_out_harm_no_other(
    submit: Callable[..., Any], node: Scheduler
) -> None:
    """Of ten, one raises, one exits, one is timed out: the other seven are SUCCEEDED, and so are ten later ones."""
    hows = ["ok", "raise", "ok", "hang", "ok", "exit", "ok", "ok", "ok", "ok"]
    handles = [submit(how) for how in hows]
    jobs = [handle.wait(30) for handle in handles]
    assert [job.status for job in jobs] == [
        Status.SUCCEEDED if how == "ok" else Status.FAILED for how in hows
    ]
    detail = node.query.detail(jobs[3].id)
    assert detail is not None
    assert [entry.end for entry in detail.history] == [AttemptEnd.TIMED_OUT]
    # A child that had to be killed takes its loop, and what was bound to it, with it.
    assert [submit("later").result(30) for _ in range(10)] == ["later"] * 10


# -- what is async and has no slot of its own -------------------------------------------------------------


def test_f52_disguised_async_jobs_use_the_same_loop(stage: Stage) -> None:
    """Jobs that were stored for threads, but turn out to be async, share the loop with the async ones."""
    node, name = stage.node(threads=4), stage.folder.name
    handles = [node.enqueue(each, name, "ok").submit() for each in (ask, ask_in_disguise) * 5]
    assert [handle.result(30) for handle in handles] == ["ok"] * 10
    assert all(job.executor == "threads" for job in node.query.iterate(Selection(target="disguise")))
    assert clients[name].uses == 20


def test_f52_a_disguised_async_job_is_timed_out(stage: Stage) -> None:
    """Such a job is cancelled at its deadline, and its slot and the client are free again."""
    node, name = stage.node(threads=1), stage.folder.name
    hanging = node.enqueue(ask_in_disguise, name, "hang").with_timeout(timedelta(seconds=0.2)).submit()
    job = hanging.wait(30)
    assert job.status is Status.FAILED
    assert "JobTimeout" in str(job.last_error)
    assert node.enqueue(ask_in_disguise, name, "ok").submit().result(30) == "ok"
    raising = node.enqueue(ask_in_disguise, name, "exit").submit().wait(30)
    assert "SystemExit" in str(raising.last_error)
    assert node.enqueue(ask, name, "ok").submit().result(30) == "ok"


def test_f52_async_callbacks_use_the_same_loop(stage: Stage) -> None:
    """Async callbacks of async and of ordinary jobs can use what the jobs have bound to their loop."""
    node, name = stage.node(), stage.folder.name
    failures = Recorder(node, JobCallbackFailed)
    handles = [
        node.enqueue(ask, name, "ok")
        .on_success(tell)
        .with_params(name=name, folder=str(stage.folder))
        .submit()
        for _ in range(10)
    ]
    told = stage.folder / "told"
    wait_until(lambda: failures.events or (told.exists() and len(told.read_text().splitlines()) == 10))
    assert not failures.events
    assert sorted(told.read_text().split()) == sorted(str(handle.id) for handle in handles)


def test_f52_what_a_job_left_on_the_loop_cannot_end_it(stage: Stage) -> None:
    """A task and a timer left behind that raise SystemExit and KeyboardInterrupt do not end the loop for others."""
    node, name = stage.node(), stage.folder.name
    assert node.enqueue(leave_a_bomb, name).submit().result(30) == "left"
    wait_until(lambda: bombs and bombs[-1].done())
    assert bombs.pop().exception() is not None
    assert [node.enqueue(ask, name, "ok").submit().result(30) for _ in range(10)] == ["ok"] * 10


# -- what jobs leave behind -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "abandon", "application", "processes"])
def test_f52_background_tasks_are_cancelled_and_nothing_is_destroyed(
    store_url: str, tmp_path: Path, how: str
) -> None:
    """Tasks and generators that jobs left behind are cancelled and awaited at shutdown: no word of destroyed tasks."""
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-m", "tests.field_cases.leaving", store_url, str(tmp_path), how],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        timeout=10 * SCALE,
    )
    assert ended.returncode == 0, ended.stderr
    assert "[0, 1, 2, 3, 4]" in ended.stdout
    for words in (
        "destroyed",
        "never retrieved",
        "never awaited",
        "Traceback",
        "Exception ignored",
        "ResourceWarning",
    ):
        assert words not in ended.stderr, ended.stderr
    lines = (tmp_path / "left").read_text().splitlines()
    begun = {line.split()[0] for line in lines if line.endswith("begun")}
    assert len(begun) == 15
    if how != "abandon":  # the application went away without stopping its scheduler
        assert {line.split()[0] for line in lines if line.endswith("ended")} == begun
