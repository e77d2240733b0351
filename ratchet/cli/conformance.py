"""``ratchet conformance``: the conformance suite on any installed store."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from ratchet.cli import ERROR, OK, USAGE
from ratchet.errors import MissingExtra

_NEEDED: Final = ("pytest", "hypothesis")
_USAGE_OF_PYTEST: Final = 4


def conformance(
    url: Annotated[
        str, typer.Argument(help="Where the store may make databases of its own: sqlite:///new.db")
    ],
    report_json: Annotated[Path | None, typer.Option("--json", help="Write the report as JSON.")] = None,
    report_markdown: Annotated[Path | None, typer.Option("--markdown", help="Write it as Markdown.")] = None,
    contracts: Annotated[
        str | None, typer.Option(help="Only these contracts, like CLAIM-06,FENCE-*.")
    ] = None,
    soak: Annotated[float, typer.Option(min=0.0, help="Add an endurance test of so many seconds.")] = 0.0,
    workers: Annotated[int, typer.Option(min=0, help="Processes at once (needs pytest-xdist).")] = 0,
) -> None:
    """Test the store that is installed for URL against every contract; exit code 1 unless it is complete.

    It works only in databases that it makes itself, removes them afterwards, and refuses a database that
    is not empty.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"the suite needs {' and '.join(missing)}; install it with: pip install 'ratchet-jobs[conformance]'"
        )
    if workers and find_spec("xdist") is None:
        raise MissingExtra("--workers needs pytest-xdist; install it with: pip install pytest-xdist")
    words = ["--pyargs", "conformance_tests", "--ratchet-url", url, "-q", "-p", "no:cacheprovider"]
    for option, value in (
        ("--ratchet-report-json", report_json and report_json.absolute()),
        ("--ratchet-report-md", report_markdown and report_markdown.absolute()),
        ("--ratchet-contracts", contracts),
        ("--ratchet-soak", soak or None),
        ("-n", workers or None),
    ):
        words += [option, str(value)] if value is not None else []
    sys.exit(_run(words))


def _run(words: list[str]) -> int:
    """Pytest in a process of its own, without the configuration of whatever folder this is."""
    with tempfile.TemporaryDirectory(prefix="ratchet-conformance-") as folder:
        settings = Path(folder, "pytest.ini")
        settings.write_text("[pytest]\n", encoding="utf-8")
        own = ["-c", str(settings), "--rootdir", folder, "--import-mode=importlib"]
        scratch = {"HYPOTHESIS_STORAGE_DIRECTORY": str(Path(folder, "hypothesis"))}
        command = [sys.executable, "-m", "pytest", *own, *words]
        code = subprocess.run(command, check=False, env=os.environ | scratch).returncode
    return {0: OK, _USAGE_OF_PYTEST: USAGE}.get(code, ERROR)
