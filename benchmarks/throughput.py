"""Lines about rates: engine overhead, submission, draining, several processes, one slot."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks import bodies, raw
from benchmarks.pairs import Measure, paired, say
from benchmarks.table import Line, Target, number, percentile
from benchmarks.worker import Worker, workers
from ratchet import ExecutionSettings, Scheduler, Settings

THREADS = 8
PATIENCE = 300.0
LOOK = 0.005
POLLED = 10.0
"""Milliseconds: a slot that is refilled at once is empty for less than the shortest pace at which a peer polls."""


def memory(pairs: int, scale: float) -> Iterator[Line]:
    """What the engine costs on top of a bare pool of threads."""
    count = max(int(20_000 * scale), 200)
    say("engine overhead, memory store")
    found = paired(
        lambda folder: _drain_memory(count), lambda folder: _pool(count, queued_before=False), pairs
    )
    yield found.line(
        f"engine overhead: drain {count:,} no-op jobs on memory, {THREADS} threads, against a bare ThreadPoolExecutor",
        Target(">=", 1 / 6),
        unit="/s",
        against="pool",
        note="the pool is timed from the first submit to the end of the last call",
    )
    say("the same, the pool's queue filled before its clock starts")
    found = paired(
        lambda folder: _drain_memory(count), lambda folder: _pool(count, queued_before=True), pairs
    )
    yield found.line(
        "the same, with the pool's queue filled before its clock starts",
        None,
        unit="/s",
        against="pool",
    )


def _settings(threads: int) -> Settings:
    return Settings(execution=ExecutionSettings(threads=threads))


def _drain_memory(count: int) -> float:
    scheduler = Scheduler.from_url("memory://", allow=["benchmarks"], settings=_settings(THREADS))
    scheduler.enqueue_many(bodies.noop, [()] * count)
    begun = time.perf_counter()
    scheduler.start()
    node = scheduler.node
    assert node is not None
    until(lambda: node.parts.endings.tally.settled >= count)
    seconds = time.perf_counter() - begun
    scheduler.close()
    return count / seconds


def _pool(count: int, *, queued_before: bool) -> float:
    with ThreadPoolExecutor(THREADS) as pool:
        begun = time.perf_counter()
        bodies.go_on.clear()
        held = [pool.submit(bodies.go_on.wait) for _ in range(THREADS if queued_before else 0)]
        futures = [pool.submit(bodies.noop) for _ in range(count)]
        if queued_before:
            begun = time.perf_counter()
        bodies.go_on.set()
        for each in held:
            each.result()
        for future in futures:
            future.result()
        seconds = time.perf_counter() - begun
    return count / seconds


# -- submission ------------------------------------------------------------------------------------


def submission(pairs: int, scale: float) -> Iterator[Line]:
    """One by one, each acknowledged, against the same row through sqlite3."""
    count = max(int(1_000 * scale), 50)
    for synchronous, target in (("FULL", Target(">=", 0.60)), ("NORMAL", None)):
        say(f"submit one by one, synchronous={synchronous}")
        found = paired(_submit(count, synchronous), _submit_raw(count, synchronous), pairs)
        yield found.line(
            f"SQLite {synchronous}: submit {count:,} one by one, against sqlite3 with the same table, indexes and row",
            target,
            unit="/s",
            against="raw",
        )


def _submit(count: int, synchronous: str) -> Measure:
    def measure(folder: Path) -> float:
        raw.make(folder / "jobs.db")
        scheduler = Scheduler.from_url(raw.url(folder / "jobs.db", synchronous), allow=["benchmarks"])
        scheduler.enqueue(bodies.marked_noop).submit()
        begun = time.perf_counter()
        for _ in range(count):
            scheduler.enqueue(bodies.marked_noop).submit()
        seconds = time.perf_counter() - begun
        scheduler.close()
        return count / seconds

    return measure


def _submit_raw(count: int, synchronous: str) -> Measure:
    def measure(folder: Path) -> float:
        prepared = raw.rows(raw.make(folder / "jobs.db"), count + 1)
        connection = raw.connect(folder / "jobs.db", synchronous)
        raw.insert_each(connection, prepared[:1])
        begun = time.perf_counter()
        raw.insert_each(connection, prepared[1:])
        seconds = time.perf_counter() - begun
        connection.close()
        return count / seconds

    return measure


# -- draining --------------------------------------------------------------------------------------


def draining(pairs: int, scale: float) -> Iterator[Line]:
    """No-op jobs that are all due, until the store says that all have settled."""
    few, many = max(int(2_000 * scale), 100), max(int(10_000 * scale), 200)
    for synchronous, targets in (("FULL", (Target(">=", 2.0), Target(">", 1.0))), ("NORMAL", (None, None))):
        ours = _drain(few, 1, THREADS, synchronous)
        say(f"drain {few}, one process, synchronous={synchronous}, against huey")
        peer = "huey" if synchronous == "FULL" else "huey (fsync off)"
        try:
            found = paired(ours, _drain_huey(few, synchronous), pairs)
        except ImportError as missing:
            yield Line("drain against huey", "x", problem=f"{missing}; install the extra `bench`")
        else:
            yield found.line(
                f"SQLite {synchronous}: drain {few:,}, one process, {THREADS} threads, against {peer}",
                targets[0],
                unit="/s",
                against="huey",
            )
        say("the same against raw")
        yield paired(ours, _drain_raw(few, synchronous), pairs).line(
            f"SQLite {synchronous}: the same, against the raw claim-one-finish-one loop",
            targets[1],
            unit="/s",
            against="raw",
        )
    say(f"drain {many}, two processes against one")
    yield paired(_drain(many, 2, THREADS, "FULL"), _drain(many, 1, THREADS, "FULL"), pairs).line(
        f"SQLite FULL: drain {many:,}, two worker processes against one",
        Target(">=", 0.75),
        unit="/s",
        against="one process",
    )


def _drain(count: int, processes: int, threads: int, synchronous: str) -> Measure:
    def measure(folder: Path) -> float:
        file = folder / "jobs.db"
        raw.fill(file, count)
        arguments = ("ratchet", raw.url(file, synchronous), "--threads", str(threads))
        return count / _drain_time(folder, processes, arguments, _watch(file))

    return measure


def _drain_raw(count: int, synchronous: str) -> Measure:
    def measure(folder: Path) -> float:
        file = folder / "jobs.db"
        raw.fill(file, count)
        arguments = ("raw", str(file), "--synchronous", synchronous)
        return count / _drain_time(folder, 1, arguments, _watch(file))

    return measure


def _drain_huey(count: int, synchronous: str) -> Measure:
    from benchmarks.huey_peer import Peer

    def measure(folder: Path) -> float:
        peer = Peer(folder / "huey.db", fsync=False)  # this side only fills
        peer.submit(count)
        arguments = ("huey", str(folder / "huey.db"), "--threads", str(THREADS), "--synchronous", synchronous)
        seconds = _drain_time(folder, 1, arguments, lambda: peer.done() >= count)
        peer.huey.storage.close()
        return count / seconds

    return measure


def _watch(file: Path) -> Callable[[], bool]:
    connection = sqlite3.connect(file, timeout=30, isolation_level=None)
    return lambda: raw.all_settled(connection)


def _drain_time(folder: Path, processes: int, arguments: tuple[str, ...], done: Callable[[], bool]) -> float:
    """Seconds from the start of the first body, in whichever process, to the last outcome in the store."""
    with workers(folder, processes, *arguments) as running:
        until(done, running)
        end = time.monotonic()
        return end - float((folder / "start").read_text())


def until(done: Callable[[], bool], running: list[Worker] | None = None) -> None:
    """Wait for `done`; raises if a worker has ended or `PATIENCE` seconds have passed."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not finished after {PATIENCE:g} s")
        for worker in running or ():
            worker.check()
        time.sleep(LOOK)


