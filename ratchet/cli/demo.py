"""``ratchet demo``: runs `ratchet.demo` with a live display, and shows its report."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.cli import ERROR, OK, show
from ratchet.cli.supervisor import spawn
from ratchet.demo.app import GRACE
from ratchet.demo.runner import THREADS, Demo, Report

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def run_demo(*, keep: bool, json: bool) -> int:
    """Run it; answers the exit code: 1 if the result differs from the independent count."""
    folder = Path(tempfile.mkdtemp(prefix="ratchet-demo-"))
    started = time.monotonic()
    try:
        with _workers(folder) as worker, _display(quiet=json or not sys.stdout.isatty()) as display:
            report = Demo(folder, worker, display).run()
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - started
    kept = str(folder) if keep else None
    if json:
        show.say(_document(report, seconds, kept))
    else:
        _print(report, seconds, kept)
    return ERROR if report.mismatches else OK


@contextmanager
def _workers(folder: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts workers that log into the folder and end with this process."""
    lines: list[socket.socket] = []
    # What Python says about old escapes in its own library is of no interest here.
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = "ignore"
    with (folder / "workers.log").open("ab") as output:

        def start(name: str) -> subprocess.Popen[bytes]:
            words = ["ratchet.demo.app:scheduler", "--app-dir", str(folder), "--stop-timeout", "5"]
            process, line = spawn([*words, "--threads", str(THREADS)], name=name, output=output.fileno())
            lines.append(line)
            return process

        try:
            yield start
        finally:
            for line in lines:
                line.close()
            if before is None:
                del os.environ["PYTHONWARNINGS"]
            else:
                os.environ["PYTHONWARNINGS"] = before


class _Silent:
    """Without a terminal: nothing but the result."""

    def say(self, text: str) -> None:
        pass

    def progress(self, what: str, done: int, total: int) -> None:
        pass


class _Live:
    """On a terminal: what has happened, and a bar below it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def progress(self, what: str, done: int, total: int) -> None:
        bar = self._bars.get(what)
        if bar is None:
            bar = self._bars[what] = self._progress.add_task(what, total=total)
        self._progress.update(bar, completed=done, total=total)


@contextmanager
def _display(*, quiet: bool) -> Iterator[_Silent | _Live]:
    if quiet:
        yield _Silent()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        yield _Live(progress)


def _reason(error: str) -> str:
    told = error.rpartition("Unparsable: ")[2].removesuffix("[the file does not parse]")
    return show.short(told, 110)


def _facts(report: Report) -> list[tuple[str, str, str]]:
    one, other = report.measured, report.counted
    return [
        (name, f"{getattr(one, name):,}", f"{getattr(other, name):,}")
        for name in ("files", "bytes", "lines", "functions", "classes")
    ] + [("files that do not parse", str(len(one.unparsable)), str(len(other.unparsable)))]


def _print(report: Report, seconds: float, kept: str | None) -> None:
    show.table(
        f"the standard library of Python {report.python} ({report.root})",
        ("", "by the jobs", "independent count"),
        _facts(report),
    )
    show.table(
        "\nhow it went",
        ("", ""),
        [
            ("executions that ended", f"{report.executions:,}"),
            ("retries (made to fail once)", report.retries),
            (
                f"recovered after SIGKILL of process {report.killed_pid}",
                f"{report.recovered}: {report.held} were running, {report.recovered - report.held} about to",
            ),
            ("given back unstarted", report.released),
            ("orphan grace", f"{GRACE.total_seconds():g} s (the default is 60 s)"),
            ("seconds for the jobs / in all", f"{report.seconds:.1f} / {seconds:.1f}"),
        ],
    )
    own = " (this library has none: these three are the demo's own)" if report.own_broken else ""
    show.table(
        f"\nin the DLQ: {len(report.dlq)} files that do not parse{own}",
        ("file", "reason"),
        [(path.removeprefix(report.root + os.sep), _reason(why)) for path, why in sorted(report.dlq.items())],
    )
    show.line("")
    for mismatch in report.mismatches:
        show.line(f"MISMATCH: {mismatch}")
    if not report.mismatches:
        show.line("The jobs and the independent count agree; every claim is accounted for.")
    if kept is not None:
        show.line(f"Kept in {kept}: look with `ratchet jobs list --url sqlite:///{kept}/jobs.db`")


def _document(report: Report, seconds: float, kept: str | None) -> dict[str, object]:
    def of(which: object) -> dict[str, object]:
        names = ("files", "bytes", "lines", "functions", "classes")
        return {name: getattr(which, name) for name in names}

    return {
        "ok": not report.mismatches,
        "mismatches": report.mismatches,
        "python": report.python,
        "root": report.root,
        "jobs": of(report.measured),
        "count": of(report.counted),
        "executions": report.executions,
        "retries": report.retries,
        "recovered": report.recovered,
        "released": report.released,
        "killed_pid": report.killed_pid,
        "held_at_kill": report.held,
        "orphan_grace_seconds": GRACE.total_seconds(),
        "dlq": [{"file": path, "reason": why} for path, why in sorted(report.dlq.items())],
        "dlq_is_own": report.own_broken,
        "work_seconds": round(report.seconds, 3),
        "seconds": round(seconds, 3),
        "folder": kept,
    }
