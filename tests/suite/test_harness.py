"""What an author sees: a run on their harness, and every mistake in it told in one sentence."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

GOOD = """
from uuid import uuid4
from conformance_tests import SettableClock, StoreHarness
from ratchet.defaults.memory import MemoryStore, plugin

class Good(StoreHarness):
    def __init__(self):
        self.clock, self.name = SettableClock(), ""
    def open(self):
        return plugin.open(self.name, clock=self.clock)
    def reset(self):
        self.name = f"memory://{uuid4().hex}"
"""

MISTAKES = {
    "reset does not reset": (
        """
class Bad(Good):
    kept = None
    def reset(self):
        if not self.name: super().reset()
        self.kept = self.kept or self.open()
""",
        r"Bad\.reset\(\) does not reset: 1 job was still there after it",
    ),
    "two databases": (
        """
class Bad(Good):
    def open(self):
        return MemoryStore(clock=self.clock)
""",
        r"two handles of Bad\.open\(\) do not see the same database",
    ),
    "no reset": (
        """
class Bad(StoreHarness):
    def open(self): return MemoryStore()
""",
        r"Bad has no reset\(\): Make the database empty",
    ),
    "no store": (
        """
class Bad(Good):
    def open(self): return {}
""",
        r"Bad\.open\(\) answers a dict, which is no job store",
    ),
    "a method is missing": (
        """
class Store:
    def __init__(self, behind): self.behind = behind
    def __getattr__(self, name):
        if name in ("recover", "health"): raise AttributeError(name)
        return getattr(self.behind, name)
class Bad(Good):
    def open(self): return Store(super().open())
""",
        r"the Store of Bad\.open\(\) has no health, recover",
    ),
    "a capability is misspelt": (
        """
class Store(MemoryStore):
    capabilities = frozenset({"wakeups"})
class Bad(Good):
    def open(self):
        store = Store.__new__(Store)
        store._shared = super().open()._data
        return store
""",
        r"the store declares the capability 'wakeups', which does not exist; did you mean 'wake-ups'\?",
    ),
    "a capability is not met": (
        """
class Store(MemoryStore):
    capabilities = frozenset({"wake-ups"})
class Bad(Good):
    def open(self):
        store = Store.__new__(Store)
        store._shared = super().open()._data
        return store
""",
        r"the store declares 'wake-ups' and does not have the methods of WakeUps",
    ),
    "a hook is misspelt": (
        """
class Bad(Good):
    def crash_point(self, store, reached): ...
""",
        r"Bad has 'crash_point'; did you mean 'crash_points'\?",
    ),
    "an attribute is misspelt": (
        """
class Bad(Good):
    flavors = ("sync", "async")
""",
        r"Bad has 'flavors'; did you mean 'flavours'\?",
    ),
    "a clock that the store does not use": (
        """
class Bad(Good):
    def open(self): return plugin.open(self.name)
""",
        r"advancing the clock of Bad does not move store time: open\(\) must give it to the store",
    ),
    "a clock that only goes forwards": (
        """
from ratchet.testing import VirtualClock
class Bad(Good):
    def __init__(self):
        super().__init__()
        self.clock = VirtualClock()
""",
        r"Bad\.clock\.advance\(-1 s\) raised UsageError: a clock does not run backwards",
    ),
    "an unknown flavour": (
        """
class Bad(Good):
    flavours = ("sync", "asink")
""",
        r"Bad\.flavours has 'asink'; flavours are sync and async",
    ),
    "open raises": (
        """
class Bad(Good):
    def open(self): raise OSError("no such host")
""",
        r"Bad\.open\(\) raised OSError: no such host",
    ),
    "open answers a class": (
        """
class Bad(Good):
    def open(self): return MemoryStore
""",
        r"Bad\.open\(\) answers the class MemoryStore; it must make a handle of it",
    ),
    "open answers the same handle": (
        """
class Bad(Good):
    def open(self): return self.only
    def reset(self):
        super().reset()
        self.only = super().open()
""",
        r"Bad\.open\(\) answers the same handle each time",
    ),
    "a method lacks a keyword": (
        """
class Store(MemoryStore):
    def insert(self, jobs): return super().insert(jobs)
class Bad(Good):
    def open(self): return Store(clock=self.clock)
""",
        r"insert\(\) of the Store of Bad\.open\(\) cannot be called as \(jobs, \*, unit=None\): .*'unit'",
    ),
    "a keyword has another name": (
        """
class Store(MemoryStore):
    def health(self, *, period): return super().health(window=period)
class Bad(Good):
    def open(self): return Store(clock=self.clock)
""",
        r"health\(\) of the Store of Bad\.open\(\) cannot be called as \(\*, window\): .*'(window|period)'",
    ),
    "crash_points takes too little": (
        """
class Bad(Good):
    def crash_points(self, store): ...
