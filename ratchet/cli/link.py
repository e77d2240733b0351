"""The socket between a supervisor and one of its workers: it says ready, stop and hurry, and who has died.

Not signals: a terminal, systemd and container runtimes send theirs to the whole group, supervisor and
workers alike, and a signal forwarded on top of that would count as the second one, which skips the wait.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final

VARIABLE: Final = "RATCHET_SUPERVISOR_FD"
READY: Final = b"r"
STOP: Final = b"s"
HURRY: Final = b"h"


class Link:
    """The worker's end. Its end of file is the supervisor's death, and a request to stop."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(False)

    @classmethod
    def inherited(cls) -> Link | None:
        """What the supervisor handed over; None without one. Bodies and their children do not inherit it."""
        number = os.environ.pop(VARIABLE, "")
        if not number.isdecimal():
            return None
        try:
            end = socket.socket(fileno=int(number))
        except OSError:
            return None
        end.set_inheritable(False)
        return cls(end)

    def fileno(self) -> int:
        """For `select`."""
        return self._end.fileno()

    def ready(self) -> None:
        """Tell the supervisor that this worker runs."""
        with suppress(OSError):
            self._end.send(READY)

    def take(self) -> bytes | None:
        """What the supervisor has said; None: it is dead; empty: nothing."""
        try:
            return self._end.recv(64) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None
