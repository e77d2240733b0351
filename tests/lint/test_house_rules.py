"""Rules of this repository that no off-the-shelf linter checks."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from scripts.generated import ROOT

TEST_FILES = sorted((ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_test_says_what_it_proves(path: Path) -> None:
    """Each test function has a docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    silent = [
        f"{path.name}:{node.lineno} {node.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert silent == []


def test_the_gate_runs_the_command_of_the_readme() -> None:
    """The README's test command is, but for pip's silence, the line that the gate runs."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    gate = (ROOT / ".ci/run").read_text(encoding="utf-8").replace("pip install -q ", "pip install ")
    commands = re.findall(r"python3? (-m venv \S+ && .*-m pytest)\s*$", readme, re.MULTILINE)
    assert len(commands) == 1, "the README tells one command that makes an environment and runs the tests"
    assert commands[0] in gate
