"""The application that the workers under test run. ``scheduler()`` is made from RATCHET_URL."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

from ratchet import ExecutionSettings, NodeSettings, Scheduler, Settings, current_job
from ratchet.settings import PollingSettings

MODULE = "tests.cli.cli_jobs"
APP = f"{MODULE}:scheduler"
LEDGER = "CLI_LEDGER"


def scheduler() -> Scheduler:
    """Short grace, so that a killed worker's jobs come back soon."""
    settings = Settings(
        execution=ExecutionSettings(threads=4),
        node=NodeSettings(orphan_grace=timedelta(seconds=3)),
        polling=PollingSettings(fastest=0.2, slowest=1.0, idle=1.0),
    )
    return Scheduler.from_url(allow=[MODULE], settings=settings)


def nothing_allowed() -> Scheduler:
    return Scheduler.from_url()


NOT_A_SCHEDULER = object()


def enter(word: str) -> None:
    """One line per execution, in a file next to the database."""
    job = current_job()
    with Path(os.environ[LEDGER]).open("a", encoding="ascii") as ledger:
        ledger.write(f"{word} {job.id} {os.getpid()}\n")


def add(one: int, other: int) -> int:
    logging.getLogger("shop").info("adding %d and %d", one, other)
    return one + other


def whoami() -> int:
    enter("whoami")
    return os.getpid()


def loaded(*names: str) -> list[str]:
    return [name for name in names if name in sys.modules]


def brief(seconds: float) -> None:
    """Ends by itself."""
    enter("brief")
    time.sleep(seconds)


def cooperative() -> None:
    """Stops when it is asked to."""
    enter("cooperative")
    while True:
        current_job().raise_if_cancellation_requested()
        time.sleep(0.02)


def deaf() -> None:
    """Never returns and listens to nothing, not even to exceptions from outside."""
    enter("deaf")
    while True:
        try:
            time.sleep(0.05)
        except BaseException:
            continue


def in_c() -> None:
    """Never returns from a C call."""
    enter("in_c")
    ctypes.CDLL(None).sleep(10_000)


def in_own_process() -> int:
    return os.getppid()


def boom(text: str) -> None:
    raise RuntimeError(text)


def at_exit(path: str) -> None:
    """The application has something to do at the end."""
    atexit.register(Path(path).touch)


def leave_a_thread() -> None:
    """A thread that is no daemon and never ends."""
    threading.Thread(target=threading.Event().wait).start()


def forks() -> int:
    """Which signal ended a forked child that was sent SIGTERM."""
    child = os.fork()
    if child == 0:
        while True:
            signal.pause()
    os.kill(child, signal.SIGTERM)
    return os.WTERMSIG(os.waitpid(child, 0)[1])
