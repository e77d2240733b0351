"""Several processes on one SQLite file under SIGKILL, SIGSTOP and SIGCONT: nothing lost, nothing twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

from ratchet import Backoff, JobOptions, Scheduler, Status
from ratchet.domain.lifecycle import Trigger

HERE = Path(__file__).parent
pytestmark = pytest.mark.storm
THREADS = 4
GRACE = 3.0


class Cluster:
    """Worker processes of this storm, kept at their number."""

    def __init__(self, url: str, folder: Path, size: int) -> None:
        self.url, self.folder = url, folder
        self.environment = {
            **os.environ,
            "STORM_FOLDER": str(folder),
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
        }
        self.processes = [self.spawn() for _ in range(size)]

    def spawn(self) -> subprocess.Popen[bytes]:
        """One more worker."""
        return subprocess.Popen(
            [sys.executable, "-c", "import storm_jobs; storm_jobs.main()", self.url, str(THREADS)],
            env=self.environment,
        )

    def has_started(self, process: subprocess.Popen[bytes]) -> bool:
        """True once the worker claims."""
        with suppress(FileNotFoundError):
            return str(process.pid) in (self.folder / "started").read_text().split()
        return False

    def kill_one(self) -> None:
        """SIGKILL a worker that is at work, and replace it."""
        ready = [each for each in self.processes if self.has_started(each)]
        if ready:
            victim = random.choice(ready)
            victim.kill()
            victim.wait()
            self.processes[self.processes.index(victim)] = self.spawn()

    def freeze_one(self) -> bool:
        """SIGSTOP a worker with bodies at the barrier, past the grace, then SIGCONT; True if it was done."""
        ready = [each for each in self.processes if self.has_started(each)]
        if len(ready) < 2:
            return False
        victim = random.choice(ready)
        barrier, reached = self.folder / f"barrier-{victim.pid}", self.folder / f"reached-{victim.pid}"
        barrier.touch()
        try:
            if not wait_for(reached.exists, 5.0):
                return False  # no work was left for it
            os.kill(victim.pid, signal.SIGSTOP)
            end = time.monotonic() + GRACE + 2.5  # until a sweep of another node has taken its claims
            while time.monotonic() < end:
                time.sleep(0.1)
        finally:
            barrier.unlink()
            reached.unlink(missing_ok=True)
            os.kill(victim.pid, signal.SIGCONT)
        return True

    def close(self) -> None:
        """End them all: first politely."""
        for each in self.processes:
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGCONT)
            each.terminate()
        for each in self.processes:
            try:
                each.wait(15)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Look until it holds or the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def ledger(folder: Path) -> Iterator[tuple[str, int]]:
    """(job, claim) of every body that began."""
    for line in (folder / "ledger").read_text().splitlines():
        job, claim, _pid, _number = line.split()
        yield job, int(claim)


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
