"""Where the object comes from whose method is a job (specification, section 8)."""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


@runtime_checkable
class ServiceResolver(Protocol):
    """Gives the service object for a class."""

    def resolve(self, cls: type[T]) -> T | None:
        """The object whose method is to be called; None: unknown here (the job is deferred)."""
        ...
