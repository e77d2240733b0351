"""A module that another thread is still importing: its functions and classes are waited for, not missed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.defaults.codec import JsonCodec
from ratchet.defaults.policy import PrefixPolicy
from ratchet.defaults.resolver import RegisteredServices
from ratchet.engine.targets import Targets

NAME = "slowly_imported"
SOURCE = """
import importing_gate
importing_gate.begun.set()
assert importing_gate.go_on.wait(30)
from dataclasses import dataclass

def work(): return 42

@dataclass
class Order:
    number: int
"""


class Gate:
    """Where the module stands still in the middle of its import."""

    begun = threading.Event()
    go_on = threading.Event()


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """A gate of this test, and the module behind it."""
    (tmp_path / f"{NAME}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    gate = Gate()
    gate.begun, gate.go_on = threading.Event(), threading.Event()
    monkeypatch.setitem(sys.modules, "importing_gate", gate)
    yield gate
    gate.go_on.set()
    sys.modules.pop(NAME, None)


def both(gate: Gate, find: Callable[[], Any]) -> list[Any]:
    """Two threads look for it: the first one imports, the second one comes while that is under way."""
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(find())
        except Exception as error:
            answers.append(error)

    first, second = (threading.Thread(target=run) for _ in range(2))
    first.start()
    assert gate.begun.wait(30)
    second.start()
    second.join(0.3)  # if it does not wait, it has its wrong answer by now
    gate.go_on.set()
    for thread in (first, second):
        thread.join(30)
    return answers


def test_a_function_of_a_module_that_is_being_imported_is_found(gate: Gate) -> None:
    """A target is not unknown because another slot has just begun to import its module."""
    targets = Targets(PrefixPolicy([NAME]), RegisteredServices())
    found = both(gate, lambda: targets.resolve(f"{NAME}:work").call())
    assert found == [42, 42]


def test_a_class_of_a_module_that_is_being_imported_is_found(gate: Gate) -> None:
    """A payload is not poison because another slot has just begun to import the module of its class."""
    codec = JsonCodec(allows=lambda module: module == NAME)
    text = f'{{"$":["dataclass","{NAME}:Order",{{"number":1}}]}}'
    found = both(gate, lambda: codec.decode_value(text).number)  # type: ignore[attr-defined]
    assert found == [1, 1]