# -- one slot --------------------------------------------------------------------------------------


def one_slot(pairs: int, scale: float) -> Iterator[Line]:
    """A node of one slot with a backlog: the rate, and how soon a freed slot has its next job."""
    count = max(int(2_000 * scale), 100)
    say("one slot with a backlog against the raw loop")
    yield paired(_drain(count, 1, 1, "FULL"), _drain_raw(count, "FULL"), pairs).line(
        f"SQLite FULL: one slot and a backlog of {count:,}, against the raw claim-one-finish-one loop with one thread",
        Target(">=", 0.5),
        unit="/s",
        against="raw",
    )
    for seconds, bodies_run in ((0.0, 1_000), (0.02, 100), (0.15, 20)):
        yield from _gaps(pairs, max(int(bodies_run * scale), 10), seconds)


def _gaps(pairs: int, count: int, seconds: float) -> Iterator[Line]:
    what = "no-op bodies" if not seconds else f"bodies of {seconds * 1e3:g} ms"
    say(f"gap between {what} in one slot")
    worst: list[float] = []
    raw_worst: list[float] = []
    found = paired(_gap(count, seconds, worst), _gap_raw(count, seconds, raw_worst), pairs)
    yield Line(
        f"SQLite FULL: gap between two {what} in one slot, p50",
        "ms",
        found.ours,
        Target("<", POLLED, own=True),
        ours=f"{number(median(found.ratios))} x raw",
        reference=f"raw finish + claim {number(median(found.reference))} ms",
    )
    reference = f"raw finish + claim {number(median(raw_worst))} ms"
    yield Line(f"the same, p99, {what}", "ms", worst, reference=reference)


def _gap(count: int, seconds: float, worst: list[float]) -> Measure:
    def measure(folder: Path) -> float:
        raw.make(folder / "jobs.db")
        scheduler = Scheduler.from_url(
            raw.url(folder / "jobs.db"), allow=["benchmarks"], settings=_settings(threads=1)
        )
        scheduler.enqueue_many(bodies.span, [(seconds,)] * count)
        bodies.spans.clear()
        scheduler.start()
        until(lambda: len(bodies.spans) >= count)
        scheduler.close()
        gaps = [1e3 * (after[0] - before[1]) for before, after in pairwise(bodies.spans)]
        worst.append(percentile(gaps, 0.99))
        return percentile(gaps, 0.5)

    return measure


def _gap_raw(count: int, seconds: float, worst: list[float]) -> Measure:
    def measure(folder: Path) -> float:
        raw.fill(folder / "jobs.db", count)
        connection = raw.connect(folder / "jobs.db")
        gaps: list[float] = []
        row = raw.claim_one(connection)
        while row is not None:
            time.sleep(seconds)  # the same body
            ended = time.monotonic()
            raw.finish_one(connection, row)
            row = raw.claim_one(connection)
            gaps.append(1e3 * (time.monotonic() - ended))
        connection.close()
        worst.append(percentile(gaps, 0.99))
        return percentile(gaps, 0.5)

    return measure
