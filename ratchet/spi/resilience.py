"""The gate before a service that may be down (specification, section 5)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


@runtime_checkable
class ResilienceStrategy(Protocol):
    """Decides whether a service may be called, and calls it.

    Contracts: RS-01 ... RS-09.
    """

    def retry_delay(self, service: str | None) -> timedelta | None:
        """None if `service` may be called now; else how long until it is worth trying (never negative).

        The attempt is then deferred by that time and nothing is charged. `service` is the name given by
        ``@circuit_breaker(service=...)``; None: the job names none.
        """
        ...

    def execute(self, service: str | None, call: Callable[[], T]) -> T:
        """Run `call` and answer what it answers; what it raises passes through and may be counted."""
        ...

    async def execute_async(self, service: str | None, call: Callable[[], Awaitable[T]]) -> T:
        """`execute` for an ``async def`` body."""
        ...
