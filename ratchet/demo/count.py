"""The second opinion: which files there are and what is in them, counted by other means than the jobs'."""

from __future__ import annotations

import ast
import os
import sysconfig
import tokenize
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import RatchetError


def standard_library() -> tuple[Path, list[Path]]:
    """Where the running Python's library is, and its source files, without installed packages.

    Raises:
        RatchetError: there are no sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            each for each in folders if each not in ("site-packages", "dist-packages", "__pycache__")
        )
        found += [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
    files = [path for path in found if path.is_file()]
    if not files:
        raise RatchetError(f"this Python has no sources of its standard library in {root}")
    return root, files


@dataclass(slots=True)
class Count:
    """Sums over files that parse, and which do not."""

    files: int = 0
    bytes: int = 0
    lines: int = 0
    functions: int = 0
    classes: int = 0
    unparsable: frozenset[str] = frozenset()

    def __add__(self, other: Count) -> Count:
        """Of both."""
        return Count(
            files=self.files + other.files,
            bytes=self.bytes + other.bytes,
            lines=self.lines + other.lines,
            functions=self.functions + other.functions,
            classes=self.classes + other.classes,
            unparsable=self.unparsable | other.unparsable,
        )


def count(files: Sequence[Path], progress: Callable[[int], None]) -> Count:
    """Count without a syntax tree: functions and classes are the keywords ``def`` and ``class`` among the tokens.

    Only whether a file parses is asked of the same parser; there is no second one.
    """
    total = Count(files=len(files))
    unparsable = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own sources have escapes that warn
        for done, path in enumerate(files, 1):
            if not _parses(path):
                unparsable.add(str(path))
            else:
                total.bytes += path.stat().st_size
                with path.open("rb") as source:
                    total.lines += sum(1 for _ in source)
                with path.open("rb") as source:
                    for token in tokenize.tokenize(source.readline):
                        if token.type == tokenize.NAME:
                            total.functions += token.string == "def"
                            total.classes += token.string == "class"
            progress(done)
    total.unparsable = frozenset(unparsable)
    return total


def _parses(path: Path) -> bool:
    try:
        compile(path.read_bytes(), str(path), "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
