"""The benchmark table says what was measured, and its programs run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.pairs import Pairs
from benchmarks.soak_rss import Sample, baseline, report
from benchmarks.table import Line, Target, as_markdown, as_text, number, percentile

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("sign", "met", "missed"), [(">=", 0.6, 0.59), ("<=", 1.5, 1.51), (">", 1.01, 1.0), ("<", 59.9, 60.0)]
)
def test_a_verdict_follows_from_the_median(sign: str, met: float, missed: float) -> None:
    """A line is met exactly if the median of its samples reaches the target; outliers do not count."""
    target = Target(sign, {">=": 0.6, "<=": 1.5, ">": 1.0, "<": 60.0}[sign])
    assert Line("l", "x", [met, met, met, 0.0, 1e9], target).verdict == "met"
    assert Line("l", "x", [missed, missed, missed, 0.0, 1e9], target).verdict == "NOT met"


def test_what_was_not_measured_is_never_met() -> None:
    """A line without samples, or with a problem, is NOT RUN and counts as bad; one without a target is reported."""
    target = Target(">=", 0.0)
    assert Line("l", "x", [], target).verdict == "NOT RUN"
    assert Line("l", "x", [1.0], target, problem="no peer").verdict == "NOT RUN"
    assert Line("l", "x", [], target).is_bad
    assert not Line("l", "x", [1.0]).is_bad
    assert Line("l", "x", [1.0]).verdict == "reported"


def test_ratios_are_taken_pair_by_pair() -> None:
    """The ratio of a pair is that of its own two runs: noise that meets both cancels out."""
    pairs = Pairs(ours=[50.0, 5.0, 10.0], reference=[100.0, 10.0, 20.0])
    line = pairs.line("l", Target(">=", 0.5), unit="/s", against="raw")
    assert list(line.samples) == [0.5, 0.5, 0.5]
    assert (line.verdict, line.ours, line.reference) == ("met", "10.0/s", "raw 20.0/s")


def test_the_table_names_every_line_with_its_verdict() -> None:
    """Both forms of the table hold the line, its target, its spread, its verdict, and why one was not run."""
    lines = [
        Line("first", "ms", [1.0, 3.0, 2.0], Target("<", 2.5, own=True)),
        Line("second", "x", problem="no huey"),
    ]
    for text in (as_text(lines), as_markdown(lines)):
        for part in (
            "first",
            "< 2.50 ms (own)",
            "2.00 ms",
            "1.00 - 3.00 (3)",
            "met",
            "second: NOT RUN: no huey",
        ):
            assert part in text


def test_figures_have_three_digits() -> None:
    """A figure is written with what it deserves and no exponent."""
    assert [number(v) for v in (0, 0.12345, 1.2345, 12.345, 12345.6)] == [
        "0",
        "0.123",
        "1.23",
        "12.3",
        "12,346",
    ]
    assert [percentile([3, 1, 2], share) for share in (0.0, 0.5, 0.99)] == [1, 2, 3]


@pytest.mark.parametrize(("last", "succeeded", "good"), [(109.0, 100, True), (111.0, 100, False), (89.0, 100, False),
                                                         (100.0, 99, False)])  # fmt: skip
def test_memory_is_flat_within_a_tenth_and_every_job_succeeded(
    last: float, succeeded: int, good: bool
) -> None:
    """The soak's verdict compares with the first sample after a tenth of the jobs, in both directions."""
    samples = [Sample(5, 0.1, 50.0, 9, 1.0), Sample(10, 0.2, 100.0, 9, 1.0), Sample(100, 2.0, last, 9, 1.0)]
    assert baseline(samples, 100).rss == 100.0
    text, flat = report(samples, 100, succeeded)
    assert flat is good
    assert ("NOT" not in text) is good


def test_the_programs_run(tmp_path: Path) -> None:
    """The smallest run of the memory and the submission lines prints a table and ends with its verdict's code."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks",
            "--only",
            "memory",
            "--only",
            "submit",
            "--pairs",
            "1",
            "--scale",
            "0.02",
        ],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "NOT RUN" not in done.stdout
    assert done.stdout.count("/s") >= 8
    assert not list(tmp_path.iterdir())
