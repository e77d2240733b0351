"""The jobs of the storms, and the worker process that runs them (`main`)."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

from ratchet import ExecutionSettings, NodeSettings, Scheduler, Settings, current_job

BARRIER_SECONDS = 30.0
GRACE_SECONDS = float(os.environ.get("STORM_GRACE", "3"))
folder = Path(os.environ.get("STORM_FOLDER", "."))


def _append(name: str, line: str) -> None:
    """One line, whole or not at all, whatever kills this process."""
    descriptor = os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def work(number: int, milliseconds: int) -> int:
    """Write a row to the ledger, take some time, stop at the barrier if the storm has set one; answer the claim."""
    context = current_job()
    _append("ledger", f"{context.id} {context.claim_seq} {os.getpid()} {number}\n")
    time.sleep(milliseconds / 1000)  # this is the work
    barrier = folder / f"barrier-{os.getpid()}"
    if barrier.exists():
        _append(f"reached-{os.getpid()}", f"{context.id}\n")
        end = time.monotonic() + BARRIER_SECONDS
        while barrier.exists() and time.monotonic() < end:
            threading.Event().wait(0.005)
    if number % 29 == 0 and context.attempt == 1:
        raise ValueError("every 29th job fails once")
    return context.claim_seq


def main() -> None:
    """Work until SIGTERM."""
    import signal

    url, threads = sys.argv[1], int(sys.argv[2])
    logging.basicConfig(
        filename=folder / "log",
        level=logging.INFO,
        format="%(asctime)s %(process)d %(levelname)s %(message)s",
    )
    settings = Settings(
        execution=ExecutionSettings(threads=threads),
        node=NodeSettings(orphan_grace=timedelta(seconds=GRACE_SECONDS), max_crash_redeliveries=50),
    )
    scheduler = Scheduler.from_url(url, allow=["storm_jobs"], settings=settings)
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: done.set())
    scheduler.start()
    _append("started", f"{os.getpid()}\n")
    done.wait()
    scheduler.stop(10)
