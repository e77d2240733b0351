"""The optional clock of a store, for tests."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
    """Replaces a store's own time."""

    def now(self) -> datetime:
        """The instant, aware, UTC."""
        ...
