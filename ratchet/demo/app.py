"""The demo as an application: its scheduler, made from the folder that the environment names."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Final

from ratchet.demo.jobs import FOLDER, measure
from ratchet.domain.retry import Backoff
from ratchet.scheduler import Scheduler
from ratchet.settings import NodeSettings, Settings

GRACE: Final = timedelta(seconds=3)
"""A silent node counts as dead after this long (the shortest there may be; the default is 60 s)."""


def scheduler() -> Scheduler:
    """A scheduler on the demo's own database; ``ratchet worker ratchet.demo.app:scheduler`` calls it."""
    database = Path(os.environ[FOLDER], "jobs.db").absolute()
    settings = Settings(node=NodeSettings(orphan_grace=GRACE))
    made = Scheduler.from_url(f"sqlite:///{database}", settings=settings)
    made.job(max_retries=1, backoff=Backoff.fixed(timedelta(milliseconds=200)))(measure)
    return made
