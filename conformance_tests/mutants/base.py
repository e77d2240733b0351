"""A mutant: the memory store with exactly one fault, and the contract that must notice it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from conformance_tests.mutants.joining import JoiningMemoryStore
from ratchet.defaults.memory import MemoryStore
from ratchet.defaults.memory_data import MemoryData
from ratchet.spi.clock import Clock

Faulty = TypeVar("Faulty", bound=type[MemoryStore] | type[MemoryData])


@dataclass(frozen=True, slots=True)
class Mutant:
    """A deliberately broken store.

    Attributes:
        name: short, for reports.
        fault: what is wrong with it, one sentence.
        killed_by: the id of the contract that must fail on it; others may fail too.
        group: what part of a store the fault is in.
        store, data: the two halves of the memory store, one of them with the fault.
        sound: the store that it would be without the fault.
    """

    name: str
    fault: str
    killed_by: str
    group: str
    store: type[MemoryStore] = MemoryStore
    data: type[MemoryData] = MemoryData
    sound: type[MemoryStore] = MemoryStore

    def open(self, clock: Clock | None = None) -> MemoryStore:
        """An empty store with the fault."""
        return self._handle(self.data(clock))

    def another(self, store: MemoryStore) -> MemoryStore:
        """A further handle on the jobs of `store`, with the same fault."""
        return self._handle(store._data)

    def _handle(self, data: MemoryData) -> MemoryStore:
        handle = self.store.__new__(self.store)
        handle._shared = data
        return handle


REGISTERED: Final[list[Mutant]] = []


def killed_by(contract: str) -> Callable[[Faulty], Faulty]:
    """Register a faulty half of the memory store; its name and its docstring are the mutant's.

    Args:
        contract: the id of the contract that must fail.
    """

    def register(half: Faulty) -> Faulty:
        name = re.sub(r"(?<!^)(?=[A-Z])", "-", half.__name__).lower()
        fault = " ".join((half.__doc__ or "").split())
        group = half.__module__.rpartition(".")[2].replace("_", " ")
        if issubclass(half, MemoryStore):
            sound = JoiningMemoryStore if issubclass(half, JoiningMemoryStore) else MemoryStore
            REGISTERED.append(Mutant(name, fault, contract, group, store=half, sound=sound))
        elif issubclass(half, MemoryData):
            REGISTERED.append(Mutant(name, fault, contract, group, data=half))
        return half

    return register
