"""Finds stores by the scheme of their URL: entry points of the group ``ratchet.stores``."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Final

from ratchet.errors import ConfigurationError, MissingExtra, UnknownScheme
from ratchet.spi.clock import Clock
from ratchet.spi.plugin import StorePlugin
from ratchet.spi.store import JobStore

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "ratchet.stores"

EXTRAS: Final = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "mysql": "mysql",
    "mariadb": "mysql",
    "mongodb": "mongo",
    "mongodb+srv": "mongo",
}
"""Schemes of our own stores -> the extra that installs them."""

BUILT_IN: Final = {"memory": "ratchet.defaults.memory:plugin", "sqlite": "ratchet_sql.plugin:sqlite"}
"""The embedded stores are there without installed metadata, too (a checkout on the path), and nobody replaces them."""


def _installed() -> dict[str, EntryPoint]:
    from importlib.metadata import EntryPoint, entry_points

    found = {each.name: each for each in entry_points(group=GROUP)}
    return found | {name: EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items()}


def store_plugin(url: str) -> StorePlugin:
    """The plugin for a URL.

    Raises:
        UnknownScheme: none is installed for it; lists those that are and names the extra to install.
        MissingExtra: it is installed, but its driver is not.
        ConfigurationError: not a URL at all.
    """
    if not isinstance(url, str):
        raise ConfigurationError(f"a store URL is text, like 'sqlite:///jobs.db', not {type(url).__name__}")
    scheme, separator, _ = url.partition("://")
    scheme = scheme.partition("+")[0] if scheme not in EXTRAS else scheme
    if not separator or not scheme:
        raise ConfigurationError(f"{_shown(url)!r} is not a store URL; write one like sqlite:///jobs.db")
    load = _loader(scheme)
    try:
        plugin = load()
    except ImportError as error:
        extra = EXTRAS.get(scheme, scheme)
        raise MissingExtra(
            f"the store for {scheme}:// cannot be loaded ({error}); "
            f"install it with: pip install 'ratchet-jobs[{extra}]'"
        ) from error
    if not isinstance(plugin, StorePlugin):
        raise ConfigurationError(f"the entry point for {scheme}:// has no open(url, ...)")
    return plugin


def _loader(scheme: str) -> Callable[[], object]:
    if (
        scheme in BUILT_IN
    ):  # without a look at everything that is installed, which takes as long as all the rest
        module, _, name = BUILT_IN[scheme].partition(":")
        return lambda: getattr(import_module(module), name)
    installed = _installed()
    if scheme not in installed:
        raise UnknownScheme(_unknown(scheme, sorted(installed)))
    return installed[scheme].load


def open_store(url: str, *, clock: Clock | None = None, auto_upgrade: bool = False) -> JobStore:
    """The store for a URL; opens nothing until first use.

    Raises:
        UnknownScheme, MissingExtra, ConfigurationError: as `store_plugin`; or a clock that is none.
    """
    if clock is not None:
        _check_clock(clock)
    return store_plugin(url).open(url, clock=clock, auto_upgrade=auto_upgrade)


def _check_clock(clock: Clock) -> None:
    if not isinstance(clock, Clock):
        raise ConfigurationError(f"a clock has now(), which {type(clock).__name__} lacks")
    now = clock.now()
    if not isinstance(now, datetime) or now.utcoffset() is None:
        raise ConfigurationError(
            f"a clock's now() answers an aware datetime, like datetime.now(UTC), not {now!r}"
        )


def _unknown(scheme: str, installed: list[str]) -> str:
    text = (
        f"no store is installed for {scheme}://; installed: {', '.join(f'{name}://' for name in installed)}"
    )
    if scheme in EXTRAS:
        return f"{text}. Install it with: pip install 'ratchet-jobs[{EXTRAS[scheme]}]'"
    near = difflib.get_close_matches(scheme, [*installed, *EXTRAS], 1)
    return f"{text}. Did you mean {near[0]}://?" if near else text


def _shown(url: str) -> str:
    """A URL that may be shown: without anything that could be a password."""
    return url if "@" not in url and ":" not in url else url.partition(":")[0] + ":..."
