"""Lines about waiting: submit to the start of the body, here and in another process, and an idle node."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import bodies, raw
from benchmarks.pairs import Pairs, once, say
from benchmarks.table import Line, Target, number, percentile
from benchmarks.worker import Worker, workers
from ratchet import Scheduler

PATIENCE = 30.0
SPACING = 0.02
"""Seconds between two submissions: the node is idle again in between."""


def same_process(pairs: int, scale: float) -> Iterator[Line]:
    """Submit to start in an idle process, against commit, wake-up and claim through sqlite3."""
    count = max(int(60 * scale), 10)
    say("submit to start, same process")
    found, worst = Pairs(), list[float]()
    for i in range(pairs):
        ours, reference = once(partial(_alternate, count))
        found.ours.append(percentile(ours, 0.5))
        found.reference.append(percentile(reference, 0.5))
        worst.append(percentile(ours, 0.99))
        say(f"  pair {i + 1}/{pairs}: {number(found.ours[-1])} ms against {number(found.reference[-1])} ms")
    yield found.line(
        "SQLite FULL: submit to start of the body, idle process, p50, against raw commit + wake-up + claim",
        Target("<=", 1.5),
        unit=" ms",
        against="raw",
        note="raw: one thread commits the row and sets an event, another wakes and claims; samples alternate",
    )
    yield Line("the same, ours, p99", "ms", worst)


def _alternate(count: int, folder: Path) -> tuple[list[float], list[float]]:
    """Samples of ours and of raw, one after the other."""
    ours: list[float] = []
    reference: list[float] = []
    raw.make(folder / "ours.db")
    scheduler = Scheduler.from_url(raw.url(folder / "ours.db"), allow=["benchmarks"])
    raw_side = _RawPair(folder / "raw.db", count + 3)
    sides: tuple[tuple[Callable[[], float], list[float]], ...] = (
        (partial(_submit, scheduler), ours),
        (raw_side.submit, reference),
    )
    with scheduler:
        raw.grow_log(folder / "ours.db")
        raw.grow_log(folder / "raw.db")
        for i in range(count + 3):
            for sample, kept in sides:
                time.sleep(random.uniform(SPACING, 2 * SPACING))  # lets the node become idle, as is measured
                value = sample()
                if i >= 3:
                    kept.append(value)
    raw_side.close()
    scheduler.close()
    return ours, reference


def _submit(scheduler: Scheduler) -> float:
    bodies.started.clear()
    begun = time.monotonic()
    scheduler.enqueue(bodies.remember).submit()
    if not bodies.started.wait(PATIENCE):
        raise TimeoutError("a job did not start")
    return 1e3 * (bodies.times[-1] - begun)


class _RawPair:
    """One thread that commits rows, another that is woken by an event and claims them."""

    def __init__(self, file: Path, count: int) -> None:
        self._rows = raw.rows(raw.make(file), count)
        self._writer, self._claimer = raw.connect(file), raw.connect(file)
        self._committed, self._claimed = threading.Event(), threading.Event()
        self._started = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._claim, daemon=True)
        self._thread.start()

    def submit(self) -> float:
        self._claimed.clear()
        row = self._rows.pop()
        begun = time.monotonic()
        raw.insert_each(self._writer, [row])
        self._committed.set()
        if not self._claimed.wait(PATIENCE):
            raise TimeoutError("a row was not claimed")
        return 1e3 * (self._started - begun)

    def _claim(self) -> None:
        while self._committed.wait() and not self._closed:
            self._committed.clear()
            row = raw.claim_one(self._claimer)
            self._started = time.monotonic()
            self._claimed.set()
            if row is not None:
                raw.finish_one(self._claimer, row)

    def close(self) -> None:
        self._closed = True
        self._committed.set()
        self._thread.join()
        self._writer.close()
        self._claimer.close()


# -- another process -------------------------------------------------------------------------------


def other_process(pairs: int, scale: float) -> Iterator[Line]:
    """Submit here, start in a worker process on the same file: idle, in deep idle, and half busy."""
    count = max(int(30 * scale), 5)
    for state in ("idle", "deep idle", "7 of 8 slots busy"):
        say(f"submit to start, another process, {state}")
        middle: list[float] = []
        worst: list[float] = []
        for _ in range(pairs):
            samples = once(partial(_across, count, state))
            middle.append(percentile(samples, 0.5))
            worst.append(percentile(samples, 0.99))
            say(f"  p50 {number(middle[-1])} ms, p99 {number(worst[-1])} ms")
        yield Line(
            f"SQLite FULL: submit to start of the body in another process, {state}, p50",
            "ms",
            middle,
            Target("<", 60.0),
        )
        yield Line(f"the same, {state}, p99", "ms", worst)


def _across(count: int, state: str, folder: Path) -> list[float]:
    samples: list[float] = []
    file = folder / "jobs.db"
    raw.make(file)
    scheduler = Scheduler.from_url(raw.url(file), allow=["benchmarks"])
    arguments = ["ratchet", raw.url(file)]
    if state == "deep idle":
        arguments += ["--idle-after", "0.5"]  # instead of five minutes; the pace of 60 s is the shipped one
    with workers(folder, 1, *arguments) as (worker,):
        if state == "7 of 8 slots busy":
            scheduler.enqueue_many(bodies.hold, [()] * 7)
        _wait_until_in(worker, state)
        for i in range(count + 2):
            # Lets the worker become idle, the state that is measured; at random, so as not to keep step with it.
            time.sleep(random.uniform(SPACING, 3 * SPACING))
            begun = time.monotonic()
            scheduler.enqueue(bodies.stamp).submit()
            value = 1e3 * (stamp_number(folder / "log", i + 1) - begun)
            if i >= 2:
                samples.append(value)
        (folder / "release").touch()
    scheduler.close()
    return samples


def _wait_until_in(worker: Worker, state: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while state == "deep idle" and worker.ask("mode")["mode"] != "deep_idle":
        if time.monotonic() > deadline:
            raise TimeoutError("the worker did not reach deep idle")
        time.sleep(0.1)


def stamp_number(log: Path, wanted: int) -> float:
    """The time that `bodies.stamp` noted as the `wanted`-th; waits for it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        lines = log.read_text().splitlines() if log.exists() else []
        if len(lines) >= wanted:
            return float(lines[wanted - 1])
        time.sleep(0.002)
    raise TimeoutError("a job did not start in the other process")


