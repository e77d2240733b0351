"""The entry point of the group ``ratchet.stores`` for ``sqlite:``: from a URL to a store."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from ratchet.errors import ConfigurationError
from ratchet.spi.clock import Clock
from ratchet.spi.store import JobStore

DEFAULT_TIMEOUT: Final = 5.0
"""Seconds to wait for another process's lock."""

_CHOICES: Final = {"synchronous": ("FULL", "NORMAL"), "mode": ("ro", "rw")}
_KEYS: Final = ("synchronous", "mode", "timeout")


class SqlitePlugin:
    """Opens ``sqlite:///relative.db`` and ``sqlite:////absolute.db``.

    Query parameters: ``synchronous`` (``FULL``, the default: what was acknowledged survives a power cut;
    ``NORMAL``: it survives the end of the process), ``mode`` (``rw`` or ``ro``), ``timeout`` (seconds to
    wait for the lock of another process, default 5).
    """

    def open(self, url: str, *, clock: Clock | None = None, auto_upgrade: bool = False) -> JobStore:
        """A store for `url`; see `ratchet.spi.plugin.StorePlugin.open`."""
        path, options = _parse(url)
        from ratchet_sql.connection import Database
        from ratchet_sql.files import DatabaseFile
        from ratchet_sql.store import SqliteStore

        file = DatabaseFile(
            path,
            read_only=options.get("mode") == "ro",
            synchronous=options.get("synchronous", "FULL"),
            auto_upgrade=auto_upgrade,
        )
        timeout = float(options.get("timeout", DEFAULT_TIMEOUT))
        return SqliteStore(Database(file, timeout=timeout, clock=clock))


def _parse(url: str) -> tuple[str, dict[str, str]]:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(f"{_shown(url)} is not a URL: {error}") from error
    if parts.scheme != "sqlite":
        raise ConfigurationError(f"{_shown(url)} is not an SQLite URL; write sqlite:///relative.db")
    path = unquote(parts.path)
    if parts.netloc not in ("", "/") or (parts.netloc == "" and not url.lower().startswith("sqlite://")):
        raise ConfigurationError(
            f"{_shown(url)} has too few slashes: write sqlite:///relative.db or sqlite:////absolute/path.db"
        )
    if path in ("", "/") or path.startswith("/:memory:"):
        raise ConfigurationError(
            f"{_shown(url)} names no file; SQLite in memory is not shared between connections, use memory:// instead"
        )
    if parts.fragment or "\0" in path:
        raise ConfigurationError(f"{_shown(url)} has a part that no file name has; write # as %23")
    if path.endswith("/"):
        raise ConfigurationError(f"{_shown(url)} names a folder; add the file name")
    return str(Path(path[1:]).absolute()), _options(url, parts.query)


def _shown(url: str) -> str:
    """The URL as a message may show it: no part that could have a password in it."""
    return repr(url.partition("?")[0]) if "@" not in url else "'sqlite:...'"


def _options(url: str, query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigurationError(
            f"{_shown(url)}: write parameters like ?timeout=10&synchronous=NORMAL"
        ) from None  # the cause shows the whole query
    options: dict[str, str] = {}
    for key, value in pairs:
        if key not in _KEYS:
            import difflib

            near = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_KEYS)}"
            raise ConfigurationError(f"{_shown(url)}: unknown parameter {key!r}, {hint}")
        if key in options:
            raise ConfigurationError(f"{_shown(url)}: parameter {key!r} is given twice")
        options[key] = _checked(url, key, value)
    return options


def _checked(url: str, key: str, value: str) -> str:
    if key == "timeout":
        try:
            fits = 0.0 <= float(value) <= 3600.0
        except ValueError:
            fits = False
        if not fits:
            raise ConfigurationError(
                f"{_shown(url)}: timeout is a number of seconds from 0 to 3600, not {value!r}"
            )
        return value
    for choice in _CHOICES[key]:
        if value.lower() == choice.lower():
            return choice
    raise ConfigurationError(f"{_shown(url)}: {key} is one of {', '.join(_CHOICES[key])}, not {value!r}")


sqlite: Final = SqlitePlugin()
"""What the entry point names."""
