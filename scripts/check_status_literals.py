"""Lint: a status name written as a string anywhere but in the lifecycle table and in migrations.

A status in a string escapes the table: renaming, adding or guarding a state would miss it. The enum
members of `ratchet.domain.lifecycle` are checked by the type checker and are what to write instead.
Docstrings and prose may name states; a string that *is* a state, or that quotes one as SQL does, may not.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ratchet.domain.lifecycle import Status

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("ratchet", "ratchet_sql", "ratchet_mongo", "conformance_tests")
EXEMPT = (
    "ratchet/domain/lifecycle.py",
    "ratchet_sql/migrations",  # the module, or one day the folder: what an old schema said stays said
    "conformance_tests/report.py",  # the verdict on a contract has a word in common with a job's status
    "ratchet_sql/rendered.py",  # generated from statements that use the enum, and proved current
)

_NAMES = "|".join(Status)
_LITERAL = re.compile(rf"\A(?:{_NAMES})\Z|(['\"])(?:{_NAMES})\1")


def _docstrings(tree: ast.AST) -> set[int]:
    """The ids of the expressions that document rather than say: every string that is a statement."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def literals(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string in `source` that is, or quotes, a status name."""
    tree = ast.parse(source)
    prose = _docstrings(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in prose:
            continue
        if found := _LITERAL.search(node.value):
            yield node.lineno, found.group()


def check(root: Path = ROOT) -> list[str]:
    """One message for each literal in the packages under `root`."""
    problems = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if name.startswith(EXEMPT):
                continue
            problems += [
                f"{name}:{line}: status {text} as a string; use ratchet.domain.lifecycle.Status"
                for line, text in literals(path.read_text(encoding="utf-8"))
            ]
    return problems


if __name__ == "__main__":
    found = check()
    print("\n".join(found) or "no literal status outside the table")
    sys.exit(1 if found else 0)
