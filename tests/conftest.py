"""What every test here shares: which stores run, how big storms are, and what was not run, by name."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn
from uuid import uuid4

import pytest
from hypothesis import settings

# How long one example takes says nothing on a busy machine. Under CI hypothesis loads a profile of its own.
settings.register_profile("patient", deadline=None)
if "CI" not in os.environ:
    settings.load_profile("patient")

NOT_RUN: Final = "NOT RUN: "
NOT_YET: Final = "NOT YET: "


class StoreUnavailable(Exception):
    """A store cannot run on this machine; the message is the reason."""


def _mongodb(folder: Path) -> str:
    """A database of its own on the server that the tests of this process share."""
    from tests.mongo import servers  # not above: tests/lint has a copy of this file run alone

    try:
        return servers.database_url(f"t{uuid4().hex}")
    except servers.NoServer as reason:
        raise StoreUnavailable(str(reason)) from reason


# name -> makes the URL of a fresh, empty store for one test, or raises StoreUnavailable.
STORES: Final[Mapping[str, Callable[[Path], str]]] = {
    "memory": lambda folder: f"memory://t{uuid4().hex}",
    "sqlite": lambda folder: f"sqlite:///{folder / 'ratchet.db'}",
    "mongodb": _mongodb,
}


def not_yet(capability: str) -> NoReturn:
    """Skip what needs a capability that is not built yet, and have the summary name it."""
    pytest.skip(f"{NOT_YET}{capability}")


def storm_scale() -> float:
    """The size of storms relative to the full one: 1.0 in the soak session, 0.1 by default."""
    scale = float(os.environ.get("RATCHET_STORM_SCALE", "0.1"))
    if not 0 < scale <= 10:
        raise pytest.UsageError(f"RATCHET_STORM_SCALE is {scale}; it must be above 0 and at most 10")
    return scale


@pytest.fixture(scope="session")
def scaled() -> Callable[..., int]:
    """Scale a full-size figure: ``scaled(5_000, least=200)``."""
    scale = storm_scale()
    return lambda full, least=1: max(least, math.ceil(full * scale))


@pytest.fixture
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store of this test's own; the test runs once for each store.

    ``@pytest.mark.stores("sqlite")`` narrows it. A store that cannot run here is reported as NOT RUN
    with its reason, and is a failure under ``RATCHET_REQUIRE_STORES=1``.
    """
    name: str = request.param
    try:
        return STORES[name](tmp_path)
    except StoreUnavailable as reason:
        pytest.skip(f"{NOT_RUN}{name}: {reason}")


def pytest_configure() -> None:
    """A suite that a test starts in a process of its own is no worker of this one's xdist, nor starts any."""
    for name in (
        "PYTEST_ADDOPTS",
        "PYTEST_XDIST_WORKER",
        "PYTEST_XDIST_WORKER_COUNT",
        "PYTEST_XDIST_TESTRUNUID",
    ):
        os.environ.pop(name, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --stores."""
    parser.addoption(
        "--stores",
        default="",
        help="comma-separated stores to run; what is bound to another store is deselected (default: all)",
    )


def _asked(config: pytest.Config) -> set[str]:
    asked = {name for name in config.getoption("--stores").split(",") if name} or set(STORES)
    if unknown := asked - STORES.keys():
        raise pytest.UsageError(f"--stores: unknown {sorted(unknown)}; there are {sorted(STORES)}")
    return asked


def _bound(marker: pytest.Mark | None) -> tuple[str, ...]:
    names = marker.args if marker else tuple(STORES)
    if unknown := set(names) - STORES.keys():
        raise pytest.UsageError(f"mark stores: unknown {sorted(unknown)}; there are {sorted(STORES)}")
    return tuple(names)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `store_url` once for each of its stores."""
    if "store_url" in metafunc.fixturenames:
        names = _bound(metafunc.definition.get_closest_marker("stores"))
        marked = [pytest.param(name, marks=pytest.mark.stores(name)) for name in names]
        metafunc.parametrize("store_url", marked, indirect=True)


def _marker(item: pytest.Item) -> pytest.Mark | None:
    """What binds an item to stores: its parameter before its function, and that before its module."""
    own = [marker for marker in item.own_markers if marker.name == "stores"]  # a parameter's marks come last
    return own[-1] if own else item.get_closest_marker("stores")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is bound only to stores that were not asked for."""
    asked = _asked(config)
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        marker = _marker(item)
        (kept if marker is None or asked & set(_bound(marker)) else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """NOT RUN on a MongoDB server that lacks what the test needs of it."""
    needs = item.get_closest_marker("mongodb_needs")
    if needs is None or "mongodb" not in _bound(_marker(item)):
        return
    from tests.mongo import servers

    with suppress(servers.NoServer):  # which is told by whoever asks for the server
        if reason := servers.lacking(*needs.args):
            pytest.skip(f"{NOT_RUN}mongodb: {reason}")


def _reason(report: pytest.TestReport) -> str:
    """Why a test was skipped; empty for any other report."""
    return str(report.longrepr[2]) if report.skipped and isinstance(report.longrepr, tuple) else ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where stores are required, NOT RUN is a failure, whoever said it."""
    report = yield
    reason = _reason(report)
    if NOT_RUN in reason and os.environ.get("RATCHET_REQUIRE_STORES") == "1":
        report.outcome = "failed"
        report.longrepr = f"every store is required here (RATCHET_REQUIRE_STORES=1): {reason}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what was not run and what is not built yet, counted and by name."""
    for prefix, what in ((NOT_RUN, "store x reason"), (NOT_YET, "capability")):
        names: Counter[str] = Counter()
        for report in terminalreporter.stats.get("skipped", []):
            _, found, name = _reason(report).partition(prefix)
            if found:
                names[name] += 1
        if names:
            terminalreporter.section(f"{prefix.rstrip(': ')} ({names.total()} tests, by {what})")
            for name, count in sorted(names.items()):
                terminalreporter.line(f"{prefix}{name} ({count} tests)")
