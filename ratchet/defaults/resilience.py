"""The default resilience strategy: lets everything through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

T = TypeVar("T")


class PassThrough:
    """No gate: every service may always be called."""

    def retry_delay(self, service: str | None) -> timedelta | None:
        """Always None: go ahead."""
        return None

    def execute(self, service: str | None, call: Callable[[], T]) -> T:
        """Call it."""
        return call()

    async def execute_async(self, service: str | None, call: Callable[[], Awaitable[T]]) -> T:
        """Await it."""
        return await call()
