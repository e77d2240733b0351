"""``ratchet demo`` end to end, and that it would notice a mismatch."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.cli import demo as demo_command
from ratchet.cli import main
from ratchet.demo import count, runner
from ratchet.demo.count import Count

pytestmark = [pytest.mark.stores("sqlite"), pytest.mark.timeout(300)]


def test_demo(run_cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    """The whole standard library is indexed although a worker is killed in the middle of running jobs, the
    result equals the independent count, within a minute, and nothing is left behind.
    """
    done = run_cli("demo", "--json", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert report["ok"] is True
    assert report["jobs"] == report["count"]
    assert report["jobs"]["files"] > 500
    assert report["held_at_kill"] == runner.THREADS
    assert report["recovered"] >= report["held_at_kill"]
    assert report["retries"] == runner.STUMBLES
    assert report["dlq"]
    assert all(entry["reason"] for entry in report["dlq"])
    assert report["seconds"] < 60
    assert list(tmp_path.iterdir()) == []


def few_files(folder: Path) -> tuple[Path, list[Path]]:
    """A library of some hundred files that all parse."""
    _, files = count.standard_library()
    chosen = [
        path for path in files if path.parent.name in ("asyncio", "email", "json", "http", "xml", "logging")
    ]
    library = folder / "library"
    for number in range(8):
        for path in chosen:
            target = library / str(number) / path.parent.name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return library, sorted(library.rglob("*.py"))


def test_a_library_without_broken_files_gets_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where every file parses the demo adds three broken ones of its own, and says that they are."""
    library = few_files(tmp_path)
    monkeypatch.setattr(runner, "standard_library", lambda: library)
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert "the demo's own" in out
    assert all(name in out for name in runner.BROKEN)


def test_a_mismatch_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the independent count says anything else, the demo says so and ends with 1."""

    class Unlucky:
        def __init__(self, *_: object) -> None:
            pass

        def run(self) -> runner.Report:
            measured, counted = Count(files=9, lines=100), Count(files=9, lines=101)
            report = runner.Report(
                "3", "/lib", held=4, recovered=4, retries=5, measured=measured, counted=counted
            )
            report.dlq = {"/lib/x.py": "Unparsable: no"}
            runner.compare(report)
            return report

    monkeypatch.setattr(demo_command, "Demo", Unlucky)
    assert main(["demo", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["mismatches"] == ["lines: the jobs say 100, the count says 101"]
