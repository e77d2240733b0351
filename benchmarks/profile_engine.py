"""Where a job's processor time goes, thread by thread: a drain under one profile per thread.

    python -m benchmarks.profile_engine [URL] [--jobs N] [--threads N] [--top N] [--plain]

The profiles count processor time of their own thread, so that waiting for the interpreter lock or a disk
is not in them. `--plain` measures without profiles: only each thread's processor time per job, undistorted.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import re
import tempfile
import threading
import time
from pathlib import Path

from benchmarks import bodies
from ratchet import ExecutionSettings, Scheduler, Settings


def main() -> None:
    """Drain under observation and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile_engine", description=__doc__)
    parser.add_argument(
        "url", nargs="?", default="memory://", help="memory:// or sqlite:///FILE?...; {} is a folder"
    )
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--top", type=int, default=18)
    parser.add_argument("--plain", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ratchet-profile-") as folder:
        _run(arguments, Path(folder))


def _run(arguments: argparse.Namespace, folder: Path) -> None:
    settings = Settings(execution=ExecutionSettings(threads=arguments.threads))
    url = arguments.url.replace("{}", str(folder))
    scheduler = Scheduler.from_url(url, allow=["benchmarks"], settings=settings)
    for _ in range(0, arguments.jobs, 1_000):
        scheduler.enqueue_many(bodies.noop, [()] * 1_000)
    jobs = -(-arguments.jobs // 1_000) * 1_000
    profiles: dict[str, list[cProfile.Profile]] = {}
    used: dict[str, float] = {}
    run = threading.Thread.run

    def observed(self: threading.Thread) -> None:
        kind = re.sub(r"[^a-z-].*", "", self.name)
        begun = time.thread_time()
        profile = cProfile.Profile(time.thread_time)
        try:
            if arguments.plain:
                run(self)
            else:
                profile.runcall(run, self)
        finally:
            used[kind] = used.get(kind, 0.0) + time.thread_time() - begun
            profiles.setdefault(kind, []).append(profile)

    threading.Thread.run = observed  # type: ignore[method-assign]
    begun = time.perf_counter()
    scheduler.start()
    node = scheduler.node
    assert node is not None
    while node.parts.endings.tally.settled < jobs:
        time.sleep(0.005)
    seconds = time.perf_counter() - begun
    scheduler.close()
    threading.Thread.run = run  # type: ignore[method-assign]
    print(f"{jobs} jobs in {seconds:.2f} s: {jobs / seconds:,.0f}/s")
    for kind, cpu in sorted(used.items(), key=lambda item: -item[1]):
        print(f"  {kind:24} {1e6 * cpu / jobs:7.2f} us of processor time per job")
    if not arguments.plain:
        for kind, each in profiles.items():
            _print(kind, each, jobs, arguments.top)


def _print(kind: str, profiles: list[cProfile.Profile], jobs: int, top: int) -> None:
    stats = pstats.Stats(profiles[0], stream=io.StringIO())
    for profile in profiles[1:]:
        stats.add(profile)
    table: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = stats.stats  # type: ignore[attr-defined]
    rows = sorted(table.items(), key=lambda item: -item[1][2])[:top]
    if not rows or 1e6 * sum(row[1][2] for row in rows) / jobs < 0.2:
        return
    print(f"\n{kind}: own us/job, with callees us/job, calls/job")
    for (file, line, name), (_, calls, own, whole, _) in rows:
        where = f"{'/'.join(Path(file).parts[-2:])}:{line}" if line else ""
        print(f"  {1e6 * own / jobs:7.2f} {1e6 * whole / jobs:8.2f} {calls / jobs:7.2f}  {name} {where}")


if __name__ == "__main__":
    main()