""",
        r"Bad\.crash_points\(\) cannot be called as \(store, reached\): too many positional arguments",
    ),
    "open_process answers a store": (
        """
class Bad(Good):
    def open_process(self): return self.open()
""",
        r"Bad\.open_process\(\) answers a store; it must answer a function without arguments",
    ),
    "open_process answers something else": (
        """
class Bad(Good):
    def open_process(self): return self.name
""",
        r"Bad\.open_process\(\) answers a str; it must answer a function without arguments",
    ),
    "open_process answers what cannot be pickled": (
        """
class Bad(Good):
    def open_process(self): return lambda: self.open()
""",
        r"what Bad\.open_process\(\) answers cannot be pickled \(.*\); take a function of a module",
    ),
    "open_process leads to another database": (
        """
def other(): return plugin.open("memory://another")
class Bad(Good):
    def open_process(self): return other
""",
        r"Bad\.open_process\(\) leads to another database than Bad\.open\(\)",
    ),
    "open_process leads to the database of this process": (
        """
from functools import partial
def opened(name): return plugin.open(name)
class Bad(Good):
    def open_process(self): return partial(opened, self.name)
""",
        r"Bad\.open_process\(\) leads to another database than Bad\.open\(\)",
    ),
    "no harness at all": ("Bad = dict\n", r"dict makes a dict; it must be a conformance_tests\.StoreHarness"),
}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs the suite as an author does, in a folder with these files."""

    def run(*words: str, **files: str) -> subprocess.CompletedProcess[str]:
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--pyargs",
            "conformance_tests",
            "-q",
            "-p",
            "no:asyncio",
            *words,
        ]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)

    return run


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence(run: Run, mistake: str) -> None:
    """It is told before any test runs, as a usage error without a traceback."""
    code, told = MISTAKES[mistake]
    ended = run("--ratchet-harness", "bad_harness:Bad", bad_harness=GOOD + code)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR, ended.stdout + ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line.strip()]
    assert re.match(rf"ERROR: {told}", line), line
    assert "Traceback" not in ended.stdout + ended.stderr


def test_a_mistake_is_told_once_with_xdist(run: Run) -> None:
    """The controlling process tells it; no worker is started."""
    code, told = MISTAKES["no reset"]
    ended = run("--ratchet-harness", "bad_harness:Bad", "-n", "2", bad_harness=GOOD + code)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert len(re.findall(told, ended.stdout + ended.stderr)) == 1


def test_a_fixture_names_the_harness(run: Run) -> None:
    """A fixture ratchet_harness of the author's conftest is enough; only what was asked for runs."""
    fixture = "import pytest\n@pytest.fixture(scope='session')\ndef ratchet_harness():\n    return Good()\n"
    ended = run("--ratchet-contracts", "COUNT-01,GET-*", conftest=GOOD + fixture)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "4 passed" in ended.stdout


def test_a_fixture_may_clean_up(run: Run, tmp_path: Path) -> None:
    """A fixture that yields the harness goes on behind its yield when all tests are over."""
    fixture = """
import pytest
from pathlib import Path
@pytest.fixture(scope="session")
def ratchet_harness():
    harness = Good()
    yield harness
    Path("ended").write_text(harness.name)
"""
    ended = run("--ratchet-contracts", "COUNT-01", conftest=GOOD + fixture)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (tmp_path / "ended").read_text(encoding="utf-8").startswith("memory://")


def test_an_unknown_contract_is_told(run: Run) -> None:
    """A typing mistake in --ratchet-contracts is a usage error, not an empty run."""
    ended = run("--ratchet-harness", "a_harness:Good", "--ratchet-contracts", "CLAIM-99", a_harness=GOOD)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no contract of this run is named CLAIM-99" in ended.stderr


