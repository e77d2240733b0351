"""One worker process, 200,000 jobs on SQLite: its resident memory must stay flat from the 20,000th on.

    python -m benchmarks.soak_rss [--jobs N] [--write FILE]

`RATCHET_STORM_SCALE` scales the number of jobs (1.0 is the full size). A feeder in this process keeps a
backlog, so that the file grows as it would in use and the worker never idles. Prints a sampled table and
a verdict; the exit code is 1 if a sample after the first tenth lies more than 10 % away from the first
one there, or if a job did not succeed.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped, unused-ignore]

from benchmarks import bodies, raw
from benchmarks.worker import Worker, workers
from ratchet import Scheduler
from ratchet.domain.lifecycle import Status

FULL_SIZE: Final = 200_000
FLAT: Final = 0.10
BACKLOG: Final = 4_000
CHUNK: Final = 1_000
SAMPLES: Final = 40
STALLED: Final = 120.0
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Sample:
    """The worker at one moment."""

    jobs: int
    seconds: float
    rss: float
    threads: int
    file: float


def run(jobs: int, folder: Path) -> tuple[list[Sample], int]:
    """Feed and watch one worker; answers the samples and how many jobs succeeded."""
    file = folder / "jobs.db"
    raw.make(file)
    scheduler = Scheduler.from_url(raw.url(file), allow=["benchmarks"])
    looking = sqlite3.connect(file, isolation_level=None, timeout=30)
    samples: list[Sample] = []
    submitted = settled = 0
    step = max(jobs // SAMPLES, 1)
    with workers(folder, 1, "ratchet", raw.url(file)) as (worker,):
        process = psutil.Process(worker.process.pid)
        begun = moved = time.monotonic()
        while settled < jobs:
            while submitted < jobs and submitted - settled < BACKLOG:
                count = min(CHUNK, jobs - submitted)
                scheduler.enqueue_many(bodies.marked_noop, [()] * count)
                submitted += count
            found = _settled(looking, submitted)
            moved = time.monotonic() if found > settled else moved
            settled = found
            if settled >= (len(samples) + 1) * step:
                samples.append(_sample(worker, process, file, settled, time.monotonic() - begun))
                print(_row(samples[-1]), file=sys.stderr, flush=True)
            worker.check()
            if time.monotonic() - moved > STALLED:
                raise TimeoutError(f"nothing settled for {STALLED:g} s; {settled} of {jobs} had")
            time.sleep(0.05)  # a pace of looking, not synchronisation
    succeeded = scheduler.store.counts()[Status.SUCCEEDED]
    looking.close()
    scheduler.close()
    return samples, succeeded


def _settled(connection: sqlite3.Connection, submitted: int) -> int:
    """How many have settled, from the small indexes of what has not."""
    left: int = connection.execute(
        f"select (select count(*) from ratchet_job where status = '{Status.PENDING.value}' and type != 'BATCH')"
        f" + (select count(*) from ratchet_job where status = '{Status.RUNNING.value}')"
    ).fetchone()[0]
    return submitted - left


def _sample(worker: Worker, process: psutil.Process, file: Path, jobs: int, seconds: float) -> Sample:
    worker.check()
    rss = process.memory_info().rss / MIB
    return Sample(jobs, seconds, rss, process.num_threads(), file.stat().st_size / MIB)


def baseline(samples: list[Sample], jobs: int) -> Sample:
    """The first sample at or after a tenth of the jobs: 20,000 of 200,000."""
    return next(sample for sample in samples if sample.jobs >= jobs // 10)


def deviation(samples: list[Sample], jobs: int) -> float:
    """The largest distance from the baseline after it, as a share of the baseline."""
    base = baseline(samples, jobs)
    return max(abs(sample.rss - base.rss) / base.rss for sample in samples if sample.jobs >= base.jobs)


def _row(sample: Sample) -> str:
    return f"{sample.jobs:>9,}  {sample.seconds:>8.1f}  {sample.rss:>8.1f}  {sample.threads:>7}  {sample.file:>8.1f}"


def report(samples: list[Sample], jobs: int, succeeded: int) -> tuple[str, bool]:
    """The table and the verdict, and whether it is good."""
    base, worst = baseline(samples, jobs), deviation(samples, jobs)
    flat, complete = worst <= FLAT, succeeded == jobs
    software = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}; {os.cpu_count()} cores"
    limits = f"{100 * worst:.1f} % (limit {100 * FLAT:g} %): {'flat' if flat else 'NOT FLAT'}"
    lines = [
        f"One worker process, {jobs:,} no-op jobs on SQLite (synchronous FULL); {datetime.now(UTC).date()}",
        software,
        "",
        f"{'jobs':>9}  {'seconds':>8}  {'rss MiB':>8}  {'threads':>7}  {'file MiB':>8}",
        *map(_row, samples),
        "",
        f"baseline {base.rss:.1f} MiB at {base.jobs:,} jobs; largest deviation after it {limits}",
        f"succeeded {succeeded:,} of {jobs:,}: {'complete' if complete else 'NOT COMPLETE'}",
    ]
    return "\n".join(lines) + "\n", flat and complete


def main() -> int:
    """Run, print, and answer the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak_rss", description=__doc__)
    scale = float(os.environ.get("RATCHET_STORM_SCALE", "0.1"))
    parser.add_argument("--jobs", type=int, default=max(int(FULL_SIZE * scale), 1_000))
    parser.add_argument("--write", type=Path, help="also write the report to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ratchet-soak-") as folder:
        samples, succeeded = run(arguments.jobs, Path(folder))
    text, good = report(samples, arguments.jobs, succeeded)
    print(text, end="")
    if arguments.write is not None:
        arguments.write.parent.mkdir(parents=True, exist_ok=True)
        arguments.write.write_text(text, encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
