"""Lines about the MongoDB store, on a server that is started for them, or on the one that the environment names.

The server that is started is the fast stand-in, with a sync for each commit; `tests.mongo.servers` tells more.
All that it is asked while a clock runs is asked by whom is measured: progress is told by the workers.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from benchmarks import bodies
from benchmarks.latency import SPACING, stamp_number
from benchmarks.pairs import Measure, Pairs, once, paired, say
from benchmarks.table import Line, Target, number, percentile
from benchmarks.throughput import THREADS, until
from benchmarks.worker import workers
from ratchet import ExecutionSettings, Scheduler
from ratchet.domain.ids import new_id
from tests.mongo import servers

JOBS: Final = 500
"""Pending at once. A claim on the stand-in reads all the jobs there are: its share grows with them."""
MANY: Final = 2_000
"""The same against Celery, whose broker takes messages one by one, so that it is the one that minds them."""
BATCH: Final = 100
"""Jobs of one claim, of the raw loop and of ours where that is compared with others; 50 is what is shipped."""
DELAY: Final = 0.002
"""Seconds that the proxy adds to each round trip."""
SHIPPED: Final = ExecutionSettings().batch_size


@contextmanager
def database() -> Iterator[str]:
    """The URL of an empty database, removed afterwards."""
    if servers.kind() == "secantusdb":
        raise servers.NoServer("secantusd-rs is not installed; the Python server is too slow to measure by")
    url = servers.database_url(f"bench{new_id().hex}")
    try:
        yield url
    finally:
        servers.drop(url)


# -- draining --------------------------------------------------------------------------------------


def draining(pairs: int, scale: float) -> Iterator[Line]:
    """No-op jobs that are all due, from the start of the first body to the last outcome."""
    count = max(int(JOBS * scale), 50)
    ours = f"drain {count:,}, one process, {THREADS} threads"
    for what, batch in ((f"claims of {BATCH}", BATCH), ("shipped settings", SHIPPED)):
        say(f"MongoDB: {ours}, {what}, against raw")
        yield paired(_drain(count, batch), _drain_raw(count), pairs).line(
            f"MongoDB: {ours}, {what}, against the raw loop (claim {BATCH}, finish one by one)",
            Target(">=", 0.60),
            unit="/s",
            against="raw",
            note="raw: the store's own collection, document and write concern; one thread, no history",
        )
    say("the same against APScheduler")
    yield _against_peer(
        f"MongoDB: {ours}, claims of {BATCH}, against APScheduler's MongoDBJobStore, {THREADS} threads",
        _drain(count, BATCH),
        partial(_drain_apscheduler, count),
        pairs,
        Target(">=", 3.0),
    )
    many = max(int(MANY * scale), 50)
    say(f"drain {many} against Celery")
    yield _against_peer(
        f"MongoDB: drain {many:,}, one process, {THREADS} threads, claims of {BATCH}, against Celery's MongoDB broker, "
        f"{THREADS} processes",
        _drain(many, BATCH),
        partial(_drain_celery, many),
        pairs,
        Target(">=", 10.0),
    )


def _against_peer(name: str, ours: Measure, peer: Measure, pairs: int, target: Target) -> Line:
    try:
        found = paired(ours, peer, pairs)
    except ImportError as missing:
        return Line(name, "x", problem=f"{missing}; install the extra `bench`")
    return found.line(name, target, unit="/s", against="peer")


def _drain(count: int, batch: int, *, through: Callable[[str], str] = lambda url: url) -> Measure:
    def measure(folder: Path) -> float:
        with database() as url, _filled(url, count):
            arguments = ("ratchet", through(url), "--threads", str(THREADS), "--batch", str(batch))
            return count / _drain_time(folder, arguments, count)

    return measure


def _drain_raw(count: int) -> Measure:
    def measure(folder: Path) -> float:
        with database() as url, _filled(url, count):
            return count / _drain_time(folder, ("mongo-raw", url), count)

    return measure


@contextmanager
def _filled(url: str, count: int) -> Iterator[None]:
    """A database with that many jobs that are due; afterwards all of them must have succeeded."""
    from benchmarks.mongo_raw import Raw

    raw = Raw(url)
    try:
        raw.fill(count)
        yield
        if raw.succeeded() != count:
            raise RuntimeError(f"{raw.succeeded()} of {count} jobs succeeded")
    finally:
        raw.close()


def _drain_apscheduler(count: int, folder: Path) -> float:
    from benchmarks.mongo_peers import AlarmClock

    with database() as url:
        peer = AlarmClock(url, 1)  # this side only fills
        try:
            peer.submit(count)
            arguments = ("apscheduler", url, "--threads", str(THREADS))
            return count / _drain_time(folder, arguments, count, peer.is_empty)
        finally:
            peer.close()


def _drain_celery(count: int, folder: Path) -> float:
    from pymongo import MongoClient

    from benchmarks.mongo_peers import Celery

    with database() as url:
        Celery(url).submit(count)
        client: MongoClient[dict[str, Any]] = MongoClient(url)
        with client, workers(folder, 1, "celery", url, "--threads", str(THREADS)) as running:
            results = client.get_default_database()["celery_taskmeta"]
            # Nobody else knows: a pool of processes, each of which records its own results.
            until(lambda: results.estimated_document_count() >= count, running)
            return count / (time.monotonic() - _first_start(folder))


def _drain_time(
    folder: Path, arguments: tuple[str, ...], count: int, done: Callable[[], bool] = lambda: True
) -> float:
    """Seconds from the start of the first body to when the worker has settled all, and `done` is true too."""
    with workers(folder, 1, *arguments) as (worker,):
        until(lambda: worker.ask("settled")["settled"] >= count and done(), [worker])
        return time.monotonic() - _first_start(folder)


def _first_start(folder: Path) -> float:
    return float((folder / "start").read_text())


# -- submission ------------------------------------------------------------------------------------


def submission(pairs: int, scale: float) -> Iterator[Line]:
    """One by one, each acknowledged by a majority and journaled, against the same document through PyMongo."""
    count = max(int(500 * scale), 50)
    say("MongoDB: submit one by one")
    yield paired(_submit(count), _submit_raw(count), pairs).line(
        f"MongoDB: submit {count:,} one by one, against insert_one of the same document, write concern and indexes",
        Target(">=", 0.80),
        unit="/s",
        against="raw",
    )


def _submit(count: int) -> Measure:
    def measure(folder: Path) -> float:
        with database() as url:
            scheduler = Scheduler.from_url(url, allow=["benchmarks"])
            scheduler.enqueue(bodies.marked_noop).submit()
            begun = time.perf_counter()
            for _ in range(count):
                scheduler.enqueue(bodies.marked_noop).submit()
            seconds = time.perf_counter() - begun
            scheduler.close()
            return count / seconds

    return measure


def _submit_raw(count: int) -> Measure:
    from benchmarks.mongo_raw import Raw

    def measure(folder: Path) -> float:
        with database() as url:
            raw = Raw(url)
            prepared = raw.documents(count)
            begun = time.perf_counter()
            for document in prepared:
                raw.jobs.insert_one(document)
            seconds = time.perf_counter() - begun
            raw.close()
            return count / seconds

    return measure


# -- claiming --------------------------------------------------------------------------------------


def claiming(pairs: int, scale: float) -> Iterator[Line]:
    """What a claim examines, by the server's own `explain`, without settled jobs and among very many."""
    settled, pending = max(int(100_000 * scale), 1_000), max(int(10_000 * scale), 500)
    say(f"MongoDB: what a claim examines, {settled} settled jobs")
    with database() as url:
        found = _examined(url, settled, pending)  # what is counted is exact: once is enough
    yield found.line(
        f"MongoDB: keys and documents that a claim of {SHIPPED} examines among {settled:,} settled and {pending:,} "
        "pending jobs, against among no settled ones",
        Target("<=", 1.0),
        unit="",
        against="none settled",
    )


