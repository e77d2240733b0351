"""SIGTERM and SIGINT as something to read, so that no handler ever runs code in the middle of other code."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final

_WOKEN: Final = 0


class Signals:
    """Signals of this process, to be waited for with `select` and read with `take`.

    The interpreter writes their numbers into a pipe (`signal.set_wakeup_fd`); the handlers themselves do
    nothing. A handler that raised, or that took a lock, would do so between any two instructions of the
    main thread (an exception there has cost others a job; a lock there deadlocks).

    To be made and closed on the main thread. A forked child of a body gets the default actions back: a
    SIGTERM for it must end it, and must not be read here.

    Args:
        numbers: which signals; SIGINT is left alone if the parent has had it ignored (``nohup``, ``&``).
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._closed = False
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before: dict[signal.Signals, Any] = {}
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN or number is not signal.SIGINT:
                self._before[number] = signal.signal(number, _nothing)
        here = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _after_fork(here))

    def fileno(self) -> int:
        """For `select`: readable once there is something to take."""
        return self._read

    def take(self) -> list[int]:
        """The numbers of the signals received since the last call, in order; never blocks."""
        with suppress(BlockingIOError):
            return [number for number in os.read(self._read, 4096) if number != _WOKEN]
        return []

    def wake(self) -> None:
        """Make `select` return; from any thread."""
        with suppress(BlockingIOError, OSError):
            os.write(self._write, bytes([_WOKEN]))

    def close(self) -> None:
        """Give the signals back to whoever had them."""
        if self._closed:
            return
        self._closed = True
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


def _after_fork(here: Callable[[], Signals | None]) -> None:
    signals = here()
    if signals is not None and not signals._closed:
        signals._closed = True
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)
            for number in signals._before:
                signal.signal(number, signal.SIG_DFL)
        os.close(signals._read)
        os.close(signals._write)
