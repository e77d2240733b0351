"""The harness of the memory store."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from uuid import uuid4

from conformance_tests.harness import SettableClock, StoreHarness
from ratchet.defaults.memory import MemoryStore, plugin
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

    def versions(self) -> Mapping[str, str]:
        """Of the distribution."""
        return {"store": f"memory ({_distribution()})", "database": "none"}


def _distribution() -> str:
    try:
        return f"ratchet-jobs {version('ratchet-jobs')}"
    except PackageNotFoundError:
        return "ratchet-jobs, not installed"
