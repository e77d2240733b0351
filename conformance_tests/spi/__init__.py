"""Suites for what is not a store: coordinator, retry policy, error sanitizer, resilience, codec, executor.

One command, with an option for each part that is to be tested::

    pytest --pyargs conformance_tests.spi --ratchet-codec mypkg.codec:MyCodec

An option names a class or a function without arguments. It makes the part itself, or, for a coordinator
or an executor, a `CoordinatorHarness` or `ExecutorHarness`.
"""

from __future__ import annotations

from conformance_tests.spi.harness import CoordinatorHarness, ExecutorHarness

__all__ = ["CoordinatorHarness", "ExecutorHarness"]
