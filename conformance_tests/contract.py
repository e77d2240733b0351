"""A contract: one sentence that every store must hold to, its id, and the test that shows it."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from conformance_tests.harness import HOOKS

T = TypeVar("T", bound=Callable[..., Any])

_ID: Final = re.compile(r"[A-Z]+(-[A-Z]+)*-\d\d")
_CASES: Final = re.compile(r" \(F\d+\)")  # field cases are told by a mark of their own
REQUIRED_HOOKS: Final = frozenset({"clock"})
"""Optional for an author who begins; a complete report needs them, because a store takes a clock."""


@dataclass(frozen=True, slots=True)
class Contract:
    """What a store is held to.

    Attributes:
        id: its public name, like ``CLAIM-06``.
        sentence: what must hold.
        test: where that is shown, ``module::function``.
        needs: hooks of the harness without which it cannot be shown (NOT OFFERED).
        capability: the optional group that it belongs to (NOT DECLARED without it); None: the core.
    """

    id: str
    sentence: str
    test: str
    needs: tuple[str, ...] = ()
    capability: str | None = None

    @property
    def required(self) -> bool:
        """True if a report without it is incomplete; False where it needs a hook that a store may not have."""
        return set(self.needs) <= REQUIRED_HOOKS

    @property
    def group(self) -> str:
        """``CLAIM`` of ``CLAIM-06``."""
        return self.id.rpartition("-")[0]


_CONTRACTS: Final[dict[str, Contract]] = {}


def contract(
    id: str, sentence: str | None = None, *, needs: tuple[str, ...] = (), capability: str | None = None
) -> Callable[[T], T]:
    """Mark a test as the one that shows a contract.

    Args:
        id: unique in the suite.
        sentence: what must hold; None: the first paragraph of the test's docstring.
        needs: names of optional hooks of `StoreHarness`.
        capability: one of `ratchet.spi.capabilities.Capability`.

    Raises:
        ValueError: a malformed or double id, an unknown hook, or no sentence.
    """
    if not _ID.fullmatch(id):
        raise ValueError(f"a contract id looks like CLAIM-06, not {id!r}")
    if unknown := set(needs) - HOOKS:
        raise ValueError(f"{id} needs {sorted(unknown)}; hooks are {sorted(HOOKS)}")

    def mark(test: T) -> T:
        told = sentence or (inspect.getdoc(test) or "").partition("\n\n")[0]
        if not told:
            raise ValueError(f"{id}: {test.__name__} has no docstring to say what must hold")
        where = f"{test.__module__}::{test.__qualname__}"
        made = Contract(id, _CASES.sub("", " ".join(told.split())), where, needs, capability)
        known = _CONTRACTS.get(id)
        if known is not None and known.test != where:
            raise ValueError(f"{id} is shown by {known.test} and by {where}; an id belongs to one test")
        _CONTRACTS[id] = made
        test.ratchet_contract = made  # type: ignore[attr-defined]
        return test

    return mark


def contract_of(test: object) -> Contract | None:
    """The contract that a test function shows."""
    found = getattr(test, "ratchet_contract", None)
    return found if isinstance(found, Contract) else None


def contracts() -> Mapping[str, Contract]:
    """Every contract of a store, by id, in order; reads all test modules of the suite."""
    import conformance_tests

    for module in pkgutil.iter_modules([str(Path(str(conformance_tests.__file__)).parent)]):
        if module.name.startswith("test_"):
            import_module(f"conformance_tests.{module.name}")
    ours = {
        name: each
        for name, each in sorted(_CONTRACTS.items())
        if each.test.count(".") == 1 and each.test.startswith("conformance_tests.")
    }
    return MappingProxyType(ours)
