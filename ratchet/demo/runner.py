"""The demo's course: two workers, one killed with its hands full, everything finished and counted twice."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from ratchet.demo import app
from ratchet.demo.count import Count, count, standard_library
from ratchet.demo.jobs import FOLDER, HELD, HOLD, Measure, measure
from ratchet.domain.lifecycle import AttemptEnd, Status, Trigger
from ratchet.errors import RatchetError

if TYPE_CHECKING:
    from ratchet.domain.job import Job
    from ratchet.scheduler import Scheduler

Process = subprocess.Popen[bytes]

THREADS: Final = 4
STUMBLES: Final = 5
KILL_AT: Final = 0.4
"""The share of the jobs after which a worker is killed."""
LOOK: Final = 0.05
LIMIT: Final = 300.0
"""Seconds after which the demo gives up: far more than it needs on a slow and busy machine."""
BROKEN: Final = {
    "broken_colon.py": "def f()\n    return 1\n",
    "broken_bracket.py": "x = (1, 2\n",
    "broken_indent.py": "if True:\nx = 1\n",
}
"""What the demo adds if the library itself has no file that does not parse."""


class Display(Protocol):
    """Where the demo tells what it is doing."""

    def say(self, text: str) -> None:
        """One step has been taken."""
        ...

    def progress(self, what: str, done: int, total: int) -> None:
        """So far."""
        ...


@dataclass(slots=True)
class Report:
    """What happened.

    Attributes:
        measured, counted: by the jobs, and by the second opinion.
        executions: bodies that ran to their end.
        held: bodies that the killed worker was certainly running; they ended with it.
        retries, recovered, released: further claims, by reason. Recovered is what the killed worker had
            claimed: what it ran, and what it was going to begin next.
        dlq: file -> stored reason.
        own_broken: True if the files in the DLQ are the demo's own.
        seconds: from submission to the last settled job.
        mismatches: what does not agree; empty if all is well.
    """

    python: str
    root: str
    killed_pid: int = 0
    seconds: float = 0.0
    executions: int = 0
    retries: int = 0
    recovered: int = 0
    released: int = 0
    held: int = 0
    measured: Count = field(default_factory=Count)
    counted: Count = field(default_factory=Count)
    dlq: dict[str, str] = field(default_factory=dict)
    own_broken: bool = False
    mismatches: list[str] = field(default_factory=list)


class Demo:
    """One run.

    Args:
        folder: an empty folder for its database and files.
        spawn: starts a worker of `ratchet.demo.app:scheduler` under a node name.
        display: where to tell.
    """

    def __init__(self, folder: Path, spawn: Callable[[str], Process], display: Display) -> None:
        self._folder, self._spawn, self._display = folder, spawn, display
        self._end = time.monotonic() + LIMIT

    def run(self) -> Report:
        """Do it all.

        Raises:
            RatchetError: a step did not happen; the workers' log in the folder says more.
        """
        os.environ[FOLDER] = str(self._folder)
        (self._folder / HELD).mkdir()
        root, files = standard_library()
        report = Report(platform.python_version(), str(root))
        with ExitStack() as stack:
            scheduler = app.scheduler()
            stack.callback(scheduler.store.close)
            scheduler.store.counts()  # makes the database, before the workers look for it
            workers = {name: self._spawn(name) for name in ("demo-1", "demo-2")}
            for process in workers.values():
                stack.callback(_end, process)
            self._wait("both workers run", lambda: len(scheduler.store.nodes()) == len(workers), workers)
            self._display.say(
                f"two workers run (processes {', '.join(str(p.pid) for p in workers.values())})"
            )
            begun = time.monotonic()
            self._submit(scheduler, files, STUMBLES)
            self._display.say(f"{len(files)} jobs submitted, one per file of {root}")
            kill_at = int(len(files) * KILL_AT)
            self._drain(scheduler, "indexing", len(files), workers, until=kill_at)
            report.held = self._kill(scheduler, workers, "demo-1", report)
            self._display.say("counting the same files independently, on the processor that has become free")
            counting = _Counting(files, lambda done: self._display.progress("counting", done, len(files)))
            self._drain(scheduler, "indexing", len(files), workers)
            report.seconds = time.monotonic() - begun
            own: list[Path] = []
            if not scheduler.store.counts()[Status.FAILED]:
                own = self._break_some(scheduler)
                report.own_broken = True
                self._drain(scheduler, "indexing", len(files) + len(own), workers)
            for process in workers.values():
                process.send_signal(signal.SIGTERM)
            report.counted = counting.result() + count(own, lambda _: None)
            self._read(scheduler, report)
            for name, process in workers.items():
                code = process.wait(timeout=15)
                if code != 0:
                    report.mismatches.append(f"worker {name} ended with exit code {code}")
        compare(report)
        return report

    # -- steps

    @staticmethod
    def _submit(scheduler: Scheduler, files: Sequence[Path], stumbles: int) -> None:
        step = max(1, len(files) // max(1, stumbles))
        chosen = set(range(0, len(files), step)) if stumbles else set()
        chosen = set(sorted(chosen)[:stumbles])
        entries = [{"path": str(path), "stumble": number in chosen} for number, path in enumerate(files)]
        scheduler.enqueue_many(measure, entries)

    def _break_some(self, scheduler: Scheduler) -> list[Path]:
        self._display.say(
            f"no file of this library fails to parse: adding {len(BROKEN)} broken ones of our own"
        )
        paths = []
        for name, text in BROKEN.items():
            path = self._folder / name
            path.write_text(text, encoding="ascii")
            paths.append(path)
        self._submit(scheduler, paths, 0)
        return paths

    def _drain(
        self,
        scheduler: Scheduler,
        what: str,
        total: int,
        workers: dict[str, Process],
        until: int | None = None,
    ) -> None:
        def settled() -> bool:
            counts = scheduler.store.counts()
            done = sum(counts[each] for each in (Status.SUCCEEDED, Status.FAILED, Status.CANCELED))
            self._display.progress(what, done, total)
            return done >= (total if until is None else until)

        self._wait("every job settles", settled, workers)

    def _kill(self, scheduler: Scheduler, workers: dict[str, Process], name: str, report: Report) -> int:
        """Kill a worker that is certain to be running jobs; answers how many."""
        victim = workers[name]
        mine = next(node.info for node in scheduler.store.nodes() if node.info.name == name)
        hold, held = self._folder / HOLD, self._folder / HELD
        ready = self._folder / "hold.new"
        ready.write_text(str(mine.pid), encoding="ascii")
        ready.rename(hold)  # no body sees half a number
        self._wait("its bodies stand still", lambda: len(list(held.iterdir())) >= THREADS, workers)
        running = 0
        for entry in held.iterdir():
            job = scheduler.store.get(UUID(entry.stem))
            if job is not None and job.status is Status.RUNNING and job.picked_by == mine.incarnation:
                running += 1
        os.kill(mine.pid, signal.SIGKILL)
        victim.wait(timeout=10)
        del workers[name]
        hold.unlink()
        report.killed_pid = mine.pid
        self._display.say(
            f"killed worker {mine.pid} with SIGKILL while it was running {running} jobs; the other one recovers them "
            f"when it sees that the process is gone, or after {app.GRACE.seconds} s without a heartbeat"
        )
        return running

    def _wait(self, what: str, condition: Callable[[], bool], workers: dict[str, Process]) -> None:
        while not condition():
            for name, process in workers.items():
                if process.poll() is not None:
                    raise RatchetError(
                        f"worker {name} ended with exit code {process.returncode} before {what}{self._last_words()}"
                    )
            if time.monotonic() > self._end:
                raise RatchetError(f"gave up waiting until {what}, after {LIMIT:g} s{self._last_words()}")
            time.sleep(LOOK)

    def _last_words(self) -> str:
        try:
            lines = (self._folder / "workers.log").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return f"; its last line: {lines[-1]}" if lines else ""

    # -- the result

    def _read(self, scheduler: Scheduler, report: Report) -> None:
        total = report.measured
        unparsable = set()
        ends: Counter[str] = Counter()
        for job in scheduler.query.iterate():
            total.files += 1
            path = str(scheduler.query.arguments(job)[1]["path"])
            if job.status is Status.SUCCEEDED and job.result is not None:
                value = scheduler.codec.decode_value(job.result)
                if not isinstance(value, Measure):
                    raise RatchetError(f"job {job.id} answered {type(value).__name__}")
                total.bytes += value.bytes
                total.lines += value.lines
                total.functions += value.functions
                total.classes += value.classes
            else:
                unparsable.add(path)
                report.dlq[path] = job.last_error or ""
            ends.update(self._executions(scheduler, job, report))
        total.unparsable = frozenset(unparsable)
        report.executions = ends["ran"]
        report.retries, report.recovered, report.released = ends["retried"], ends["crashed"], ends["released"]

    @staticmethod
    def _executions(scheduler: Scheduler, job: Job, report: Report) -> Counter[str]:
        found: Counter[str] = Counter()
        if job.claim_seq == 1 and job.status is Status.SUCCEEDED:
            found["ran"] += 1
            return found
        history = scheduler.store.history(job.id)
        for each in history:
            found["released"] += each.end in (AttemptEnd.RELEASED, AttemptEnd.DEFERRED)
            found["ran"] += each.end in (AttemptEnd.SUCCEEDED, AttemptEnd.FAILED)
            found["crashed"] += each.end is AttemptEnd.CRASHED
            found["retried"] += each.trigger is Trigger.RETRY
        again = found["released"] + found["crashed"] + found["retried"]
        if not len(history) == job.claim_seq == 1 + again:
            report.mismatches.append(
                f"job {job.id}: {job.claim_seq} claims, but its history does not account for them"
            )
        return found


def compare(report: Report) -> None:
    """Write down in the report what does not agree."""
    measured, counted = report.measured, report.counted
    for name in ("files", "bytes", "lines", "functions", "classes"):
        one, other = getattr(measured, name), getattr(counted, name)
        if one != other:
            report.mismatches.append(f"{name}: the jobs say {one}, the count says {other}")
    if measured.unparsable != counted.unparsable:
        differ = sorted(measured.unparsable ^ counted.unparsable)
        report.mismatches.append(f"only one of both refuses {', '.join(differ[:5])}")
    if report.held < THREADS or report.recovered < report.held:
        report.mismatches.append(f"{report.held} jobs were held at the kill, {report.recovered} recovered")
    if report.retries != STUMBLES and measured.files > STUMBLES:
        report.mismatches.append(f"{STUMBLES} jobs were made to fail once, {report.retries} were retried")
    if not report.dlq:
        report.mismatches.append("nothing is in the DLQ, though files do not parse")


class _Counting:
    """The second opinion, on a thread of its own."""

    def __init__(self, files: Sequence[Path], progress: Callable[[int], None]) -> None:
        self._found: Count | BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(files, progress), name="count", daemon=True)
        self._thread.start()

    def _run(self, files: Sequence[Path], progress: Callable[[int], None]) -> None:
        try:
            self._found = count(files, progress)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for it
            self._found = error

    def result(self) -> Count:
        """What was counted; waits for it."""
        self._thread.join()
        if not isinstance(self._found, Count):
            raise RatchetError(f"the files could not be counted: {self._found}")
        return self._found


def _end(process: Process) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
