"""Functions of `__main__`: stored under their file's importable name where there is one, refused elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from ratchet import Scheduler

scheduler = Scheduler.from_url({url!r})

@scheduler.job
def greet(name: str) -> str:
    return "hello " + name

def plain(n: int) -> int:
    return n + 1

if __name__ == "__main__":
    print(__name__, greet("you"))
    with scheduler:
        handle = scheduler.enqueue(greet, "world").submit()
        print(handle.job().target, handle.result(timeout=20))
"""

REFUSED = """
from ratchet import Scheduler
from ratchet.errors import UnsupportedTarget

def body() -> None: ...

scheduler = Scheduler.from_url("memory://", allow=["shop", "__main__"])
for attempt in (lambda: scheduler.enqueue(body), lambda: scheduler.job(body)):
    try:
        attempt()
    except UnsupportedTarget as error:
        print(error)
"""

SENTENCE = (
    "body lives in __main__, which a worker cannot import; move it into a module, "
    "or run its file by `python file.py` or `python -m package.module`"
)


def python(folder: Path, *args: str, text: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *args],
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        timeout=90,
        env={key: value for key, value in os.environ.items() if not key.startswith(("RATCHET_", "PYTHON"))},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("args", [("-c", REFUSED), ("-",), ()], ids=["-c", "stdin as -", "stdin"])
def test_a_function_of_an_unimportable_main_is_refused(tmp_path: Path, args: tuple[str, ...]) -> None:
    """From `python -c` and from standard input a function of `__main__` is refused with the remedy."""
    out = python(tmp_path, *args, text=None if "-c" in args else REFUSED)
    assert out.splitlines() == [SENTENCE] * 2


def test_a_file_whose_name_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    """A script called `my-script.py` has no importable name."""
    (tmp_path / "my-script.py").write_text(REFUSED)
    assert python(tmp_path, "my-script.py").splitlines() == [SENTENCE] * 2


def test_a_main_program_runs_its_own_jobs(tmp_path: Path) -> None:
    """`python file.py` submits and executes functions of its own, stored under the file's name."""
    (tmp_path / "shopfront.py").write_text(PROGRAM.format(url="memory://"))
    out = python(tmp_path, "shopfront.py")
    assert out.splitlines() == ["__main__ hello you", "shopfront:greet hello world"]


def test_a_main_module_of_a_package_runs_its_own_jobs(tmp_path: Path) -> None:
    """`python -m package.module` stores the module's dotted name, from any working directory."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "front.py").write_text(PROGRAM.format(url="memory://"))
    out = python(tmp_path, "-m", "shop.front")
    assert out.splitlines() == ["__main__ hello you", "shop.front:greet hello world"]


def test_what_a_main_program_submits_another_process_runs(tmp_path: Path) -> None:
    """A job submitted by `python file.py` is found and executed by a process that imports that file."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    submit = (
        PROGRAM.format(url=url)
        .replace("    with scheduler:\n", "    if True:\n")
        .replace("print(handle.job().target, handle.result(timeout=20))", "print(handle.id)")
    )
    (tmp_path / "shopfront.py").write_text(submit)
    job_id = python(tmp_path, "shopfront.py").splitlines()[-1]
    run = (
        "import uuid, shopfront\n"
        "with shopfront.scheduler as scheduler:\n"
        f"    print(scheduler.handle(uuid.UUID({job_id!r})).result(timeout=20))\n"
    )
    (tmp_path / "worker.py").write_text(run)
    assert python(tmp_path, "worker.py").splitlines() == ["hello world"]
