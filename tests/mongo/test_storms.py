"""Worker processes on MongoDB: racing for jobs, under a server that is killed, and behind a line that lies."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ratchet import ExecutionSettings, NodeSettings, Scheduler, Settings, Status
from ratchet.domain.lifecycle import SETTLED, Trigger
from ratchet.errors import StoreError
from ratchet.spi.store import Selection
from tests.mongo import servers
from tests.mongo.faults import PASSING, some
from tests.mongo.proxy import LosingProxy
from tests.storms.cluster import HERE, Cluster, ledger, wait_for

pytestmark = pytest.mark.storm
PROCESSES, THREADS = 4, 8
RESUME_SECONDS = 10.0
OUTAGE_SECONDS = 3.0
BACKLOG = 500


@pytest.fixture
def storm_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The module of the jobs, writing to this test's folder."""
    monkeypatch.syspath_prepend(str(HERE))
    module = import_module("storm_jobs")
    monkeypatch.setattr(module, "folder", tmp_path)
    return module


def unsettled(scheduler: Scheduler) -> int:
    """How many jobs are not yet settled."""
    counts = scheduler.query.counts()
    return counts[Status.PENDING] + counts[Status.RUNNING]


def submitted(scheduler: Scheduler, storm_jobs: Any, key: str, *, milliseconds: int) -> object:
    """Submit one job that is never tried again; under its key, so that this may be repeated."""
    building = scheduler.enqueue(storm_jobs.work, 1, milliseconds)
    return building.with_idempotency_key(key).with_max_retries(0).submit()


def lines(folder: Path, name: str) -> list[str]:
    """Of a file that may not be there yet."""
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


def collected(scheduler: Scheduler, finished: Counter[tuple[Status, Trigger]]) -> None:
    """Count jobs that are settled, by status and by how each of their claims ended, and delete them."""
    while page := scheduler.store.find(Selection(statuses=SETTLED), limit=500).jobs:
        for job in page:
            ends = [entry.trigger for entry in scheduler.store.history(job.id)]
            assert len(ends) == job.claim_seq, (job, ends)
            finished.update((job.status, trigger) for trigger in ends)
        scheduler.store.delete([job.id for job in page])


@pytest.mark.timeout(3600)
def test_processes_claim_every_job_once(
    own_server: servers.Server, tmp_path: Path, scaled: Callable[..., int], storm_jobs: Any
) -> None:
    """20,000 jobs, 4 processes of 8 threads: each job is claimed once and executed once, by one of them."""
    jobs = scaled(20_000)
    scheduler = Scheduler.from_url(own_server.url("race"), allow=["storm_jobs"])
    # Nobody is taken for dead because the machine is busy.
    cluster = Cluster(own_server.url("race"), tmp_path, PROCESSES, threads=THREADS, grace=60)
    finished: Counter[tuple[Status, Trigger]] = Counter()
    submitted_so_far = 0
    began = time.monotonic()
    try:
        assert wait_for(lambda: all(map(cluster.has_started, cluster.processes)), 60)
        while finished[Status.SUCCEEDED, Trigger.SUCCEED] < jobs:
            assert time.monotonic() < began + 3000, f"{finished} of {jobs}"
            # Some at a time, and the settled ones deleted: for each claim a stand-in reads all that is stored.
            if submitted_so_far < jobs and unsettled(scheduler) < BACKLOG:
                some_more = min(BACKLOG, jobs - submitted_so_far)
                scheduler.enqueue_many(storm_jobs.work, [(1, 0)] * some_more)
                submitted_so_far += some_more
            collected(scheduler, finished)
        took = time.monotonic() - began
    finally:
        cluster.close()
    rows = list(ledger(tmp_path))
    by_process = Counter(line.split()[2] for line in lines(tmp_path, "ledger"))
    print(
        f"{jobs} jobs, {PROCESSES} processes x {THREADS} threads, {took:.0f} s, shares "
        f"{sorted(by_process.values())}, ends of claims { {str(end): n for (_, end), n in finished.items()} }"
    )
    assert len(rows) == len(set(rows)) == jobs, "executed twice, or not at all"
    assert len({job for job, _ in rows}) == jobs
    assert len(by_process) == PROCESSES
    # What a busy node cannot begin in time it gives back.
    assert set(finished) <= {(Status.SUCCEEDED, Trigger.SUCCEED), (Status.SUCCEEDED, Trigger.RELEASE)}, (
        finished
    )
    assert finished[Status.SUCCEEDED, Trigger.SUCCEED] == jobs
    assert unsettled(scheduler) == 0
    scheduler.close()


