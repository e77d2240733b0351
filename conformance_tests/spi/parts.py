"""The parts there are suites for, and how a test says which contract it shows."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NoReturn, TypeVar

import pytest

from conformance_tests.contract import Contract, contract

T = TypeVar("T", bound=Callable[..., Any])

PARTS: Final = {
    "coordinator": "a ClusterCoordinator, or a CoordinatorHarness",
    "retry-policy": "a RetryPolicy",
    "error-sanitizer": "an ErrorSanitizer",
    "resilience": "a ResilienceStrategy",
    "codec": "a PayloadCodec",
    "executor": "an ExecutorHarness",
}
"""Option (``--ratchet-codec``) -> what it names."""

NOT_DECLARED: Final = "NOT DECLARED: "
NOT_OFFERED: Final = "NOT OFFERED: "


def shows(id: str) -> Callable[[T], T]:
    """Mark a test as the one that shows a contract; its docstring is the sentence.

    Kept apart from the contracts of a store: a store's report does not wait for them.
    """

    def mark(test: T) -> T:
        marked = contract(id)(test)
        vars(marked)["ratchet_spi_contract"] = vars(marked).pop("ratchet_contract")
        return marked

    return mark


def shown_by(test: object) -> Contract | None:
    """The contract that a test of these suites shows."""
    found = getattr(test, "ratchet_spi_contract", None)
    return found if isinstance(found, Contract) else None


def not_declared(what: str) -> NoReturn:
    """End the test: the part does not claim to do this."""
    pytest.skip(NOT_DECLARED + what)


def not_offered(what: str) -> NoReturn:
    """End the test: the harness has not got what its contract needs."""
    pytest.skip(NOT_OFFERED + what)


def contracts_of(part: str) -> list[Contract]:
    """The contracts of a part, in order of their ids."""
    module = import_module(f"conformance_tests.spi.test_{part.replace('-', '_')}")
    found = (shown_by(each) for name, each in vars(module).items() if name.startswith("test_"))
    return sorted((shown for shown in found if shown is not None), key=lambda shown: shown.id)
