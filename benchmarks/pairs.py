"""Runs two measurements alternately, so that what else the machine does meets both alike."""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from benchmarks.table import Line, Target, number

T = TypeVar("T")
Measure = Callable[[Path], float]
"""Measures once in an empty folder of its own; answers a rate (per second) or a time (ms)."""


@dataclass(slots=True)
class Pairs:
    """The outcomes of the paired runs: ``ours[i]`` and ``reference[i]`` belong together."""

    ours: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """The ratios ours / reference, pair by pair."""
        return [one / other for one, other in zip(self.ours, self.reference, strict=True)]

    def line(self, name: str, target: Target | None, *, unit: str, against: str, note: str = "") -> Line:
        """The table's line of these ratios; `unit` is that of the figures behind them."""
        return Line(
            name,
            "x",
            self.ratios,
            target,
            ours=f"{number(statistics.median(self.ours))}{unit}",
            reference=f"{against} {number(statistics.median(self.reference))}{unit}",
            note=note,
        )


def once(measure: Callable[[Path], T]) -> T:
    """One run in a fresh folder: no page, log or table of an earlier run is met again."""
    gc.collect()
    with tempfile.TemporaryDirectory(prefix="ratchet-bench-") as folder:
        return measure(Path(folder))


def paired(ours: Measure, reference: Measure, pairs: int) -> Pairs:
    """`pairs` runs of each, alternating; which of the two goes first alternates too."""
    found = Pairs()
    for i in range(pairs):
        if i % 2:
            other = once(reference)
            mine = once(ours)
        else:
            mine = once(ours)
            other = once(reference)
        found.ours.append(mine)
        found.reference.append(other)
        say(f"  pair {i + 1}/{pairs}: {number(mine)} against {number(other)}: {number(mine / other)} x")
    return found


def say(text: str) -> None:
    """Progress, apart from the table on standard output."""
    print(text, file=sys.stderr, flush=True)
