"""A clock that moves only when it is told to."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Final

from ratchet.errors import UsageError

START: Final = datetime(2030, 1, 1, tzinfo=UTC)
_ZERO: Final = timedelta()


class VirtualClock:
    """Store time for tests: ``Scheduler.from_url("memory://", clock=VirtualClock())``. Thread-safe.

    Args:
        start: an aware instant (default: the first of January 2030, 00:00 UTC, the same in every run).
    """

    def __init__(self, start: datetime = START) -> None:
        self._now = _instant(start)
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """The instant, aware, UTC."""
        return self._now

    def advance(self, step: timedelta) -> datetime:
        """Go forward by `step`; answers the new instant.

        Raises:
            UsageError: a negative step: time does not run backwards.
        """
        if not isinstance(step, timedelta):
            raise UsageError(f"a step is a timedelta, not {type(step).__name__}")
        if step < _ZERO:
            raise UsageError(f"a clock does not run backwards: {step}")
        with self._lock:
            self._now += step
            return self._now

    def set(self, instant: datetime) -> datetime:
        """Go forward to `instant`; answers it.

        Raises:
            UsageError: naive, or before the present instant.
        """
        instant = _instant(instant)
        with self._lock:
            if instant < self._now:
                raise UsageError(f"a clock does not run backwards: from {self._now} to {instant}")
            self._now = instant
            return instant

    def __repr__(self) -> str:
        return f"<VirtualClock {self._now.isoformat()}>"


def _instant(instant: datetime) -> datetime:
    if not isinstance(instant, datetime) or instant.utcoffset() is None:
        raise UsageError(
            f"a clock needs an aware datetime, like datetime(2030, 1, 1, tzinfo=UTC), not {instant!r}"
        )
    return instant.astimezone(UTC)
