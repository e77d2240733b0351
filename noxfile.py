"""One command per intent: `nox -s lint tests conformance docs bench soak`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2024.10"
nox.options.sessions = ["lint", "tests-3.11", "conformance", "docs"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True

FULL = "3.11"
ALSO = ("3.12", "3.13")
PACKAGES = ("ratchet", "ratchet_sql", "ratchet_mongo", "conformance_tests")
TYPED = (*PACKAGES, "tests", "benchmarks", "scripts", "noxfile.py")
# Each starts a server, unless RATCHET_TEST_MONGODB_URL names a deployment.
MONGODB_FLAVOURS = (
    "tests.mongo.harness:MongoHarness",
    "tests.mongo.harness:AsyncMongoHarness",
    "tests.mongo.harness:MotorHarness",
)


def _offer_pyenv_interpreters() -> None:
    """Put interpreters that only pyenv has on the PATH: its shims answer only for activated versions."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    homes = [Path(sys.executable).parent]  # stays first: what --no-venv runs is this environment's
    for version in (FULL, *ALSO):
        found = shutil.which(f"python{version}")
        if found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            continue
        homes += sorted(root.glob(f"versions/{version}.*/bin"))[-1:]
    os.environ["PATH"] = os.pathsep.join([*map(str, homes), os.environ["PATH"]])


_offer_pyenv_interpreters()


def _install(session: nox.Session, *requirements: str) -> None:
    if session.venv_backend != "none":  # with --no-venv the environment is the caller's business
        session.install(*requirements)


def _present(*names: str) -> list[str]:
    return [name for name in names if Path(name).is_file() or any(Path(name).rglob("*.py"))]


@nox.session(python=FULL)
def lint(session: nox.Session) -> None:
    """Style, types, layers, literal statuses, and generated text that must be current."""
    _install(session, "-e", ".[all,test,dev]")
    failed = []
    for command in (
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("mypy", *_present(*TYPED)),
        ("pyright", *_present(*PACKAGES), "tests/typing"),
        ("lint-imports",),
        ("python", "scripts/check_status_literals.py"),
        ("python", "scripts/render_lifecycle.py", "--check"),
        ("python", "scripts/render_settings.py", "--check"),
        ("python", "scripts/generate_async_store.py", "--check"),
        ("python", "scripts/generate_mongo_sync.py", "--check"),
        ("python", "scripts/render_contracts.py", "--check"),
        ("python", "scripts/render_part_contracts.py", "--check"),
        ("python", "scripts/render_mutants.py", "--check"),
        ("python", "-m", "ratchet_sql.render", "--check"),
    ):
        try:
            session.run(*command)
        except CommandFailed:  # say everything that is wrong, not only the first
            failed.append(command[0])
    if failed:
        session.error(f"failed: {', '.join(failed)}")


@nox.session(python=[FULL, *ALSO])
def tests(session: nox.Session) -> None:
    """Everything on 3.11; on the newer Pythons the unit tests and whatever runs on the memory store."""
    _install(session, "-e", ".[all,test]")
    # By scope, so that no story is played in both.
    second_look = ["--stores=memory", "-m", "not storm", "-n", "2", "--dist", "loadscope", "tests"]
    narrow = [] if session.python == FULL else second_look
    try:
        session.run("python", "-m", "pytest", *narrow, *session.posargs)
    except CommandFailed:
        if not narrow:
            raise
        # Two at a time can be in each other's way on a small machine; what failed so has to pass alone.
        session.run("python", "-m", "pytest", *narrow, "--last-failed", "-n", "0", *session.posargs)


@nox.session(python=FULL)
def conformance(session: nox.Session) -> None:
    """What every store must show, on every store of this repository."""
    _install(session, "-e", ".[all,test]")
    folder = Path(session.create_tmp()).absolute()
    for old in folder.glob("*.json"):
        old.unlink()
    stores = {
        "memory": ["--ratchet-url", "memory://"],
        "sqlite": ["--ratchet-url", f"sqlite:///{folder / 'new.db'}"],
        "mongodb": ["--ratchet-harness", MONGODB_FLAVOURS[0]],
    }
    reports = []
    for name, store in stores.items():
        reports.append(str(folder / f"{name}.json"))
        words = ["--pyargs", "conformance_tests", *store, "--ratchet-report-json", reports[-1]]
        session.run("python", "-m", "pytest", *words, *session.posargs)
    if not session.posargs:  # a narrowed run says nothing about the pages
        session.run("python", "scripts/render_conformance.py", "--check", *reports)


@nox.session(python=FULL)
def docs(session: nox.Session) -> None:
    """Generated pages are current, and every snippet of the README and the docs runs."""
    _install(session, "-e", ".[all,test]")
    session.run("python", "scripts/render_lifecycle.py", "--check")
    session.run("python", "scripts/render_settings.py", "--check")
    session.run("python", "scripts/render_contracts.py", "--check")
    session.run("python", "-m", "pytest", "tests/docs", *session.posargs)


@nox.session(python=FULL)
def bench(session: nox.Session) -> None:
    """Benchmarks side by side in one run, as ratios."""
    _install(session, "-e", ".[cli,bench,test]")  # the servers and the proxy of the tests are used, too
    session.run("python", "-m", "benchmarks", *(session.posargs or ["--write"]))


@nox.session(python=FULL)
@nox.parametrize("part", [nox.param(name, id=name) for name in ("storms", "flavours", "endurance", "memory")])
def soak(session: nox.Session, part: str) -> None:
    """What takes long; `-s "soak(flavours)"` runs one part of it.

    storms: all of them at full size. flavours: the whole conformance suite on MongoDB, through each driver, on a
    replica set and on a standalone server. endurance: hours in minutes. memory: one worker and 200,000 jobs.
    """
    _install(session, "-e", ".[all,test]")
    scale = {"RATCHET_STORM_SCALE": "1.0"}
    suite = ("python", "-m", "pytest", "--pyargs", "conformance_tests")
    if part == "storms":
        session.run("python", "-m", "pytest", "-m", "storm", "--timeout=3600", *session.posargs, env=scale)
    elif part == "flavours":
        for harness in MONGODB_FLAVOURS:
            for standalone in ("0", "1"):
                server = {"RATCHET_TEST_MONGODB_STANDALONE": standalone}
                session.run(*suite, "--ratchet-harness", harness, *session.posargs, env=server)
    elif part == "endurance":
        url = f"sqlite:///{Path(session.create_tmp()).absolute() / 'new.db'}"
        for store in (("--ratchet-url", url), ("--ratchet-harness", MONGODB_FLAVOURS[0])):
            session.run(
                *suite, *store, "--ratchet-soak", "300", "--ratchet-contracts", "SOAK-*", *session.posargs
            )
    else:
        report = ["--write", "benchmarks/soak/rss.txt"]
        session.run("python", "-m", "benchmarks.soak_rss", *(session.posargs or report), env=scale)
