"""`python -m benchmarks`: measures every line of the table, prints it, and says what was met.

Options: `--only WORD` (groups whose name contains it), `--pairs N` (at least 5 for a table that counts),
`--scale X` (of the amounts of work), `--write` (also to `benchmarks/results.md`). The exit code is 1 if a
line was not met or not run.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks import latency, mongo, startup, throughput
from benchmarks.pairs import say
from benchmarks.table import Line, as_markdown, as_text

GROUPS: dict[str, Callable[[int, float], Iterator[Line]]] = {
    "memory": throughput.memory,
    "submit": throughput.submission,
    "drain": throughput.draining,
    "one-slot": throughput.one_slot,
    "latency": latency.same_process,
    "other-process": latency.other_process,
    "start": startup.start,
    "worker-process": startup.process,
    "idle": latency.idle,
    "statements": latency.statements,
    "mongo-rate": mongo.draining,
    "mongo-insert": mongo.submission,
    "mongo-claim": mongo.claiming,
    "mongo-delay": mongo.delayed,
    "mongo-wait": mongo.other_process,
}
RESULTS = Path(__file__).with_name("results.md")


def main() -> int:
    """Measure, print, and answer the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", help=f"of {', '.join(GROUPS)}; may be repeated")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--write", action="store_true", help="also write benchmarks/results.md")
    arguments = parser.parse_args()
    names = [name for name in GROUPS if not arguments.only or any(word in name for word in arguments.only)]
    load = [os.getloadavg()[0]]
    lines: list[Line] = []
    for name in names:
        say(f"== {name}")
        try:
            lines += GROUPS[name](arguments.pairs, arguments.scale)
        except Exception as error:
            # The page names nothing of this machine, as a message may: that goes to the terminal only.
            lines.append(Line(name, "x", problem=f"failed with {type(error).__name__}"))
            say(f"  failed: {type(error).__name__}: {error}")
    load.append(os.getloadavg()[0])
    about = _about(arguments.pairs, arguments.scale, load)
    print(as_text(lines))
    print("\n".join(about))
    bad = [line for line in lines if line.is_bad]
    print(f"{len(lines)} lines, {len(bad)} not met or not run")
    if arguments.write:
        RESULTS.write_text(_page(lines, about), encoding="utf-8")
    return 1 if bad else 0


def _about(pairs: int, scale: float, load: list[float]) -> list[str]:
    today = datetime.now(UTC).date()
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    peers = ", ".join(f"{name} {_version(name)}" for name in ("huey", "apscheduler", "celery", "pymongo"))
    software = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {peers}"
    noise = f"load average {load[0]:.1f} before and {load[1]:.1f} after"
    return [
        f"{today.isoformat()}; {software}; {machine}",
        f"{pairs} paired runs per line, work scaled by {scale:g}; {noise}: only the ratios mean something",
    ]


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except ImportError:
        return "not installed"


def _page(lines: list[Line], about: list[str]) -> str:
    head = (
        "# Results of the benchmarks\n\n"
        "Written by `nox -s bench`; do not edit. Each ratio is ours / reference of one pair of runs made one after "
        "the other; the median of the ratios counts. `(own)` marks targets that this project chose itself.\n\n"
    )
    return head + as_markdown(lines) + "\n\n" + "\n\n".join(about) + "\n"


if __name__ == "__main__":
    sys.exit(main())
