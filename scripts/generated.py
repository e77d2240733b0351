"""Committed generated text: write it, or prove that it is current."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def publish(path: Path, text: str, *, script: str) -> int:
    """Write `text` to `path`; with --check compare instead. The exit code: 1 if it was not current."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if the file is not current"
    )
    check: bool = parser.parse_args().check
    name = path.relative_to(ROOT).as_posix()
    current = path.read_text(encoding="utf-8") if path.exists() else ""
    if current == text:
        print(f"{name} is current")
        return 0
    if not check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"{name} written")
        return 0
    changes = difflib.unified_diff(
        current.splitlines(), text.splitlines(), f"{name} (committed)", f"{name} (from the code)", lineterm=""
    )
    print("\n".join(changes))
    print(f"{name} is not current; run: python {script}", file=sys.stderr)
    return 1
