"""How a store is found: the entry point group ``ratchet.stores``, one entry per URL scheme."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ratchet.spi.clock import Clock
from ratchet.spi.store import JobStore


@runtime_checkable
class StorePlugin(Protocol):
    """What an entry point of the group ``ratchet.stores`` names."""

    def open(self, url: str, *, clock: Clock | None = None, auto_upgrade: bool = False) -> JobStore:
        """A store for `url`. Opens nothing until first use; `ConfigurationError` for a malformed URL.

        Args:
            url: as the user wrote it.
            clock: replaces store time.
            auto_upgrade: bring the schema of a server up to date at first use.
        """
        ...


@runtime_checkable
class SchemaStore(Protocol):
    """What a store with a versioned schema offers to ``ratchet schema``."""

    def schema_status(self) -> tuple[int | None, int]:
        """(version found, version this code wants); None: no schema yet."""
        ...

    def schema_upgrade(self) -> Sequence[int]:
        """Apply what is missing, safely under racing starts; answers the versions applied."""
        ...