def _examined(url: str, settled: int, pending: int) -> Pairs:
    from ratchet.plugins import open_store
    from tests.mongo.explaining import add_pending, add_settled

    store: Any = open_store(url)
    store.counts()  # makes the indexes
    add_pending(store.database, pending)
    none = _look(store.database)
    add_settled(store.database, 0, settled)
    many = _look(store.database)
    store.close()
    return Pairs([float(many)], [float(none)])


def _look(database: Any) -> int:
    """Keys and documents of a claim: its look for the next job, and the head of each lane."""
    from ratchet_mongo.choosing import branches, following, head
    from tests.mongo.explaining import NOW, explained

    lanes = [branch.lane for branch in branches(["threads", "async"])]
    due, *others = head(NOW, {}, SHIPPED + 1)
    looks = [[{"$match": {"lane": lane, **due["$match"]}}, *others] for lane in lanes]
    looks.append(following(lanes, NOW, {}))
    plans = [
        explained(database, {"aggregate": database.jobs.name, "pipeline": look, "cursor": {}})
        for look in looks
    ]
    return sum((plan.keys or 0) + (plan.documents or 0) for plan in plans)


# -- far away --------------------------------------------------------------------------------------


def delayed(pairs: int, scale: float) -> Iterator[Line]:
    """A drain through a proxy that delays every reply, against the same proxy without delay."""
    from tests.mongo.proxy import LosingProxy

    count = max(int(JOBS * scale), 50)
    name = f"MongoDB: drain {count:,} with {1e3 * DELAY:g} ms more for every round trip, against without"
    say(name)
    if os.environ.get(servers.DEPLOYMENT):
        yield Line(
            name, "x", problem=f"the proxy stands before a server of its own; unset {servers.DEPLOYMENT}"
        )
        return
    proxy = LosingProxy(servers.shared().port)

    def through(url: str) -> str:
        parts = urlsplit(url)
        there = parts._replace(netloc=f"127.0.0.1:{proxy.port}", query="directConnection=true")
        return urlunsplit(there)

    def with_delay(seconds: float) -> Measure:
        def measure(folder: Path) -> float:
            proxy.delay = seconds
            return _drain(count, SHIPPED, through=through)(folder)

        return measure

    try:
        yield paired(with_delay(DELAY), with_delay(0.0), pairs).line(
            name, Target(">=", 0.60), unit="/s", against="no delay"
        )
    finally:
        proxy.close()


