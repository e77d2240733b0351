"""What only the memory store promises: names, forks, bounded indexes, claims that stay cheap."""

from __future__ import annotations

import gc
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from conformance_tests.driver import MINUTE, Driver, SettableClock, ids, new_job, request
from ratchet.defaults.memory import MemoryStore, plugin
from ratchet.domain.job import NewJob
from ratchet.domain.lifecycle import Status, Trigger
from ratchet.domain.settlement import Change, Settlement
from ratchet.errors import ConfigurationError
from ratchet.spi.plugin import StorePlugin
from ratchet.spi.store import Selection


def test_the_plugin_is_one() -> None:
    """The entry point names an object that opens stores."""
    assert isinstance(plugin, StorePlugin)
    assert isinstance(plugin.open("memory://"), MemoryStore)


def test_a_name_is_one_store() -> None:
    """Handles of one name share their jobs, other names and nameless stores do not."""
    name = f"memory://{uuid4().hex}"
    first, second = plugin.open(name), plugin.open(name)
    job = new_job()
    first.insert([job])
    assert second.get(job.id) is not None
    for other in (plugin.open(f"{name}x"), plugin.open("memory://"), plugin.open("memory://")):
        assert other.get(job.id) is None


def test_a_named_store_lives_as_long_as_a_handle() -> None:
    """Closing one handle leaves the jobs; with the last one they are gone."""
    name = f"memory://{uuid4().hex}"
    first, second = plugin.open(name), plugin.open(name)
    job = new_job()
    first.insert([job])
    first.close()
    third = plugin.open(name)
    assert second.get(job.id) == third.get(job.id) is not None
    second.close()
    third.close()
    gc.collect()
    assert plugin.open(name).get(job.id) is None


def test_another_handle_of_a_nameless_store() -> None:
    """A store hands out further handles on itself."""
    store = MemoryStore()
    job = new_job()
    store.another().insert([job])
    assert store.get(job.id) is not None


@pytest.mark.parametrize(
    "url", ["memory:///x", "memory://a/b", "memory://a?b=c", "memory://a#b", "sqlite://a"]
)
def test_malformed_urls(url: str) -> None:
    """A URL that says more than a name is a configuration error that shows the two forms."""
    with pytest.raises(ConfigurationError, match="memory://name"):
        plugin.open(url)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns of what is tested here
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_can_use_the_store() -> None:
    """A fork while other threads are at work leaves the child a store that answers, and is its own copy."""
    store = MemoryStore()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            store.insert([new_job() for _ in range(50)])
            store.claim(request("n", 50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os._exit(_use(store))
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert store.get(MARK) is None


MARK = UUID(int=7)


def _use(store: MemoryStore) -> int:
    """What a child does; 0 if all went well. An alarm ends it if the store hangs."""
    signal.alarm(20)
    store.insert([new_job(id=MARK)])
    counted = sum(store.counts().values())
    return 0 if store.get(MARK) is not None and counted == store.count(Selection()) else 1


def entries(store: MemoryStore) -> int:
    """How many entries, valid or not, the lanes hold."""
    lanes = [lane for by_priority in store._data.lanes.values() for lane in by_priority.values()]
    return sum(len(lane._due) + len(lane._late) + len(lane._later) for lane in lanes)


@pytest.mark.parametrize("delay", [None, timedelta(days=365)])
def test_lanes_do_not_grow_with_what_has_left_them(delay: timedelta | None) -> None:
    """Entries of canceled, paused and resumed jobs are dropped, due or not: no leak in a long life."""
    store = MemoryStore()
    driver = Driver(store, SettableClock())
    kept = driver.submit(delay=delay)
    for _ in range(2000):
        job_id = driver.submit(delay=delay)
        driver.apply(Trigger.PAUSE, job_id)
        driver.apply(Trigger.RESUME, job_id)
        driver.settle(Trigger.CANCEL, job_id)
    assert entries(store) < 100
    if delay is None:
        assert ids(store.claim(request()).claims) == [kept]


def test_deleted_jobs_leave_nothing_behind() -> None:
    """After a purge the store holds no record, tag or callback of what was purged."""
    store = MemoryStore()
    driver = Driver(store, SettableClock())
    gone = [driver.drive(Status.SUCCEEDED, tags=frozenset({"t"}), business_key=str(n)).id for n in range(50)]
    assert store.delete(gone) == 50
    data = store._data
    assert not data.records
    assert not data.tagged
    assert not data.business
    assert not any(data.by_status.values())
    assert not any(data.held.values())


def test_jobs_due_out_of_order(clock_of: Callable[[], tuple[MemoryStore, SettableClock]]) -> None:
    """Retried, resumed and late submissions find their places among those that arrived in order."""
    store, clock = clock_of()
    driver = Driver(store, clock)
    made: list[tuple[timedelta, UUID]] = []
    for number in range(300):
        due = timedelta(seconds=number * 7919 % 601)
        made.append((due, driver.submit(at=clock.now() - MINUTE * 20 + due)))
        if number % 3 == 0:
            driver.apply(Trigger.PAUSE, made[number // 2][1])
            driver.apply(Trigger.RESUME, made[number // 2][1])
    expected = [job_id for _, job_id in sorted(made)]
    got = [
        job_id
        for _ in range(30)
        for job_id in ids(store.claim(request(limit=10, boost_interval=MINUTE * 0)).claims)
    ]
    assert got == expected


@pytest.fixture
def clock_of() -> Callable[[], tuple[MemoryStore, SettableClock]]:
    def make() -> tuple[MemoryStore, SettableClock]:
        clock = SettableClock()
        return MemoryStore(clock=clock), clock

    return make


def _median_claim(store: MemoryStore, jobs: list[NewJob]) -> float:
    store.insert(jobs)
    spent = []
    for _ in range(len(jobs) // 10):
        begun = time.perf_counter()
        claims = store.claim(request(limit=10)).claims
        spent.append(time.perf_counter() - begun)
        store.settle_many(
            [Settlement(Change(Trigger.SUCCEED, c.job_id, c.claim_seq, result="1")) for c in claims]
        )
    return statistics.median(spent)


@pytest.mark.field_case("F57")
def test_f57_a_claim_costs_the_same_among_many(
    clock_of: Callable[[], tuple[MemoryStore, SettableClock]],
) -> None:
    """Behind 40,000 future, settled and running jobs a claim costs what it costs in an empty store (F57)."""
    empty, _ = clock_of()
    full, _ = clock_of()
    full.insert([new_job(delay=timedelta(days=30)) for _ in range(30_000)])
    full.insert([new_job() for _ in range(10_000)])
    claims = full.claim(request("other", 10_000, limits={"threads": 10_000})).claims
    assert len(claims) == 10_000
    full.settle_many([Settlement(Change(Trigger.FAIL, c.job_id, 1, error="e")) for c in claims[:8_000]])
    alone = _median_claim(empty, [new_job() for _ in range(1000)])
    among = _median_claim(full, [new_job() for _ in range(1000)])
    assert among < 10 * alone
