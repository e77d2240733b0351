"""Fixtures of the suite: one store under test, its time, and further handles on it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from fnmatch import fnmatchcase
from typing import Any

import pytest

from conformance_tests.contract import Contract, contract_of
from conformance_tests.driver import Driver
from conformance_tests.plugin import PROPERTY
from conformance_tests.session import KEY, begin
from conformance_tests.under_test import NOT_DECLARED, Time, UnderTest, not_offered
from ratchet.spi.store import JobStore

_WHAT = {
    "clock": "the harness has no clock",
    "seed": "the harness has no seed()",
    "crash_points": "the harness has no crash_points()",
    "open_process": "the harness has no open_process()",
    "transaction": "the harness has no transaction(), or the database no transactions",
}


@pytest.fixture
def flavour(request: pytest.FixtureRequest) -> str:
    """Which face of the store this test drives."""
    return str(getattr(request, "param", begin(request.config).flavours[0]))


@pytest.fixture
def under_test(request: pytest.FixtureRequest, flavour: str) -> Iterator[UnderTest]:
    """The database of the harness, empty; a test whose contract needs more than the harness has ends here."""
    under_test = begin(request.config).under_test(flavour)
    asked = contract_of(getattr(request.node, "function", None))
    if asked and not asked.capability:
        _check_hooks(under_test, asked)
    under_test.reset()
    yield under_test
    under_test.close_handles()


@pytest.fixture
def store(request: pytest.FixtureRequest, under_test: UnderTest) -> JobStore:
    """An empty store; a test whose contract belongs to a capability that it does not declare ends here."""
    store = under_test.open()
    asked = contract_of(getattr(request.node, "function", None))
    if asked and asked.capability and asked.capability not in store.capabilities:
        pytest.skip(NOT_DECLARED + asked.capability)
    if asked:
        _check_hooks(under_test, asked)
    return store


def _check_hooks(under_test: UnderTest, asked: Contract) -> None:
    for hook in asked.needs:
        if not under_test.harness.offers(hook):
            not_offered(_WHAT[hook])


@pytest.fixture
def clock(under_test: UnderTest, store: JobStore) -> Time:
    """Store time, which the test can set."""
    if not under_test.has_clock:
        not_offered(_WHAT["clock"])
    return under_test.time(store)


@pytest.fixture
def open_another(under_test: UnderTest, store: JobStore) -> Callable[[], JobStore]:
    """Opens a further handle on the jobs of `store`."""
    return under_test.open


@pytest.fixture
def driver(store: JobStore, under_test: UnderTest) -> Driver:
    """Moves the jobs of `store`."""
    return Driver(store, under_test.time(store))


@pytest.fixture
def nodes(under_test: UnderTest, store: JobStore) -> list[JobStore]:
    """Eight handles, as eight nodes would have them."""
    return [under_test.open() for _ in range(8)]


@pytest.fixture
def rounds(under_test: UnderTest) -> range:
    """How often a race is repeated: fewer times on a slow store."""
    return range(under_test.paced(least=24, most=300, unit=40))


# -- collection and reports -----------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test once for each flavour, where the store comes in more than one."""
    session = metafunc.config.stash.get(KEY, None)
    if "under_test" in metafunc.fixturenames and session is not None and len(session.flavours) > 1:
        metafunc.parametrize("flavour", session.flavours, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what --ratchet-contracts names."""
    patterns = [each for each in (config.getoption("--ratchet-contracts") or "").split(",") if each]
    if not patterns:
        return
    there = {shown.id for item in items if (shown := contract_of(getattr(item, "function", None)))}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in there):
            raise pytest.UsageError(f"--ratchet-contracts: no contract of this run is named {pattern}")
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        shown = contract_of(getattr(item, "function", None))
        named = shown is not None and any(fnmatchcase(shown.id, pattern) for pattern in patterns)
        (kept if named else dropped).append(item)
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send the contract along with what decides about it: the call, or what went wrong around it."""
    report = yield
    shown: Contract | None = contract_of(getattr(item, "function", None))
    if shown is not None and (report.when == "call" or not report.passed):
        told: dict[str, Any] = {"contract": shown.id}
        session = item.config.stash.get(KEY, None)
        if session is not None:
            told["facts"] = dict(session.facts())
        report.user_properties.append((PROPERTY, told))
    return report
