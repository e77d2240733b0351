"""Lines of the result table: samples, targets, verdicts and how they are written down. Pure."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, slots=True)
class Target:
    """What a line must reach.

    Attributes:
        sign: ``>=``, ``<=``, ``>`` or ``<``.
        value: in the line's unit.
        own: True if the figure is this project's own choice, where the requirement gives none.
    """

    sign: str
    value: float
    own: bool = False

    def met(self, measured: float) -> bool:
        """True if `measured` reaches it."""
        return _COMPARE[self.sign](measured, self.value)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table.

    Attributes:
        name: what was measured.
        unit: ``x`` for a ratio ours / reference, else the unit of the samples.
        samples: one per paired run (or per run, where there is nothing to pair with).
        target: None: reported only.
        ours, reference: the medians behind the ratio, for people.
        note: how it was measured, where the name does not say.
        problem: why it was not measured.
    """

    name: str
    unit: str
    samples: Sequence[float] = ()
    target: Target | None = None
    ours: str = ""
    reference: str = ""
    note: str = ""
    problem: str = ""

    @property
    def median(self) -> float:
        """Of the samples."""
        return statistics.median(self.samples)

    @property
    def verdict(self) -> str:
        """``met``, ``NOT met``, ``NOT RUN`` or, without a target, ``reported``."""
        if self.problem or not self.samples:
            return "NOT RUN"
        if self.target is None:
            return "reported"
        return "met" if self.target.met(self.median) else "NOT met"

    @property
    def is_bad(self) -> bool:
        """True if the run as a whole cannot count as passed."""
        return self.verdict.startswith("NOT")

    def cells(self) -> tuple[str, ...]:
        """The table's columns."""
        target = "-"
        if self.target is not None:
            target = f"{self.target.sign} {number(self.target.value)} {self.unit}"
            target += " (own)" if self.target.own else ""
        measured, spread = "-", "-"
        if self.samples:
            measured = f"{number(self.median)} {self.unit}"
            spread = f"{number(min(self.samples))} - {number(max(self.samples))} ({len(self.samples)})"
        return self.name, target, measured, spread, self.ours or "-", self.reference or "-", self.verdict


HEAD: Final = ("line", "target", "median", "min - max (runs)", "ours", "reference", "verdict")


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def as_text(lines: Sequence[Line]) -> str:
    """The table for a terminal, notes and problems below it."""
    rows = [HEAD, *[line.cells() for line in lines]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    written = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    written.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*written, "", *_remarks(lines)])


def as_markdown(lines: Sequence[Line]) -> str:
    """The table for a page."""

    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rows = [row(HEAD), row(["---"] * len(HEAD)), *[row(line.cells()) for line in lines]]
    return "\n".join([*rows, "", *[f"- {remark}" for remark in _remarks(lines)]])


def _remarks(lines: Sequence[Line]) -> list[str]:
    remarks = [f"{line.name}: {line.note}" for line in lines if line.note]
    remarks += [
        f"{line.name}: NOT RUN: {line.problem or 'no samples'}" for line in lines if line.verdict == "NOT RUN"
    ]
    return remarks
