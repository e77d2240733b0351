"""A node whose process one of its jobs ends, started again and again by `test_suspects`: ``URL NAME``."""

from __future__ import annotations

import os
import sys
import threading
from datetime import timedelta

from ratchet import ExecutionSettings, NodeSettings, Scheduler, Settings


def poison() -> None:
    """Ends its process a moment after it began."""
    threading.Event().wait(0.2)  # what the job does; nothing is synchronised by it
    os._exit(9)


def innocent(number: int) -> int:
    """Long enough to be caught by a poison job beside it."""
    threading.Event().wait(0.5)  # what the job does; nothing is synchronised by it
    return number


def make(url: str, name: str | None = None) -> Scheduler:
    settings = Settings(execution=ExecutionSettings(threads=4), node=NodeSettings(name=name))
    return Scheduler.from_url(url, allow=[__name__], settings=settings)


if __name__ == "__main__":
    from tests.engine import poison_node  # jobs are stored under the module's real name

    scheduler = poison_node.make(sys.argv[1], sys.argv[2])
    scheduler.start()
    while scheduler.query.count():
        if all(job.is_settled for job in scheduler.query.iterate()):
            break
        threading.Event().wait(0.1)
    scheduler.stop(timedelta(seconds=5))
