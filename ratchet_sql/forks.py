"""Forks: what has connections is told before and after each one.

SQLite keeps its view of a file's locks per process, in memory that a fork copies. A child that opened the
same file would believe in locks that only its parent holds: it might wait for ever for a lock that its
copy says is taken, and its parent's last close could throw away the log that the child still writes. So
every connection is closed, in order, just before a fork; parent and child open their own when they next
need one.
"""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class Forkable(Protocol):
    """Something that holds connections."""

    def before_fork(self) -> None:
        """Let nobody begin, wait for who has begun, close everything."""
        ...

    def after_fork_in_parent(self) -> None:
        """Go on."""
        ...

    def after_fork_in_child(self) -> None:
        """Go on, with new locks: the threads that might hold the old ones do not exist here."""
        ...


_all: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()
_told: Final[list[Forkable]] = []


def register(holder: Forkable) -> None:
    """Tell `holder` of forks from now on, as long as it lives."""
    _all.add(holder)


def _before() -> None:
    _told[:] = list(_all)
    for holder in _told:
        holder.before_fork()


def _after_in_parent() -> None:
    for holder in _told:
        holder.after_fork_in_parent()
    _told.clear()


def _after_in_child() -> None:
    for holder in _told:
        holder.after_fork_in_child()
    _told.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