@pytest.mark.timeout(1800)
def test_workers_outlive_their_server(
    own_server: servers.Server, tmp_path: Path, scaled: Callable[..., int], storm_jobs: Any
) -> None:
    """The server is killed twice under load: work goes on within 10 s of its return, nothing acknowledged is lost."""
    jobs = scaled(4000, least=400)
    url = own_server.url("crash")
    scheduler = Scheduler.from_url(url, allow=["storm_jobs"])
    cluster = Cluster(url, tmp_path, PROCESSES, threads=THREADS, grace=60)
    acknowledged: dict[str, object] = {}
    pauses: list[float] = []
    own_server_is_down = threading.Event()

    def submit() -> None:
        for number in range(jobs):
            key = f"k{number}"
            while key not in acknowledged:
                try:
                    acknowledged[key] = submitted(scheduler, storm_jobs, key, milliseconds=20)
                except StoreError:
                    own_server_is_down.wait(0.1)

    submitting = threading.Thread(target=submit)
    try:
        assert wait_for(lambda: all(map(cluster.has_started, cluster.processes)), 60)
        submitting.start()
        for share in (0.3, 0.6):
            assert wait_for(lambda s=share: len(lines(tmp_path, "ledger")) > jobs * s, 600)  # type: ignore[misc]
            own_server.kill()
            threading.Event().wait(OUTAGE_SECONDS)  # this is the outage
            own_server.start()
            back, before = time.monotonic(), len(lines(tmp_path, "ledger"))
            # What was claimed before the kill has long begun: a new row is of a new claim.
            assert wait_for(lambda b=before: len(lines(tmp_path, "ledger")) > b, 60)  # type: ignore[misc]
            pauses.append(time.monotonic() - back)
        submitting.join(600)
        assert wait_for(lambda: len(acknowledged) == jobs and not unsettled(scheduler), 600)
    finally:
        cluster.close()
    log = lines(tmp_path, "log")
    rows = list(ledger(tmp_path))
    print(
        f"{jobs} jobs, server killed twice for {OUTAGE_SECONDS:.0f} s: work went on after "
        f"{', '.join(f'{p:.1f} s' for p in pauses)}; {len(log)} log lines of {PROCESSES} workers, "
        f"{len(rows) - jobs} claims beyond one for each job"
    )
    assert max(pauses) <= RESUME_SECONDS
    found = {job.id: job for job in scheduler.query.iterate()}
    assert len(found) == jobs, "lost, or submitted twice"
    assert {job.status for job in found.values()} == {Status.SUCCEEDED}
    assert {job.attempts for job in found.values()} == {0}
    assert len(rows) == len(set(rows)), "a claim was executed twice"
    assert {job for job, _ in rows} == {str(job_id) for job_id in found}
    assert len(log) <= PROCESSES * 2 * 10, "\n".join(log[-40:])
    scheduler.close()


@pytest.mark.timeout(1800)
def test_a_worker_behind_a_line_that_lies(
    own_server: servers.Server,
    tmp_path: Path,
    scaled: Callable[..., int],
    storm_jobs: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every twentieth command meets some error that passes, or is lost: 2,000 jobs run once each, none has failed."""
    caplog.set_level(logging.INFO, "ratchet")
    jobs = scaled(2000)
    direct = Scheduler.from_url(own_server.url("lies"), allow=["storm_jobs"])
    direct.query.counts()
    proxy = LosingProxy(own_server.port)
    proxy.choose = some(PASSING, random.Random(11).random, 0.05)
    url = f"mongodb://127.0.0.1:{proxy.port}/lies?directConnection=true&serverMonitoringMode=poll"
    settings = Settings(
        execution=ExecutionSettings(threads=THREADS), node=NodeSettings(orphan_grace=timedelta(seconds=60))
    )
    scheduler = Scheduler.from_url(url, allow=["storm_jobs"], settings=settings)
    scheduler.start()
    for number in range(jobs):
        while True:
            try:
                submitted(scheduler, storm_jobs, f"k{number}", milliseconds=0)
                break
            except StoreError:
                continue
    assert wait_for(lambda: not unsettled(direct), 1200)
    scheduler.stop(30)
    scheduler.close()
    proxy.close()
    rows = list(ledger(tmp_path))
    ends: Counter[Trigger] = Counter()
    for job in direct.query.iterate():
        history = direct.store.history(job.id)
        assert [entry.claim_seq for entry in history] == list(range(1, job.claim_seq + 1))
        assert (job.status, job.attempts, job.crash_count) == (Status.SUCCEEDED, 0, 0)
        ends.update(entry.trigger for entry in history)
    print(f"{jobs} jobs, {proxy.answered} faults, ends {dict(ends)}, {len(caplog.records)} log lines")
    assert len(rows) == len(set(rows)) == jobs
    assert len({job for job, _ in rows}) == jobs
    assert ends[Trigger.SUCCEED] == jobs
    assert set(ends) <= {Trigger.SUCCEED, Trigger.RELEASE}
    assert proxy.answered > 0
    assert len(caplog.records) <= max(100, jobs // 5)
    direct.close()
