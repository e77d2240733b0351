"""Which of the suites run, on which parts, and what their tests tell the report."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance_tests.checks import load
from conformance_tests.spi.harness import CoordinatorHarness, ExecutorHarness, PlainCoordinators
from conformance_tests.spi.loading import Factory, named
from conformance_tests.spi.parts import PARTS, shown_by
from conformance_tests.spi.plugin import PROPERTY


def _part_of(path: Path) -> str:
    return path.stem.removeprefix("test_").replace("_", "-")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the suites of parts that no option names."""
    part = _part_of(collection_path)
    return True if collection_path.suffix == ".py" and part in PARTS and not named(config, part) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test of a suite once for each part that the option names."""
    if "factory" not in metafunc.fixturenames:
        return
    names = named(metafunc.config, _part_of(Path(str(getattr(metafunc.module, "__file__", "")))))
    metafunc.parametrize("factory", [load(name) for name in names], ids=names, scope="session")


@pytest.fixture
def made(factory: Factory) -> Any:
    """A new part, or its harness."""
    return factory()


@pytest.fixture
def coordinators(factory: Factory) -> Iterator[CoordinatorHarness]:
    """A channel of its own for this test; every coordinator on it is closed at the end."""
    made = factory()
    harness = made if isinstance(made, CoordinatorHarness) else PlainCoordinators(factory)
    yield harness
    harness.close_all()


@pytest.fixture
def executors(factory: Factory) -> Iterator[ExecutorHarness]:
    """Makes executors; bodies that still wait are let go at the end."""
    harness: ExecutorHarness = factory()
    yield harness
    harness.close_all()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send the contract and the part along with what decides about it."""
    report = yield
    shown = shown_by(getattr(item, "function", None))
    if shown is not None and (report.when == "call" or not report.passed):
        callspec = getattr(item, "callspec", None)
        subject = str(callspec.id) if callspec is not None else "?"
        names = [name for part in PARTS for name in named(item.config, part)]
        subject = next((name for name in names if name in subject), subject)
        report.user_properties.append((PROPERTY, (subject, shown.id)))
    return report
