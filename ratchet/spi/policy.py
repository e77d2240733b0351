"""Which callables may be jobs (specification, section 5)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class TargetPolicy(Protocol):
    """Deny-all until the application says otherwise. Asked before anything is imported."""

    @property
    def is_empty(self) -> bool:
        """True if nothing at all is allowed: a scheduler then refuses to start."""
        ...

    def allows_module(self, module: str) -> bool:
        """True if targets (and payload classes) of this dotted module may be imported."""
        ...

    def allows_target(self, target: str) -> bool:
        """True if this target text (``module:qualname`` or a registered name) may be resolved."""
        ...
