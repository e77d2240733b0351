"""The store that "Write a store" builds is complete, and stands on nothing but what the page says."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance_tests.contract import contracts
from tests.docs.test_snippets import ROOT, blocks

pytestmark = pytest.mark.timeout(300)  # a run of the suite in a process of its own, on a busy machine

PAGE = ROOT / "docs/how-to/write-a-store.md"
MAY_USE = ("ratchet.spi.", "ratchet.domain.", "ratchet.errors", "mystore.", "conformance_tests")
HOOKS_IT_LACKS = {"crash_points", "open_process"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the modules of the page, as a reader would have typed them."""
    folder = tmp_path_factory.mktemp("written")
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        if block.saved_as is not None:
            target = folder / block.saved_as
            target.parent.mkdir(exist_ok=True)
            target.write_text(block.code.lstrip("\n"), encoding="utf-8")
    return folder


def test_it_is_complete(written: Path) -> None:
    """The whole suite passes on the store of the page; what is not offered needs a hook that it has not got."""
    told = written / "told.json"
    run = subprocess.run(
        [
            sys.executable, "-m", "pytest", "--pyargs", "conformance_tests", "-q", "-p", "no:cacheprovider",
            "-c", os.devnull, "--rootdir", str(written), "--ratchet-report-json", str(told),
            "--ratchet-harness", "mystore.seeding:SeedingHarness",
        ],
        capture_output=True, text=True, timeout=280, cwd=written,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(written), str(ROOT)])},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert "Ratchet store conformance 1.0: complete" in run.stdout
    report = json.loads(told.read_text(encoding="utf-8"))
    assert report["verdict"] == "complete"
    others = [each for each in report["contracts"] if each["verdict"] != "PASSED"]
    assert {each["verdict"] for each in others} <= {"NOT OFFERED", "NOT DECLARED"}
    for each in others:
        assert each["capability"] or set(each["needs"]) & HOOKS_IT_LACKS or "soak" in str(each["absent"]), (
            each
        )


def test_it_uses_only_the_protocol_and_the_table(written: Path) -> None:
    """No module of the store imports anything of Ratchet but its protocols, its domain and its errors."""
    modules = sorted((written / "mystore").glob("*.py"))
    assert len(modules) >= 7
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                name = node.module
                known = name.split(".")[0] in sys.stdlib_module_names
                assert known or name.startswith(MAY_USE), f"{module.name} imports {name}"


def test_the_page_names_real_options() -> None:
    """Every option and every group of contracts that the page mentions exists."""
    text = PAGE.read_text(encoding="utf-8")
    help_text = subprocess.run(
        [sys.executable, "-m", "pytest", "--help"], capture_output=True, text=True, timeout=60, cwd=ROOT
    ).stdout
    for option in set(re.findall(r"--ratchet-[a-z-]*[a-z]", text)):
        assert option in help_text, option
    groups = {each.group for each in contracts().values()}
    for group in set(re.findall(r"`([A-Z]+)-\*`", text)):
        assert group in groups, group
