"""The suite tested by broken stores: each is noticed by the contract that it names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conformance_tests.contract import contracts
from conformance_tests.mutants import MUTANTS, Mutant
from scripts import render_mutants

pytestmark = pytest.mark.timeout(300)  # a run of the suite in a process of its own, on a busy machine

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


@pytest.fixture(scope="session")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What became of every mutant, from one run of all of them."""
    told = tmp_path_factory.mktemp("mutants") / "told.json"
    run = subprocess.run(
        [sys.executable, "-m", "conformance_tests.mutants", "--json", str(told)],
        capture_output=True, text=True, timeout=280, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert told.exists(), run.stdout + run.stderr
    return {each["mutant"]: each for each in json.loads(told.read_text(encoding="utf-8"))}


@pytest.mark.xdist_group("mutants")
@pytest.mark.parametrize("name", list(BY_NAME))
def test_killed(sentences: dict[str, dict[str, str]], name: str) -> None:
    """The contract that the mutant names fails on it, and not on the store without the fault."""
    sentence = sentences[name]
    assert sentence["fate"] == "killed", sentence
    assert sentence["contract"] == BY_NAME[name].killed_by


def test_the_faults_are_told_apart() -> None:
    """Every mutant has a name and a sentence of its own, and there are many more than 25."""
    assert len(BY_NAME) == len(MUTANTS) > 100
    assert len({mutant.fault for mutant in MUTANTS}) == len(MUTANTS)
    assert all(mutant.fault.endswith(".") for mutant in MUTANTS)


def test_only_contracts_are_named() -> None:
    """Every contract that a mutant names exists."""
    assert {mutant.killed_by for mutant in MUTANTS} <= set(contracts())


def test_the_page_is_current() -> None:
    """The committed list is what the mutants render to."""
    assert render_mutants.PAGE.read_text(encoding="utf-8") == render_mutants.render()


def test_a_survivor_is_told() -> None:
    """A store without a fault survives, one whose own code fails is broken, and neither counts as killed."""
    program = (
        "import conformance_tests.mutants.run as r; from conformance_tests.mutants import Mutant\n"
        "class Raises(r.MemoryStore):\n"
        "    def counts(self): raise TypeError('mine')\n"
        "sound = Mutant('sound', 'None.', 'COUNT-01', 'x')\n"
        "raises = Mutant('raises', 'None.', 'COUNT-01', 'x', store=Raises)\n"
        "lost = Mutant('lost', 'None.', 'COUNT-99', 'x')\n"
        "print('FATES', [each.fate for each in r.judge([sound, raises, lost])])\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "FATES ['survived', 'broken', 'no such contract']" in run.stdout, run.stdout + run.stderr


def test_handles_share_their_jobs() -> None:
    """A further handle on a mutant sees the same jobs and has the same fault."""
    mutant: Mutant = BY_NAME["held-forgets"]
    first = mutant.open()
    second = mutant.another(first)
    assert type(first) is type(second) is mutant.store
    assert first._data is second._data