# -- doing nothing ---------------------------------------------------------------------------------


def idle(pairs: int, scale: float) -> Iterator[Line]:
    """What a node costs that has nothing to do."""
    seconds = max(5.0 * scale, 1.0)
    for store in ("memory", "SQLite"):
        say(f"idle node, {store}")
        shares: list[float] = []
        for _ in range(pairs):
            shares.append(once(partial(_idle_share, store, seconds)))
            say(f"  {number(shares[-1])} %")
        yield Line(
            f"{store}: processor time of an idle node, of one core", "%", shares, Target("<", 1.0, own=True)
        )


def _idle_share(store: str, seconds: float, folder: Path) -> float:
    where = "memory://" if store == "memory" else raw.url(folder / "jobs.db")
    with workers(folder, 1, "ratchet", where) as (worker,):
        time.sleep(1.0)  # the start is over
        worker.ask("cpu")
        time.sleep(seconds)  # the time that is measured
        answer = worker.ask("cpu")
        return 100 * float(answer["cpu"]) / float(answer["seconds"])


# -- statements ------------------------------------------------------------------------------------


def statements(pairs: int, scale: float) -> Iterator[Line]:
    """Statements and commits per job, counted by sqlite3's own trace."""
    count = max(int(1_000 * scale), 100)
    say("statements per job")
    seen: dict[str, list[float]] = {}
    for _ in range(pairs):
        once(partial(_count_statements, count, seen))
    for name, samples in seen.items():
        yield Line(name, "per job", samples)


def _count_statements(count: int, seen: dict[str, list[float]], folder: Path) -> None:
    raw.make(folder / "jobs.db")
    traced: list[str] = []
    with _traced(traced):
        _run_traced(folder / "jobs.db", count, traced, seen)


@contextmanager
def _traced(into: list[str]) -> Iterator[None]:
    """Every connection opened meanwhile notes each statement that it executes."""
    connect = sqlite3.connect

    def traced_connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(into.append)
        return connection

    sqlite3.connect = traced_connect  # type: ignore[assignment]
    try:
        yield
    finally:
        sqlite3.connect = connect


def _run_traced(file: Path, count: int, traced: list[str], seen: dict[str, list[float]]) -> None:
    scheduler = Scheduler.from_url(raw.url(file), allow=["benchmarks"])
    scheduler.store.counts()
    scheduler.enqueue(bodies.noop).submit()

    def note(what: str, jobs: int) -> None:
        texts = [text.split(None, 2) for text in traced]
        commits = sum(1 for words in texts if words[0] == "COMMIT")
        commits = commits or sum(
            1 for words in texts if words[0] == "INSERT"
        )  # a statement that commits itself
        seen.setdefault(f"SQLite: statements, {what}", []).append(len(traced) / jobs)
        seen.setdefault(f"SQLite: commits (one sync each with FULL), {what}", []).append(commits / jobs)
        traced.clear()

    traced.clear()
    for _ in range(count):
        scheduler.enqueue(bodies.noop).submit()
    note("submit one by one", count)
    scheduler.enqueue_many(bodies.noop, [()] * count)
    note("submit 1,000 at once" if count == 1_000 else "submit many at once", count)
    scheduler.start()
    node = scheduler.node
    assert node is not None
    deadline = time.monotonic() + PATIENCE
    while node.parts.endings.tally.settled < 2 * count + 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    note("claim to settled, backlog, 8 threads", 2 * count + 1)
    scheduler.stop()
    traced.clear()
    with scheduler:
        for _ in range(20):
            scheduler.enqueue(bodies.noop).submit().result(timeout=PATIENCE)
    note("submit to settled, one at a time (with start, stop and reading the result)", 20)
    scheduler.close()
