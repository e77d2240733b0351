"""Suites for what is not a store: coordinator, retry policy, error sanitizer, resilience, codec, executor.

One command, with an option for each part that is to be tested::

    pytest --pyargs conformance_tests.spi --ratchet-codec mypkg.codec:MyCodec

An option names a class or a function without arguments. It makes the part itself, or, for a coordinator
or an executor, a `CoordinatorHarness` or `ExecutorHarness`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance_tests.spi.harness import CoordinatorHarness, ExecutorHarness

__all__ = ["CoordinatorHarness", "ExecutorHarness"]


def __getattr__(name: str) -> Any:
    """Load at first use: pytest imports this package at every start, for its plugin."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from conformance_tests.spi import harness

    return getattr(harness, name)
