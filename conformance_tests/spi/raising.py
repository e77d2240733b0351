"""Exceptions as jobs raise them, and as nobody should: for the suites of policies and sanitizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn, cast

from ratchet.errors import DoNotRetry, JobError


class ShopError(Exception):
    """An application's own error."""


class UnprintableError(Exception):
    """Its message cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


class UnprintableAtAllError(Exception):
    """Making its message asks the interpreter to exit."""

    def __str__(self) -> NoReturn:
        raise SystemExit(3)


class NoTextError(Exception):
    """Its message is no text."""

    def __str__(self) -> str:
        return cast("str", None)


def _chained() -> BaseException:
    try:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ShopError("outer") from error
    except ShopError as error:
        return error


def _cyclic() -> BaseException:
    error = ShopError("round and round")
    error.__context__ = ValueError("first")
    error.__context__.__context__ = error
    return error


def _noted() -> BaseException:
    error = ShopError("plain")
    error.add_note("a note")
    return error


ORDINARY: Final[dict[str, Callable[[], BaseException]]] = {
    "builtin": lambda: ValueError("no such card"),
    "empty": ValueError,
    "own class": lambda: ShopError("no such shop"),
    "key": lambda: KeyError("id"),
    "chained": _chained,
    "noted": _noted,
    "group": lambda: ExceptionGroup("several", [ValueError("a"), ShopError("b")]),
    "timeout": lambda: TimeoutError("too late"),
    "of the operating system": lambda: FileNotFoundError(2, "No such file", "/nowhere"),
    "text alone": lambda: JobError("module.Gone", "the live exception is gone"),
    "permanent": lambda: DoNotRetry("never again"),
    "not an Exception": lambda: KeyboardInterrupt("stop"),
}

HOSTILE: Final[dict[str, Callable[[], BaseException]]] = {
    "unprintable": UnprintableError,
    "unprintable, exits": UnprintableAtAllError,
    "message is no text": NoTextError,
    "cyclic": _cyclic,
    "bytes": lambda: ShopError(b"\xff\xfe"),
    "huge": lambda: ShopError("x" * 1_000_000),
    "control characters": lambda: ShopError("a\x00b\x1b[31m\ud800"),
}