# -- waiting ---------------------------------------------------------------------------------------


def other_process(pairs: int, scale: float) -> Iterator[Line]:
    """Submit here, start in an idle worker process that hears of it by a change stream."""
    count = max(int(30 * scale), 5)
    say("MongoDB: submit to start, another process")
    middle: list[float] = []
    worst: list[float] = []
    for _ in range(pairs):
        samples = once(partial(_across, count))
        middle.append(percentile(samples, 0.5))
        worst.append(percentile(samples, 0.99))
        say(f"  p50 {number(middle[-1])} ms, p99 {number(worst[-1])} ms")
    yield Line(
        "MongoDB: submit to start of the body in another process, idle, change stream, p50", "ms", middle
    )
    yield Line("the same, p99", "ms", worst)


def _across(count: int, folder: Path) -> list[float]:
    samples: list[float] = []
    with database() as url:
        scheduler = Scheduler.from_url(url, allow=["benchmarks"])
        with workers(folder, 1, "ratchet", url):
            for i in range(count + 3):
                # Lets the worker become idle, the state that is measured; at random, so as not to keep step with it.
                time.sleep(random.uniform(SPACING, 3 * SPACING))
                begun = time.monotonic()
                scheduler.enqueue(bodies.stamp).submit()
                value = 1e3 * (stamp_number(folder / "log", i + 1) - begun)
                if i >= 3:
                    samples.append(value)
        scheduler.close()
    return samples
