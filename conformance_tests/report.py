"""What became of every contract: for the terminal, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pytest

from conformance_tests import SUITE_VERSION
from conformance_tests.contract import Contract, contracts
from conformance_tests.under_test import NOT_DECLARED, NOT_OFFERED


class Verdict(StrEnum):
    """What became of a contract."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    NOT_DECLARED = "NOT DECLARED"
    NOT_OFFERED = "NOT OFFERED"
    NOT_RUN = "NOT RUN"


@dataclass
class Shown:
    """What is known of one contract.

    Attributes:
        cases: how many tests of it there were.
        failed: those that failed, by node id.
        absent: why tests of it could not run.
        seconds: how long they took together.
    """

    cases: int = 0
    failed: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """One failure fails it; a part that could not be shown leaves the rest standing."""
        if self.failed:
            return Verdict.FAILED
        if self.cases > len(self.absent):
            return Verdict.PASSED
        if not self.cases:
            return Verdict.NOT_RUN
        declared = any(not reason.startswith(NOT_DECLARED) for reason in self.absent)
        return Verdict.NOT_OFFERED if declared else Verdict.NOT_DECLARED


MANY: Final = 12
"""So many contracts that did not run are a narrowed run, and counted instead of listed."""

GOOD: Final = frozenset({Verdict.PASSED, Verdict.NOT_DECLARED})


class Results:
    """Gathers test reports; every contract that there is has an answer, also those that did not run."""

    def __init__(self) -> None:
        self.contracts: Mapping[str, Contract] = contracts()
        self.shown: dict[str, Shown] = {name: Shown() for name in self.contracts}
        self.facts: dict[str, str] = {}
        self.begun = datetime.now(UTC)
        self.selection = False  # True where the author asked for a part of the suite

    def add(self, report: pytest.TestReport, told: Mapping[str, Any]) -> None:
        """Note one report that carries a contract."""
        shown = self.shown.get(told["contract"])
        if shown is None:  # another suite's contract
            return
        self.facts.update(told.get("facts", {}))
        shown.seconds += report.duration
        if report.when != "teardown":
            shown.cases += 1
        if report.failed:
            shown.failed.append(report.nodeid)
        elif report.skipped:
            reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
            reason = reason.removeprefix("Skipped: ")
            if reason.startswith((NOT_OFFERED, NOT_DECLARED)):
                shown.absent.append(reason)
            else:
                shown.failed.append(f"{report.nodeid} was skipped: {reason}")

    # -- answers

    @property
    def obstacles(self) -> list[str]:
        """Ids of the contracts for which the report is incomplete."""
        return [
            name
            for name, shown in self.shown.items()
            if shown.verdict is Verdict.FAILED
            or (self.contracts[name].required and shown.verdict not in GOOD)
        ]

    @property
    def complete(self) -> bool:
        """True if every required contract has passed or belongs to a capability that is not declared."""
        return not self.obstacles

    @property
    def verdict(self) -> str:
        """One line."""
        told = "complete" if self.complete else "incomplete"
        if self.selection and not self.complete:
            told += " (a selection)"
        return f"Ratchet store conformance {SUITE_VERSION}: {told}"

    def counts(self) -> Counter[Verdict]:
        """How many contracts had each answer."""
        return Counter(shown.verdict for shown in self.shown.values())

    def lines(self, *, verbose: bool = False) -> Iterator[str]:
        """For the terminal: facts, what did not pass (verbose: everything), and the verdict."""
        for key, value in sorted(self.facts.items()):
            yield f"{key}: {value}"
        not_run = [name for name, shown in self.shown.items() if shown.verdict is Verdict.NOT_RUN]
        for name, shown in self.shown.items():
            if shown.verdict is Verdict.NOT_RUN and len(not_run) > MANY:
                continue
            if verbose or shown.verdict is not Verdict.PASSED:
                yield f"{shown.verdict.value:12}  {name:12}  {self._note(name)}"
        told = ", ".join(f"{number} {verdict.value}" for verdict, number in sorted(self.counts().items()))
        yield f"{len(self.shown)} contracts: {told}"
        yield self.verdict

    def _note(self, id: str) -> str:
        shown, contract = self.shown[id], self.contracts[id]
        if shown.verdict is Verdict.FAILED:
            return f"{len(shown.failed)} of {shown.cases} cases: {contract.sentence}"
        if shown.verdict is Verdict.NOT_DECLARED:
            names = sorted({each.partition(": ")[2] for each in shown.absent})
            return f"the store does not declare {', '.join(map(repr, names))}"
        if shown.verdict is Verdict.NOT_OFFERED:
            reasons = sorted({each.partition(": ")[2] for each in shown.absent})
            return f"{'; '.join(reasons)} ({'required' if contract.required else 'optional'})"
        return contract.sentence

    def as_json(self) -> dict[str, Any]:
        """Everything, in a form that stays readable for programs as the suite's version says."""
        return {
            "suite": SUITE_VERSION,
            "verdict": "complete" if self.complete else "incomplete",
            "facts": dict(sorted(self.facts.items())),
            "begun": self.begun.isoformat(timespec="seconds"),
            "seconds": round(sum(shown.seconds for shown in self.shown.values()), 3),
            "obstacles": self.obstacles,
            "contracts": [
                {
                    "id": name,
                    "sentence": self.contracts[name].sentence,
                    "required": self.contracts[name].required,
                    "capability": self.contracts[name].capability,
                    "needs": list(self.contracts[name].needs),
                    "verdict": shown.verdict.value,
                    "cases": shown.cases,
                    "failed": shown.failed,
                    "absent": sorted(set(shown.absent)),
                    "seconds": round(shown.seconds, 3),
                }
                for name, shown in self.shown.items()
            ],
        }

    def as_markdown(self, *, timed: bool = True) -> str:
        """A page; without times it is the same at every run with the same result."""
        return render(self.as_json(), timed=timed)

    def write(self, json_file: str | None, markdown_file: str | None) -> None:
        """Write the files that were asked for."""
        if json_file:
            Path(json_file).write_text(json.dumps(self.as_json(), indent=1) + "\n", encoding="utf-8")
        if markdown_file:
            Path(markdown_file).write_text(self.as_markdown(), encoding="utf-8")


def render(report: Mapping[str, Any], *, timed: bool = True) -> str:
    """The JSON report as a page."""
    lines = [f"# Ratchet store conformance {report['suite']}: {report['verdict']}", ""]
    lines += [f"- {key}: {value}" for key, value in report["facts"].items()]
    if timed:
        lines += [f"- run: {report['begun']}, {report['seconds']:.0f} s of tests"]
    counts = Counter(each["verdict"] for each in report["contracts"])
    told = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items()))
    lines += ["", f"{len(report['contracts'])} contracts: {told}.", ""]
    head = ["contract", "verdict", "what must hold"]
    if timed:
        head += ["cases", "seconds"]
    lines += [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for each in report["contracts"]:
        verdict = each["verdict"]
        if each["absent"] and verdict != Verdict.PASSED:
            verdict += f" ({'; '.join(reason.partition(': ')[2] for reason in each['absent'])})"
        row = [each["id"], verdict, each["sentence"].replace("|", "\\|")]
        if timed:
            row += [str(each["cases"]), f"{each['seconds']:.2f}"]
        lines.append(f"| {' | '.join(row)} |")
    failed = [name for each in report["contracts"] for name in each["failed"]]
    if failed:
        lines += ["", "Failed:", "", *(f"- `{name}`" for name in failed)]
    return "\n".join(lines) + "\n"
