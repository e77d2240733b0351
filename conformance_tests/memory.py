"""The harness of the memory store."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from uuid import uuid4

from conformance_tests.harness import SettableClock, StoreHarness
from ratchet.defaults.memory import MemoryStore, plugin
from ratchet.domain.job import Job, NewJob
from ratchet.domain.lifecycle import HOLDS_BUSINESS_KEY
from ratchet.errors import ConfigurationError


class MemoryHarness(StoreHarness):
    """Handles on one memory store find each other by its name, which is a new one after each reset."""

    def __init__(self, url: str = "memory://") -> None:
        if url != "memory://":
            raise ConfigurationError("the memory store is tested as memory://, in a name of its own")
        self.clock = SettableClock()
        self._url = ""

    def open(self) -> MemoryStore:
        """A further handle on the same jobs."""
        return plugin.open(self._url, clock=self.clock)

    def reset(self) -> None:
        """Another name: the jobs of the last one went with its handles."""
        self.clock = SettableClock()
        self._url = f"memory://{uuid4().hex}"

    def seed(self, job: Job) -> None:
        """Submit it, then write the fields that only transitions write, as a transition would."""
        shared = {each.name for each in fields(NewJob)} & {each.name for each in fields(Job)}
        with closing(self.open()) as store:
            store.insert([NewJob(**{name: getattr(job, name) for name in shared}, at=job.scheduled_time)])
            data = store._data
            with data.lock:
                record = data.records[job.id.int]
                written = {each.name for each in fields(Job)} - shared
                data.write(record, [(name, getattr(job, name)) for name in sorted(written)], data.now())
                if job.status not in HOLDS_BUSINESS_KEY and job.business_key is not None:
                    del data.business[job.business_key]

    def versions(self) -> Mapping[str, str]:
        """Of the distribution."""
        return {"store": f"memory ({_distribution()})", "database": "none"}


def _distribution() -> str:
    try:
        return f"ratchet-jobs {version('ratchet-jobs')}"
    except PackageNotFoundError:
        return "ratchet-jobs, not installed"
