"""The demo's job: parse one Python file and measure it."""

from __future__ import annotations

import ast
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ratchet.context import current_job
from ratchet.errors import do_not_retry

FOLDER: Final = "RATCHET_DEMO_FOLDER"
"""The environment variable that names the demo's folder to its workers."""

HOLD: Final = "hold"
HELD: Final = "held"


@dataclass(frozen=True)
class Measure:
    """What a file consists of."""

    bytes: int
    lines: int
    functions: int
    classes: int


@do_not_retry("the file does not parse")
class Unparsable(Exception):
    """Python refuses the file, and would refuse it again."""


class Stumble(Exception):
    """The one failure that the demo asks some jobs for, to show a retry."""


def measure(path: str, *, stumble: bool = False) -> Measure:
    """Parse and measure a file.

    Args:
        path: of a Python source file.
        stumble: fail at the first attempt.

    Raises:
        Unparsable: permanent.
    """
    _wait_if_held()
    if stumble and current_job().attempt == 1:
        raise Stumble("made to fail once")
    source = Path(path).read_bytes()
    try:
        tree = ast.parse(source, filename=Path(path).name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unparsable(str(error)) from error
    functions = classes = 0
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions += 1
        elif isinstance(node, ast.ClassDef):
            classes += 1
    lines = source.count(b"\n") + (not source.endswith(b"\n") and bool(source))
    return Measure(len(source), lines, functions, classes)


def _wait_if_held() -> None:
    """Stand still in the process that the demo is about to kill, so that it certainly dies with running jobs.

    The demo names the process in a file, each of its bodies answers with a file of its own, and only then
    does the demo kill it.
    """
    folder = os.environ.get(FOLDER)
    if folder is None:
        return
    hold = Path(folder, HOLD)
    try:
        named = hold.read_text(encoding="ascii")
    except OSError:
        return
    if named == str(os.getpid()):
        job = current_job()
        Path(folder, HELD, f"{job.id}.{job.claim_seq}").touch()
        while hold.exists():
            time.sleep(0.02)
