"""The conformance suite: what a job store must show, for the author of any store.

One class and one command::

    # mypkg/harness.py
    from conformance_tests import StoreHarness

    class MyHarness(StoreHarness):
        def open(self): return MyStore(...)   # another handle on the harness's one database
        def reset(self): ...                  # empties it

    pytest --pyargs conformance_tests --ratchet-harness mypkg.harness:MyHarness

A minor version of the suite may add contracts for capabilities and hooks that a complete store did not
have to offer, and sharpen the test of a contract that is already listed; what makes a complete store
incomplete without that needs a new major version.
"""

from __future__ import annotations

from typing import Final

from conformance_tests.contract import contract
from conformance_tests.harness import SettableClock, StoreHarness

SUITE_VERSION: Final = "1.0"
"""Version of the contracts, apart from that of the distribution."""

__all__ = ["SUITE_VERSION", "SettableClock", "StoreHarness", "contract"]