def test_the_plugin_is_cheap() -> None:
    """Every start of pytest loads the plugin: it brings in neither Ratchet nor hypothesis."""
    program = (
        "import sys, conformance_tests.plugin as p; print(*sorted(m.partition('.')[0] for m in sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert not {"ratchet", "ratchet_sql", "hypothesis"} & set(ended.stdout.split())


def test_a_fixture_with_a_mistake(run: Run) -> None:
    """A mistake behind the fixture is the same sentence."""
    fixture = "import pytest\n@pytest.fixture\ndef ratchet_harness(tmp_path):\n    return Good()\n"
    ended = run(conftest=GOOD + fixture)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "must do without other fixtures" in ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


def test_no_harness_is_told(run: Run) -> None:
    """Without a harness the three ways to name one are told."""
    ended = run()
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--ratchet-harness mypkg.harness:MyHarness" in ended.stderr


def report_of(run: Run, folder: Path, contracts: str, code: str, *words: str) -> tuple[int, dict[str, Any]]:
    file = folder / "report.json"
    named = ["--ratchet-contracts", contracts] if contracts else []
    words = ("--ratchet-harness", "a_harness:Bad", *named, "--ratchet-report-json", str(file), *words)
    ended = run(*words, a_harness=GOOD + code)
    assert file.exists(), ended.stdout + ended.stderr
    report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    report["by_id"] = {each["id"]: each for each in report["contracts"]}
    report["output"] = ended.stdout
    return ended.returncode, report


def test_what_cannot_be_shown_is_reported(run: Run, tmp_path: Path) -> None:
    """Without a clock contracts about time are NOT OFFERED and the report is incomplete; others pass."""
    code = """
class Bad(Good):
    clock = None
    def __init__(self): self.name = ""
    def open(self): return plugin.open(self.name)
"""
    _, report = report_of(run, tmp_path, "CELL-*,CLAIM-01,CLAIM-02", code)
    verdicts = {name: each["verdict"] for name, each in report["by_id"].items()}
    assert (verdicts["CELL-01"], verdicts["CELL-02"], verdicts["CLAIM-02"]) == ("PASSED", "PASSED", "PASSED")
    assert (verdicts["CLAIM-01"], verdicts["CELL-10"], verdicts["FENCE-01"]) == (
        "NOT OFFERED",
        "NOT OFFERED",
        "NOT RUN",
    )
    assert report["verdict"] == "incomplete"
    assert "CLAIM-01" in report["obstacles"]
    assert "CELL-10" not in report["obstacles"], "seed() is optional"


def test_a_broken_store_fails_by_name(run: Run, tmp_path: Path) -> None:
    """A fault of the store fails the contract that names it, and the run."""
    code = """
class Store(MemoryStore):
    def counts(self): return {}
class Bad(Good):
    def open(self):
        store = Store.__new__(Store)
        store._shared = super().open()._data
        return store
"""
    status, report = report_of(run, tmp_path, "COUNT-01,GET-01", code)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert report["by_id"]["COUNT-01"]["verdict"] == "FAILED"
    assert report["by_id"]["COUNT-01"]["failed"]
    assert report["by_id"]["GET-01"]["verdict"] == "PASSED"


def test_the_report_names_what_was_asked_for(run: Run, tmp_path: Path) -> None:
    """The harness is named as on the command line, and a part of the suite is told to be one."""
    status, report = report_of(run, tmp_path, "COUNT-01", "def Bad(): return Good()\n")
    assert status == 0
    assert report["facts"]["harness"] == "a_harness:Bad"
    assert report["output"].count("Ratchet store conformance 1.0: incomplete (a selection)") == 1


def test_both_flavours_run(run: Run, tmp_path: Path) -> None:
    """A store that comes in two flavours is tested in both, through an event loop of the suite's."""
    code = """
from conformance_tests.bridge import async_face
class Bad(Good):
    flavours = ("sync", "async")
    def open_async(self): return async_face(self.open())
"""
    status, report = report_of(run, tmp_path, "COUNT-01,ASYNC-*,RACE-01,HELD-01", code)
    assert status == 0
    assert [report["by_id"][name]["cases"] for name in ("COUNT-01", "ASYNC-01", "RACE-01")] == [2, 2, 2]
    assert report["by_id"]["RACE-01"]["verdict"] == "PASSED"


def test_the_report_is_the_same_with_xdist(run: Run, tmp_path: Path) -> None:
    """Workers, each with a database of its own, add up to one report."""
    status, report = report_of(run, tmp_path, "CELL-*,KEY-*", "class Bad(Good): pass\n", "-n", "2")
    assert status == 0
    shown = [each for name, each in report["by_id"].items() if name.startswith(("CELL", "KEY"))]
    assert {each["verdict"] for each in shown} == {"PASSED", "NOT OFFERED"}
    assert report["by_id"]["CELL-01"]["cases"] + report["by_id"]["CELL-02"]["cases"] == 126


def test_an_omitted_contract_is_no_success(run: Run, tmp_path: Path) -> None:
    """A run from which contracts were dropped behind the suite's back fails, and names them as NOT RUN."""
    dropping = """
def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if "test_crud_15_counts" in item.name]
"""
    ended = run(
        "--ratchet-harness",
        "a_harness:Good",
        "--ratchet-report-json",
        "r.json",
        conftest=dropping,
        a_harness=GOOD,
    )
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 passed" in ended.stdout
    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert report["verdict"] == "incomplete"
    assert {"CLAIM-01", "FENCE-01"} <= set(report["obstacles"])
    assert not {"COUNT-01", "SOAK-01"} & set(report["obstacles"])


def test_endurance_is_short_if_asked(run: Run, tmp_path: Path) -> None:
    """The endurance test runs as long as was asked for, and its books balance."""
    status, report = report_of(run, tmp_path, "SOAK-01", "class Bad(Good): pass\n", "--ratchet-soak", "2")
    assert status == 0
    assert report["by_id"]["SOAK-01"]["verdict"] == "PASSED"
    assert 2 <= report["by_id"]["SOAK-01"]["seconds"] < 60
