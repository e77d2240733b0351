"""Wake-ups between processes on one SQLite file: a commit of another process is the signal.

``PRAGMA data_version`` tells whether another connection has committed, without touching a table (6.5
microseconds a look). It is asked on the writing connection, so that this process's own commits, all made
there, are no news.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from ratchet.errors import StoreClosed, StoreError
from ratchet.spi.coordinator import Hint, HintListener
from ratchet_sql.connection import Database

_log = logging.getLogger("ratchet.store")

LOOK_EVERY: Final = 0.02
"""Seconds between two looks while the node could use a hint."""

_LONGEST_BACKOFF: Final = 10.0


class SqliteCoordinator:
    """A `ratchet.spi.coordinator.ClusterCoordinator` that watches a database file.

    Attributes:
        received: hints that were passed on.
        listener_failures: hints whose listener raised.
    """

    def __init__(self, database: Database) -> None:
        self.received = 0
        self.listener_failures = 0
        self._database = database
        self._active = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, node: str, listener: HintListener) -> None:
        """Begin to watch, once `watch(True)` is called; `listener` runs on the watching thread."""
        if self._closed.is_set() or self._thread is not None:
            return
        self._thread = threading.Thread(
            target=self._watch, args=(listener,), name=f"ratchet-hints-{node}", daemon=True
        )
        self._thread.start()

    def notify(self, hint: Hint) -> None:
        """Nothing to do: the commit that made the work is what the others see."""

    def watch(self, active: bool) -> None:
        """Look (True) or rest (False)."""
        if active:
            self._active.set()
        else:
            self._active.clear()

    def close(self) -> None:
        """Stop watching; afterwards no listener is called. Safe from the listener itself."""
        self._closed.set()
        self._active.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _watch(self, listener: HintListener) -> None:
        seen: int | None = None
        pause = LOOK_EVERY
        while True:
            self._active.wait()
            if self._closed.wait(pause):
                return
            try:
                version = self._database.data_version()
            except StoreClosed:
                return
            except StoreError as error:
                _log.debug("cannot watch for work of other processes: %s", error)
                pause = min(max(pause, 0.1) * 2, _LONGEST_BACKOFF)
                continue
            pause = LOOK_EVERY
            if version is None:
                continue
            if seen is not None and version != seen:
                self._tell(listener)
            seen = version

    def _tell(self, listener: HintListener) -> None:
        try:
            listener(Hint())
        except Exception:  # noqa: BLE001 - a listener harms nobody else
            self.listener_failures += 1
            _log.exception("a listener of hints raised")
        else:
            self.received += 1
