"""Render docs/reference/contracts.md from the conformance suite: every contract and the SPI methods that name it."""

from __future__ import annotations

import sys

from conformance_tests import SUITE_VERSION
from conformance_tests.contract import Contract, contracts
from conformance_tests.obligations import obligations
from ratchet.spi.capabilities import PROTOCOLS
from ratchet.spi.store import JobStore
from scripts.generated import ROOT, publish

PAGE = """\
# Contracts of a store

Rendered from `conformance_tests` {version} by `scripts/render_contracts.py`. Do not edit.

What every job store is held to, one sentence each. A test of the suite shows each of them; the last line
of each SPI method's docstring names its contracts. *Needs* tells the hook of `StoreHarness` without which
a contract is NOT OFFERED; those that need `clock` or nothing are required for a complete report.

{groups}"""

GROUPS = {
    "ASYNC": "The store awaited",
    "APPLY": "Changes by hand",
    "BULK": "Changes in bulk",
    "CALLBACK": "Pending callbacks",
    "CELL": "Cells of the lifecycle table",
    "CLAIM": "Claiming",
    "COUNT": "Counting",
    "CRASH": "Stopped between two steps",
    "DELETE": "Deleting",
    "FENCE": "The fence",
    "FIND": "Finding",
    "GET": "Reading by id",
    "HEALTH": "Health",
    "HELD": "What is held",
    "HISTORY": "History",
    "INSERT": "Submission",
    "KEY": "Keys",
    "MANY": "Settling many",
    "MODEL": "Any sequence of calls",
    "NODE": "Nodes",
    "PROCESS": "Several processes",
    "RACE": "Races",
    "RECOVER": "Recovery",
    "SETTLE": "Settling",
    "SOAK": "Endurance",
    "STORE": "The store as a whole",
    "WAKE": "Capability wake-ups",
}


def _row(each: Contract, methods: list[str]) -> str:
    needs = ", ".join(f"`{hook}`" for hook in each.needs) or "-"
    named = ", ".join(f"`{method}`" for method in methods)
    sentence = each.sentence.replace("|", "\\|")
    return f"| {each.id} | {sentence} | {named} | {needs} |"


def render() -> str:
    """The whole page."""
    known = contracts()
    naming: dict[str, list[str]] = {name: [] for name in known}
    for protocol in (JobStore, *PROTOCOLS.values()):
        for method, names in obligations(protocol, known).items():
            for name in names:
                naming[name].append(method)
    sections = []
    for group in sorted({each.group for each in known.values()}):
        lines = [
            f"## {GROUPS.get(group, group)}",
            "",
            "| id | what must hold | named by | needs |",
            "|---|---|---|---|",
        ]
        lines += [_row(each, naming[name]) for name, each in known.items() if each.group == group]
        sections.append("\n".join(lines) + "\n")
    return PAGE.format(version=SUITE_VERSION, groups="\n".join(sections))


if __name__ == "__main__":
    sys.exit(publish(ROOT / "docs/reference/contracts.md", render(), script="scripts/render_contracts.py"))
