"""Job ids: UUIDv7 values that never run backwards within a process.

The specification (section 2) wants RFC 9562 section 5.7 ids which stay in order also when the clock
steps back: stores order equal jobs by id, and an index grows best at its right end. This is the one
module of the domain that reads a clock and draws randomness; both can be replaced.

An id is one 122-bit number, milliseconds above 74 random bits (RFC 9562 section 6.2, method 2). A new
millisecond draws fresh random bits. Within a millisecond, or while the clock is behind, the number grows
by a random step, and a carry out of the random bits moves the time part on by itself.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final
from uuid import UUID

__all__ = ["IdSequence", "new_id"]

_RANDOM_BITS: Final = 74
_RANDOM_BYTES: Final = 10  # 80 bits; the surplus 6 are shifted out
_RANDOM_SURPLUS: Final = 8 * _RANDOM_BYTES - _RANDOM_BITS
_STEP_MASK: Final = (1 << 32) - 1
_LOW_BITS: Final = 62
_LOW_MASK: Final = (1 << _LOW_BITS) - 1
_VERSION_AND_VARIANT: Final = (0x7 << 76) | (0b10 << 62)
_LAST_MILLISECOND: Final = (1 << 48) - 1


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class IdSequence:
    """A thread-safe and fork-safe source of ascending UUIDv7 values.

    Args:
        clock_ms: answers Unix time in whole milliseconds; the wall clock by default.
        entropy: answers so many random bytes; `os.urandom` by default, whose state no fork copies.
    """

    __slots__ = ("__weakref__", "_clock_ms", "_entropy", "_last", "_lock", "_steps")

    def __init__(
        self,
        *,
        clock_ms: Callable[[], int] = _wall_clock_ms,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._clock_ms = clock_ms
        self._entropy = entropy
        self._lock = threading.Lock()
        # Random also at time zero: a machine that boots at the epoch must not repeat another one's ids.
        self._last = self._fresh_bits()
        self._steps = 0
        _sequences.add(self)

    def next(self) -> UUID:
        """Answer an id greater than every id this sequence has answered before in this process."""
        with self._lock:
            now = self._clock_ms()
            last = self._last
            if now > last >> _RANDOM_BITS and now <= _LAST_MILLISECOND:
                bits = int.from_bytes(self._entropy(_RANDOM_BYTES), "big") >> _RANDOM_SURPLUS
                number = (now << _RANDOM_BITS) | bits
                # The same draw seeds the steps: a system call for each would cost more than all the rest.
                self._steps = bits
            else:
                self._steps = steps = (self._steps * 6364136223846793005 + 1442695040888963407) & _LOW_MASK
                number = last + 1 + ((steps >> 30) & _STEP_MASK)
            self._last = number
        high = number >> _LOW_BITS  # 48 bits of time and the 12 random bits beside the version
        return UUID(
            int=((high >> 12) << 80) | ((high & 0xFFF) << 64) | (number & _LOW_MASK) | _VERSION_AND_VARIANT
        )

    def _fresh_bits(self) -> int:
        return int.from_bytes(self._entropy(_RANDOM_BYTES), "big") >> _RANDOM_SURPLUS

    def _restart_after_fork(self) -> None:
        # The lock may have been held by a thread that does not exist here. The next millisecond keeps the
        # order with ids inherited from the parent; fresh bits keep this process apart from its relatives.
        self._lock = threading.Lock()
        self._last = (((self._last >> _RANDOM_BITS) + 1) << _RANDOM_BITS) | self._fresh_bits()
        self._steps = self._fresh_bits()


_sequences: "weakref.WeakSet[IdSequence]" = weakref.WeakSet()


def _restart_all_after_fork() -> None:
    for sequence in list(_sequences):
        sequence._restart_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_all_after_fork)

_process_sequence = IdSequence()


def new_id() -> UUID:
    """Answer a new UUIDv7, greater than every one this process has made (specification, section 2).

    Safe from any thread and after a fork: a child shares no id with its parent or its siblings.
    """
    return _process_sequence.next()
