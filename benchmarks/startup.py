"""Lines about starting: `start()` to the first body, and a worker process from exec to its first body."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import bodies, raw
from benchmarks.pairs import Measure, once, paired, say
from benchmarks.table import Line, Target, number, percentile
from ratchet import Scheduler

PATIENCE = 30.0
APP = '''\
"""The application that the worker process of the start-up benchmark serves."""
import json, os, sys, time
from ratchet import Scheduler

scheduler = Scheduler.from_url(os.environ["RATCHET_URL"], allow=["bench_app"])

@scheduler.job
def first():
    now = time.monotonic()
    loaded = [name for name, module in list(sys.modules.items())
              if "site-packages" in (getattr(module, "__file__", None) or "")]
    with open(os.environ["RATCHET_BENCH_OUT"] + ".part", "w") as out:
        json.dump({"at": now, "modules": loaded}, out)
    os.rename(os.environ["RATCHET_BENCH_OUT"] + ".part", os.environ["RATCHET_BENCH_OUT"])
'''
REFERENCE = """\
import importlib, json, os, sys, time
for name in json.load(open(sys.argv[1])):
    try:
        importlib.import_module(name)
    except Exception:
        pass
print(repr(time.monotonic()), flush=True)
os._exit(0)
"""


def start(pairs: int, scale: float) -> Iterator[Line]:
    """`start()` on a file with one due job, to the first line of its body."""
    count = max(int(7 * scale), 3)
    say("start() to the first body")
    medians: list[float] = []
    for _ in range(pairs):
        medians.append(percentile([once(_start) for _ in range(count)], 0.5))
        say(f"  {number(medians[-1])} ms")
    yield Line("SQLite FULL: start() to the first body, p50", "ms", medians, Target("<", 100.0))


def _start(folder: Path) -> float:
    raw.make(folder / "jobs.db")
    with_job = Scheduler.from_url(raw.url(folder / "jobs.db"), allow=["benchmarks"])
    with_job.enqueue(bodies.remember).submit()
    with_job.close()
    bodies.started.clear()
    scheduler = Scheduler.from_url(raw.url(folder / "jobs.db"), allow=["benchmarks"])
    begun = time.monotonic()
    scheduler.start()
    if not bodies.started.wait(PATIENCE):
        raise TimeoutError("a job did not start")
    found = 1e3 * (bodies.times[-1] - begun)
    scheduler.close()
    return found


def process(pairs: int, scale: float) -> Iterator[Line]:
    """`ratchet worker` from exec to the first body, against a bare import of the same third-party modules."""
    name = "SQLite FULL: `ratchet worker`, exec to the first body, against importing the same third-party modules"
    if importlib.util.find_spec("ratchet.cli") is None or not _command().exists():
        yield Line(name, "x", target=Target("<=", 1.5), problem="the command `ratchet` is not installed")
        return
    say("ratchet worker, exec to first body")
    modules: list[str] = []
    once(lambda folder: _worker(folder, modules))  # which modules, and byte code is compiled
    loaded = list(modules)
    yield paired(lambda folder: _worker(folder, modules), _import(loaded), max(pairs, 7)).line(
        name,
        Target("<=", 1.5),
        unit=" ms",
        against="imports",
        note=f"{len(loaded)} modules from site-packages, imported by name in the order in which the worker loaded them",
    )


def _command() -> Path:
    return Path(sys.executable).with_name("ratchet")


def _installed() -> dict[str, str]:
    """The environment, in which byte code is kept as an installation keeps it: the third parties have theirs."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _worker(folder: Path, modules: list[str]) -> float:
    (folder / "bench_app.py").write_text(APP)
    out = folder / "out.json"
    environment = {
        **_installed(),
        "RATCHET_URL": raw.url(folder / "jobs.db"),
        "RATCHET_BENCH_OUT": str(out),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])),
    }
    code = (
        "import bench_app; bench_app.scheduler.enqueue(bench_app.first).submit(); bench_app.scheduler.close()"
    )
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    begun = time.monotonic()
    process = subprocess.Popen(
        [str(_command()), "worker", "bench_app:scheduler", "--app-dir", str(folder)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not out.exists():
            if process.poll() is not None or time.monotonic() > begun + PATIENCE:
                raise RuntimeError(f"`ratchet worker` ran no job (exit code {process.poll()})")
            time.sleep(0.001)
        told = json.loads(out.read_text())
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    modules[:] = told["modules"]
    return 1e3 * (float(told["at"]) - begun)


def _import(modules: list[str]) -> Measure:
    def measure(folder: Path) -> float:
        (folder / "modules.json").write_text(json.dumps(modules))
        begun = time.monotonic()
        answer = subprocess.run(
            [sys.executable, "-c", REFERENCE, str(folder / "modules.json")],
            check=True,
            capture_output=True,
            text=True,
            env=_installed(),
        )
        return 1e3 * (float(answer.stdout) - begun)

    return measure
