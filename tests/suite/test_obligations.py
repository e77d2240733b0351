"""No contract without an obligation in the SPI's own text, and none there without a test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import conformance_tests
from conformance_tests.contract import contracts
from conformance_tests.obligations import named_in, obligations, shown
from ratchet.spi.capabilities import PROTOCOLS
from ratchet.spi.store import JobStore
from scripts import render_contracts
from scripts.generated import ROOT

KNOWN = ["A-01", "A-02", "A-05", "A-06", "B-01", "AB-03"]


def test_every_obligation_has_its_test_and_every_test_its_obligation() -> None:
    """What the docstrings of the SPI name is exactly what the suite shows."""
    known = contracts()
    named = {
        name
        for protocol in (JobStore, *PROTOCOLS.values())
        for names in obligations(protocol, known).values()
        for name in names
    }
    assert sorted(named - set(known)) == [], "named by the SPI, shown by no test"
    assert sorted(set(known) - named) == [], "shown by a test, named by no method"


def test_every_method_names_a_contract() -> None:
    """No method of the store SPI is without a contract."""
    silent = [method for method, names in obligations(JobStore, contracts()).items() if not names]
    assert silent == []


def test_every_test_of_the_suite_is_a_contract() -> None:
    """A test function of the suite without an id would be reported nowhere."""
    without = []
    for path in sorted(Path(str(conformance_tests.__file__)).parent.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = [ast.unparse(mark) for mark in node.decorator_list]
                if not any(mark.startswith("contract(") for mark in marks):
                    without.append(f"{path.name}::{node.name}")
    assert without == []


def test_the_page_of_contracts_is_current() -> None:
    """The committed page is what the suite renders to."""
    page = ROOT / "docs/reference/contracts.md"
    assert page.read_text(encoding="utf-8") == render_contracts.render()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("Contracts: A-01.", ("A-01",)),
        ("Contracts: A-02 ... A-06, B-01.", ("A-02", "A-05", "A-06", "B-01")),
        ("Contracts: A-99.", ("A-99",)),
        ("nothing of the kind", ()),
    ],
)
def test_the_line_is_read(line: str, names: tuple[str, ...]) -> None:
    """Single ids as they stand, known or not; a range is what exists between its ends."""
    assert named_in(f"Does it.\n\n    {line}\n    ", KNOWN) == names


@pytest.mark.parametrize(
    "line", ["Contracts: A-01", "Contracts: A-1.", "Contracts: A-01 ... B-01.", "Contracts: A-01 ... A-03."]
)
def test_a_malformed_line_is_an_error(line: str) -> None:
    """A typing mistake does not pass for a line without contracts."""
    with pytest.raises(ValueError, match=r"\S"):
        named_in(f"Does it.\n\n{line}", KNOWN)


def test_what_is_written_is_what_is_read() -> None:
    """The line made for some contracts names exactly these."""
    for names in (["A-01"], ["A-01", "A-02"], ["A-01", "A-02", "A-05", "B-01"], ["A-05", "AB-03"]):
        assert sorted(named_in(shown(names, KNOWN), KNOWN)) == sorted(names)
