"""One run of the suite: which harness, made once, checked before any test, and closed at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

import pytest

from conformance_tests.checks import HarnessMistake, check, load, make
from conformance_tests.harness import StoreHarness
from conformance_tests.under_test import UnderTest

GROUP: Final = "ratchet.harnesses"
FIXTURE: Final = "ratchet_harness"


class Session:
    """The harness of this process and the stores under test that it opens."""

    def __init__(self, factory: Callable[..., Any], *, name: str | None = None) -> None:
        self._name = name
        self.harness: StoreHarness = make(factory, worker=os.environ.get("PYTEST_XDIST_WORKER", ""))
        self._flavours: dict[str, UnderTest] = {}
        self._capabilities: frozenset[str] = frozenset()

    @property
    def flavours(self) -> tuple[str, ...]:
        """Which flavours are tested."""
        return tuple(self.harness.flavours)

    def under_test(self, flavour: str) -> UnderTest:
        """The store under test in one flavour, the same for every test."""
        if flavour not in self._flavours:
            self._flavours[flavour] = UnderTest(self.harness, flavour)
        return self._flavours[flavour]

    def check(self) -> None:
        """Tell the first mistake of the harness."""
        self._capabilities = check(self.harness)

    def facts(self) -> Mapping[str, str]:
        """What the report says of the store under test."""
        made = type(self.harness)
        told = {"harness": self._name or f"{made.__module__}:{made.__name__}"}
        told["capabilities"] = ", ".join(sorted(self._capabilities)) or "none"
        return told | {str(key): str(value) for key, value in self.harness.versions().items()}

    def close(self) -> None:
        """Close handles, then the harness."""
        for under_test in self._flavours.values():
            under_test.close()
        self.harness.close()
        while _running:
            next(_running.pop(), None)


KEY: Final = pytest.StashKey[Session]()


def begin(config: pytest.Config) -> Session:
    """The session of this run, made and checked at the first call.

    Raises:
        pytest.UsageError: no harness is named, or it has a mistake.
    """
    if KEY not in config.stash:
        try:
            session = Session(_named(config), name=config.getoption("--ratchet-harness"))
            session.check()
        except HarnessMistake as mistake:
            raise pytest.UsageError(str(mistake)) from mistake
        config.stash[KEY] = session
        config.add_cleanup(session.close)
    return config.stash[KEY]


def _named(config: pytest.Config) -> Callable[..., Any]:
    name, url = config.getoption("--ratchet-harness"), config.getoption("--ratchet-url")
    fixture = _fixture(config)
    if name is None and url is None and fixture is None:
        raise HarnessMistake(
            "say which store to test: --ratchet-harness mypkg.harness:MyHarness, --ratchet-url URL, or a "
            f"fixture {FIXTURE} in conftest.py of the folder in which pytest is started"
        )
    if name is not None:
        here = str(config.invocation_params.dir)
        if here not in sys.path:  # as `python -m pytest` has it, and `pytest` has not
            sys.path.insert(0, here)
        return _with_url(load(name), url)
    if url is not None:
        return _with_url(installed(url), url)
    assert fixture is not None
    return fixture


def _with_url(factory: Callable[..., Any], url: str | None) -> Callable[..., Any]:
    if url is None:
        return factory

    def made() -> Any:
        return factory(url)

    made.__name__ = getattr(factory, "__name__", "harness")
    return made


def installed(url: str) -> Callable[..., Any]:
    """The harness that is installed for the scheme of `url` (entry points ``ratchet.harnesses``)."""
    from importlib.metadata import entry_points

    scheme, separator, _ = url.partition("://")
    scheme = scheme.partition("+")[0]
    if not separator:
        raise HarnessMistake("that is not a store URL; write one like sqlite:///new.db")
    found = {each.name: each for each in entry_points(group=GROUP)}
    if scheme not in found:
        there = ", ".join(f"{name}://" for name in sorted(found)) or "none"
        raise HarnessMistake(f"no conformance harness is installed for {scheme}://; installed: {there}")
    return load(found[scheme].value)


def _fixture(config: pytest.Config) -> Callable[[], Any] | None:
    """The author's ``ratchet_harness`` of a conftest: a fixture without arguments, a function or a class."""
    for plugin in config.pluginmanager.get_plugins():
        found = vars(plugin).get(FIXTURE) if hasattr(plugin, "__dict__") else None
        if found is None:
            continue
        function: Any = found
        if hasattr(found, "_get_wrapped_function"):
            function = found._get_wrapped_function()
        elif hasattr(found, "__pytest_wrapped__"):  # a fixture before pytest 8.4
            function = found.__pytest_wrapped__.obj
        if isinstance(function, StoreHarness):
            return lambda: function
        if not callable(function):
            raise HarnessMistake(f"{FIXTURE} of {plugin!r} is no fixture, class or function")
        return _first_of(function)
    return None


def _first_of(function: Callable[..., Any]) -> Callable[[], Any]:
    import inspect

    wanted = [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.default is inspect.Parameter.empty
    ]
    if wanted:
        raise HarnessMistake(
            f"the fixture {FIXTURE} must do without other fixtures, because it is called once before any "
            f"test; it wants {', '.join(wanted)}"
        )
    if not inspect.isgeneratorfunction(function):
        return function

    def first() -> Any:
        generator = function()
        _running.append(generator)
        return next(generator)

    first.__name__ = function.__name__
    return first


_running: Final[list[Generator[Any, None, None]]] = []
"""Fixtures that go on after their ``yield`` when the session is closed."""
