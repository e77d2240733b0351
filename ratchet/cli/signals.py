"""SIGTERM and SIGINT as something to read, so that no handler ever runs code in the middle of other code."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from contextlib import suppress
from types import FrameType
from typing import Any, Final

_WOKEN: Final = 0


class Signals:
    """Signals of this process, to be waited for with `select` and read with `take`.

    The interpreter writes their numbers into a pipe (`signal.set_wakeup_fd`); the handlers themselves do
    nothing. A handler that raised, or that took a lock, would do so between any two instructions of the
    main thread (an exception there has cost others a job; a lock there deadlocks).

    To be made and closed on the main thread. A forked child of a body gets back what was there before, from
    its first moment: a SIGTERM for it must end it, and must not be written into the pipe that it shares.

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
        _in_use.add(self)

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


_in_use: Final[weakref.WeakSet[Signals]] = weakref.WeakSet()
_masks: Final = threading.local()


def _before_fork() -> None:
    """Until the child has its own handlers its signals wait."""
    numbers = [number for signals in _in_use if not signals._closed for number in signals._before]
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers) if numbers else None


def _in_parent() -> None:
    if _masks.before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _in_child() -> None:
    for signals in list(_in_use):
        if signals._closed:
            continue
        with suppress(ValueError):
            signals.close()
    _in_parent()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
