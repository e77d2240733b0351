"""Render docs/reference/conformance-*.md from the JSON reports of whole runs of the suite on our own stores.

Arguments: report files, named ``memory.json``, ``sqlite.json`` and ``mongodb.json``. Without any: run the suite
(on MongoDB with the server that the tests take; see tests/mongo/servers.py). What differs
from machine to machine and from run to run (versions of databases, times) is not on the pages.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from conformance_tests.report import render
from scripts.generated import ROOT, publish

STORES = {
    "memory": ["--ratchet-url", "memory://"],
    "sqlite": ["--ratchet-url", "sqlite:///{folder}/new.db"],
    "mongodb": [
        "--ratchet-harness",
        "tests.mongo.harness:MongoHarness",
    ],  # starts a server, where none is named
}
NAMES = {
    "memory": "the memory store",
    "sqlite": "the SQLite store",
    "mongodb": "the MongoDB store (its sync flavour, on a replica set)",
}


def page(name: str, report: dict[str, Any]) -> str:
    """The page of one store."""
    kept = {key: value for key, value in report["facts"].items() if key == "capabilities"}
    head, _, rest = render({**report, "facts": kept}, timed=False).partition("\n")
    told = (
        f"Rendered by `scripts/render_conformance.py` from a run of the suite on {NAMES[name]}. Do not edit.\n"
        "What each contract says: [contracts](contracts.md)."
    )
    return f"{head.replace('# Ratchet store', f'# {name}: Ratchet store')}\n\n{told}\n{rest}"


def run(name: str, folder: Path) -> Path:
    """Run the whole suite on one store; where the report is."""
    file = folder / f"{name}.json"
    store = [word.format(folder=folder) for word in STORES[name]]
    words = ["--pyargs", "conformance_tests", *store, "--ratchet-report-json", str(file), "-q"]
    subprocess.run([sys.executable, "-m", "pytest", *words], check=False, cwd=ROOT)
    return file


def main() -> int:
    """Write the pages, or with --check prove that they are current."""
    files = [Path(each) for each in sys.argv[1:] if not each.startswith("-")]
    sys.argv[1:] = [each for each in sys.argv[1:] if each.startswith("-")]
    with tempfile.TemporaryDirectory() as folder:
        files = files or [run(name, Path(folder)) for name in STORES]
        reports = {each.stem: json.loads(each.read_text(encoding="utf-8")) for each in files}
    failed = 0
    for name, report in reports.items():
        target = ROOT / f"docs/reference/conformance-{name}.md"
        failed |= publish(target, page(name, report), script="scripts/render_conformance.py")
    return failed


if __name__ == "__main__":
    sys.exit(main())
