"""Several processes on one SQLite file under SIGKILL, SIGSTOP and SIGCONT: nothing lost, nothing twice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from ratchet import Backoff, JobOptions, Scheduler, Status
from ratchet.domain.lifecycle import Trigger
from tests.storms.cluster import HERE, THREADS, Cluster, ledger, wait_for

pytestmark = pytest.mark.storm


@pytest.mark.timeout(900)
@pytest.mark.stores("sqlite")
@pytest.mark.parametrize("size", [2, 4])
def test_books_balance_after_kills_and_stops(
    size: int, tmp_path: Path, scaled: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000 jobs, a signal a second: every job settles, no claim runs twice, no stale write is applied."""
    monkeypatch.syspath_prepend(str(HERE))
    storm_jobs = import_module("storm_jobs")
    url = f"sqlite:///{tmp_path / 'storm.db'}"
    jobs = scaled(5000, least=400)
    seconds = (
        40 if jobs >= 5000 else 12
    )  # of work for all of them: long enough for a dozen signals at any scale
    milliseconds = 1000 * seconds * THREADS * size // jobs
    scheduler = Scheduler.from_url(url, allow=["storm_jobs"])
    scheduler.enqueue_many(
        storm_jobs.work,
        [(number, milliseconds) for number in range(jobs)],
        options=JobOptions(max_retries=2, backoff=Backoff.none()),
    )
    cluster = Cluster(url, tmp_path, size)
    signals: Counter[str] = Counter()
    try:
        assert wait_for(lambda: any(map(cluster.has_started, cluster.processes)), 30)
        deadline = time.monotonic() + 600
        while sum(scheduler.query.counts()[s] for s in (Status.PENDING, Status.RUNNING)):
            assert time.monotonic() < deadline, f"not settled: {scheduler.query.counts()}"
            if sum(signals.values()) % 3 == 2:
                signals["stop" if cluster.freeze_one() else "none"] += 1
            else:
                cluster.kill_one()
                signals["kill"] += 1
            time.sleep(1.0)  # one signal a second is the storm's own pace
        # A frozen worker's late outcome may still be on its way when the last job settles.
        wait_for(lambda: "was refused" in (tmp_path / "log").read_text(), 10)
    finally:
        cluster.close()
    audit(scheduler, tmp_path, jobs)
    refusals = (tmp_path / "log").read_text().count("was refused")
    print(f"{size} processes, {jobs} jobs, signals {dict(signals)}, refused stale writes {refusals}")
    assert signals["kill"] > 0
    assert signals["stop"] > 0, "the storm froze nobody; make it longer"
    assert refusals > 0, "no stale write was tried"


def audit(scheduler: Scheduler, folder: Path, jobs: int) -> None:
    """The books: claims, history and ledger agree exactly."""
    counts = scheduler.query.counts()
    assert counts[Status.SUCCEEDED] == jobs, counts
    rows = list(ledger(folder))
    assert len(rows) == len(set(rows)), "a claim was executed twice"
    executed = Counter(job for job, _ in rows)
    latest: dict[str, int] = {}
    for job_id, claim in rows:
        latest[job_id] = max(claim, latest.get(job_id, 0))
    ends: Counter[Trigger] = Counter()
    claims = 0
    for job in scheduler.query.iterate():
        history = scheduler.store.history(job.id)
        claims += job.claim_seq
        assert [entry.claim_seq for entry in history] == list(range(1, job.claim_seq + 1))
        ends.update(entry.trigger for entry in history)
        last = history[-1]
        assert last.trigger is Trigger.SUCCEED
        assert job.result == str(last.claim_seq), "an outcome of another claim was written"
        assert executed[str(job.id)] >= 1
        assert latest[str(job.id)] <= job.claim_seq
        assert job.attempts == sum(entry.trigger is Trigger.RETRY for entry in history)
        assert job.crash_count == sum(entry.trigger is Trigger.RECOVER for entry in history)
    others = sum(ends[t] for t in (Trigger.RECOVER, Trigger.RELEASE, Trigger.DEFER, Trigger.RETRY))
    assert claims == jobs + others, ends
    assert ends[Trigger.RECOVER] > 0
