"""The suite tested: every mutant meets the contract that it names, which must fail on it.

``python -m conformance_tests.mutants`` runs them all in one session of pytest, in which the tests are
collected once, and on the memory store without a fault first: a contract that fails there proves nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeAlias

import pytest
from _pytest.runner import runtestprotocol

from conformance_tests.contract import contract_of
from conformance_tests.harness import SettableClock
from conformance_tests.memory import MemoryHarness
from conformance_tests.mutants import MUTANTS
from conformance_tests.mutants.base import Mutant
from conformance_tests.mutants.joining import JoiningMemoryStore
from ratchet.defaults.memory import MemoryStore
from ratchet.errors import RatchetError
from ratchet.spi.store import JobStore

Fate: TypeAlias = Literal["killed", "survived", "broken", "no such contract"]

_SOUND: Final = Mutant("sound", "None.", "", "")


def _without_fault(mutant: Mutant) -> Mutant:
    return replace(_SOUND, store=mutant.sound)


@dataclass(frozen=True, slots=True)
class Sentence:
    """What became of a mutant.

    Attributes:
        mutant: its name.
        contract: the one that had to fail.
        fate: ``broken``: the contract fails on the store without the fault, too, or it fails of something
            that no store would do (a TypeError in the mutant, say).
        told: the first line of the failure.
    """

    mutant: str
    contract: str
    fate: Fate
    told: str = ""


_WRITES: Final = (
    "insert", "delete", "claim", "apply", "settle", "settle_many", "apply_where", "recover", "take_callbacks",
    "callback_done", "heartbeat", "forget_node",
)  # fmt: skip


def _stepped(write: Callable[..., Any], reached: Callable[[str], None]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        reached("before")
        answer = write(*args, **kwargs)
        reached("after")
        return answer

    return call


class MutantHarness(MemoryHarness):
    """Opens the mutant that is being tried; the memory store without a fault until one is."""

    tried: ClassVar[Mutant] = _SOUND

    def __init__(self) -> None:
        super().__init__()
        self._first: MemoryStore | None = None

    def open(self) -> MemoryStore:
        """A further handle on the jobs of the one before."""
        mutant = type(self).tried
        if self._first is None:
            self._first = mutant.open(self.clock)
            return mutant.another(self._first)
        return mutant.another(self._first)

    def transaction(self, store: JobStore) -> AbstractContextManager[object]:
        """Of the stores that join one."""
        assert isinstance(store, JoiningMemoryStore)
        return store.transaction()

    def crash_points(self, store: JobStore, reached: Callable[[str], None]) -> None:
        """Call back before and after every write, and where the mutant itself has steps."""
        store.__dict__["reached"] = reached
        for name in _WRITES:
            store.__dict__[name] = _stepped(getattr(store, name), reached)

    def reset(self) -> None:
        """The jobs go with the last handle."""
        self.clock = SettableClock()
        self._first = None


class Judge:
    """The plugin that replaces the loop of a session: each mutant with the tests of its contract."""

    def __init__(self, mutants: Sequence[Mutant]) -> None:
        self.mutants = mutants
        self.sentences: list[Sentence] = []
        self._failures: list[tuple[bool, str]] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try every mutant; the tests of a contract end with the first that fails."""
        tests: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            shown = contract_of(getattr(item, "function", None))
            if shown is not None:
                tests.setdefault(shown.id, []).append(item)
        unsound: dict[str, tuple[bool, str]] = {}
        for contract, sound in {each.killed_by: _without_fault(each) for each in self.mutants}.items():
            failure = self._first_failure(sound, tests.get(contract, []))
            if failure is not None:
                unsound[contract] = failure
        for mutant in self.mutants:
            self.sentences.append(self._judged(mutant, tests.get(mutant.killed_by, []), unsound))
        return True

    def _judged(
        self, mutant: Mutant, items: list[pytest.Item], unsound: Mapping[str, tuple[bool, str]]
    ) -> Sentence:
        contract = mutant.killed_by
        if not items:
            return Sentence(mutant.name, contract, "no such contract")
        if contract in unsound:
            return Sentence(mutant.name, contract, "broken", f"without the fault: {unsound[contract][1]}")
        failure = self._first_failure(mutant, items)
        if failure is None:
            return Sentence(mutant.name, contract, "survived")
        fair, told = failure
        return Sentence(mutant.name, contract, "killed" if fair else "broken", told)

    def _first_failure(self, mutant: Mutant, items: list[pytest.Item]) -> tuple[bool, str] | None:
        MutantHarness.tried = mutant
        try:
            for item in items:
                self._failures.clear()
                runtestprotocol(item, log=False, nextitem=None)
                if self._failures:
                    return self._failures[0]
        finally:
            MutantHarness.tried = _SOUND
        return None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note the first failure of a test; only one of the call itself, by assertion or refusal, is fair."""
        report = yield
        if report.failed:
            error = call.excinfo.value if call.excinfo is not None else None
            fair = report.when == "call" and _is_fair(call.excinfo)
            lines = str(error).strip().splitlines()
            told = f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")
            self._failures.append((fair, f"{report.nodeid.rpartition('::')[2]}: {told}"))
        return report


def _is_fair(caught: pytest.ExceptionInfo[BaseException] | None) -> bool:
    """True for a failed assertion, an error that stores may raise, or one that arose in the test itself."""
    if caught is None:
        return False
    if isinstance(caught.value, AssertionError | RatchetError | pytest.fail.Exception):
        return True
    return Path(str(caught.traceback[-1].path)).name.startswith("test_")


def judge(mutants: Sequence[Mutant] = MUTANTS) -> list[Sentence]:
    """What becomes of `mutants`, in order.

    Raises:
        RuntimeError: the session could not begin.
    """
    the_judge = Judge(mutants)
    arguments = ["--pyargs", "conformance_tests", "-q", "--no-header"]
    arguments += ["--ratchet-harness", "conformance_tests.mutants.run:MutantHarness"]
    arguments += [
        "-p",
        "no:cacheprovider",
        "-p",
        "no:asyncio",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
    ]
    # Whatever pytest is told in the folder where this is started is not about the suite.
    arguments += ["-c", os.devnull, "--rootdir", str(Path(__file__).parents[1])]
    code = pytest.main(arguments, plugins=[the_judge])
    if len(the_judge.sentences) != len(mutants):
        raise RuntimeError(f"the session of the mutants ended early (exit code {code})")
    return the_judge.sentences


def main(names: Sequence[str], json_file: str | None = None) -> int:
    """Try the mutants of these names (none: all), print what became of each; 1 if one is alive."""
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    sentences = judge(chosen)
    for each in sentences:
        print(f"{each.fate:16}  {each.contract:12}  {each.mutant}: {each.told[:160]}")
    alive = sum(each.fate != "killed" for each in sentences)
    print(f"{len(sentences)} mutants, {len(sentences) - alive} killed by the contract they name")
    if json_file:
        Path(json_file).write_text(
            json.dumps([asdict(each) for each in sentences], indent=1), encoding="utf-8"
        )
    return 1 if alive else 0
