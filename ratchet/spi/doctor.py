"""What a store finds out about its own database, for ``ratchet doctor`` and for running nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check.

    Attributes:
        name: of the check; the same in every run, for scripts.
        level: ``ok``; ``warning``: works, but worse than it could; ``error``: does not work, or will not.
        told: one sentence: what was found and, unless it is ok, what to do.
    """

    name: str
    level: Level
    told: str


@runtime_checkable
class CheckedStore(Protocol):
    """What a store offers that can check its own database. Optional: `ratchet.doctor` asks whoever has it."""

    def checks(self, *, quick: bool = False) -> Sequence[Finding]:
        """Look at the server, its settings, indexes and query plans; changes nothing.

        Args:
            quick: only what takes a few round trips; asked for by every node a second after its start and
                once a day; it logs what is not ok.

        Raises:
            StoreError: the database cannot be reached. What it does not let one look at is a finding.
        """
        ...
