"""The memory store with transactions of callers, and no fault: what mutants of that capability are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Final
from weakref import WeakKeyDictionary

from ratchet.defaults.memory import MemoryStore
from ratchet.defaults.memory_data import MemoryData
from ratchet.domain.job import NewJob
from ratchet.errors import StoreTransientError, UsageError
from ratchet.spi.capabilities import Capability
from ratchet.spi.store import Inserted


class MemoryUnit:
    """A caller's transaction: jobs that nobody sees before the commit, and whose keys nobody else can use."""

    def __init__(self, data: MemoryData) -> None:
        self.data = data
        self.jobs: list[tuple[NewJob, datetime]] = []
        self.is_open = True

    @property
    def keys(self) -> set[tuple[str, str]]:
        """The keys that it has taken."""
        return {key for new, _ in self.jobs for key in _keys(new)}

    def original(self, key: str) -> Inserted | None:
        """Its own job that has taken the idempotency key."""
        for new, now in self.jobs:
            if new.idempotency_key == key:
                return Inserted.of(new, now).again()
        return None


def _keys(new: NewJob) -> set[tuple[str, str]]:
    named = (("idempotency", new.idempotency_key), ("business", new.business_key))
    return {(kind, key) for kind, key in named if key is not None}


_open: Final[WeakKeyDictionary[MemoryData, list[MemoryUnit]]] = WeakKeyDictionary()


def open_units(data: MemoryData) -> list[MemoryUnit]:
    """The transactions that are open now."""
    return list(_open.get(data, ()))


class JoiningMemoryStore(MemoryStore):
    """A memory store that joins transactions."""

    @property
    def capabilities(self) -> frozenset[str]:
        """Transactional enqueue."""
        return frozenset({Capability.TRANSACTIONAL_ENQUEUE.value})

    @contextmanager
    def transaction(self) -> Iterator[MemoryUnit]:
        """Open one; committed at the end, rolled back by an exception."""
        unit = MemoryUnit(self._data)
        units = _open.setdefault(self._data, [])
        units.append(unit)
        try:
            yield unit
        except BaseException:
            self.roll_back(unit)
            raise
        else:
            self.commit(unit)
        finally:
            unit.is_open = False
            units.remove(unit)

    def commit(self, unit: MemoryUnit) -> None:
        """Make its jobs visible."""
        with unit.data.lock:
            for new, now in unit.jobs:
                unit.data.add(new, now)

    def roll_back(self, unit: MemoryUnit) -> None:
        """Nothing was written."""

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        """As the memory store, or into an open transaction."""
        self.check_keys(jobs, unit)
        if unit is None:
            return super().insert(jobs)
        if not isinstance(unit, MemoryUnit) or unit.data is not self._data or not unit.is_open:
            raise UsageError("unit= is an open transaction of this memory store")
        return self.join(unit, [replace(new, claim_for=None) for new in jobs])

    def check_keys(self, jobs: Sequence[NewJob], unit: object | None) -> None:
        """Refuse keys that another open transaction uses: nobody knows yet whether they are taken."""
        used = {key for new in jobs for key in _keys(new)}
        for other in open_units(self._data):
            if other is not unit and used & other.keys:
                raise StoreTransientError("an open transaction uses this key; try again when it has ended")

    def join(self, unit: MemoryUnit, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Insert all of `jobs` into the transaction, or none."""
        data = self._data
        with data.lock:
            now = data.now()
            answers: list[Inserted] = []
            first: dict[str, Inserted] = {}
            for new in jobs:
                key, known = new.idempotency_key, None
                if key is not None:
                    known = unit.original(key) or data.original(key) or first.get(key)
                answer = Inserted.of(new, now) if known is None else known.again()
                if key is not None:
                    first.setdefault(key, answer)
                answers.append(answer)
            created = [new for new, answer in zip(jobs, answers, strict=True) if answer.created]
            data.check_new([*(new for new, _ in unit.jobs), *created])
            unit.jobs += [(new, now) for new in created]
            return answers
