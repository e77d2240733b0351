"""The job functions of the benchmarks: importable, tiny, and marking times where a line needs them.

All times are `time.monotonic`, a clock that the processes of one machine share.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Final

_marked = False
_log: int | None = None

times: Final[list[float]] = []
"""Start of the bodies of this process, for lines that measure inside one process."""
spans: Final[list[tuple[float, float]]] = []
started: Final = threading.Event()
go_on: Final = threading.Event()


def noop() -> None:
    """Nothing at all."""


def folder() -> Path:
    """Where the processes of one run leave their marks."""
    return Path(os.environ["RATCHET_BENCH_DIR"])


def marked_noop() -> None:
    """Nothing, but the first one anywhere notes its start."""
    if not _marked:
        mark_start()


def mark_start() -> None:
    """Note the time in the file `start`, unless it is there already."""
    global _marked
    _marked = True
    try:
        file = os.open(folder() / "start", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return
    os.write(file, repr(time.monotonic()).encode())
    os.close(file)


def stamp() -> None:
    """Append the time of the start to the file `log`."""
    global _log
    now = time.monotonic()
    if _log is None:
        _log = os.open(folder() / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(_log, f"{now!r}\n".encode())


def remember() -> None:
    """Note the start in this process, and wake whoever waits for it."""
    times.append(time.monotonic())
    started.set()


def span(seconds: float) -> None:
    """Note start and end in this process; sleeps in between (what a body that waits for a service does)."""
    begun = time.monotonic()
    if seconds:
        time.sleep(seconds)
    spans.append((begun, time.monotonic()))


def hold() -> None:
    """Occupy a slot of a worker process until the run's folder has a file `release`."""
    mark = folder() / "release"
    while not mark.exists():
        time.sleep(0.1)
