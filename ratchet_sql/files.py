"""The database file: how it is opened, whether it is still the one that was opened, its schema.

A store never makes a second file: only the first opening may create one, and when the file of a running
store is deleted or replaced, that is told and not papered over by a new, empty one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from ratchet.errors import StorePermanentError
from ratchet_sql import migrations
from ratchet_sql.translate import translated

_LOOK_EVERY: Final = 0.2
"""Seconds between two looks whether the file is still there."""

_LOG_LIMIT: Final = 64 * 1024 * 1024
"""A write-ahead log that grew beyond it, behind a long reader, is cut back to it afterwards."""


class DatabaseFile:
    """One SQLite file.

    Args:
        path: absolute.
        read_only: open it with ``mode=ro``.
        synchronous: ``FULL`` or ``NORMAL``.
        auto_upgrade: bring the schema of an older or foreign database up to date at first use.
    """

    def __init__(self, path: str, *, read_only: bool, synchronous: str, auto_upgrade: bool) -> None:
        self.path = path
        self.read_only = read_only
        self._synchronous = synchronous
        self._auto_upgrade = auto_upgrade
        self._identity: tuple[int, int] | None = None
        self._looked_at = 0.0

    @property
    def is_prepared(self) -> bool:
        """True once `prepare` has found or made the schema."""
        return self._identity is not None

    def connect(self, *, create: bool = False) -> sqlite3.Connection:
        """A new connection, which waits for nobody: the caller tries again while the file is locked."""
        if self._identity is not None and self._found() != self._identity:
            raise self._gone()
        mode = "ro" if self.read_only else "rwc" if create else "rw"
        connection = sqlite3.connect(
            f"file:{quote(self.path)}?mode={mode}",
            uri=True,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        connection.text_factory = _text
        try:
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute("PRAGMA temp_store = memory")
            connection.execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT}")
        except BaseException:
            close(connection)
            raise
        return connection

    def _connect_or_create(self) -> sqlite3.Connection:
        return self.connect(create=not os.path.exists(self.path))  # noqa: PTH110

    def prepare(self, now: Callable[[], int], retrying: migrations.Retrying) -> None:
        """See that the file exists and has the schema; several processes may do so at once.

        Raises:
            SchemaTooNew: before anything is written.
            SchemaMissing: see `ratchet_sql.migrations.prepare`.
        """
        if self._identity is not None:
            return
        connection = retrying(self._connect_or_create)
        try:
            migrations.prepare(
                connection,
                self.path,
                read_only=self.read_only,
                auto_upgrade=self._auto_upgrade,
                now=now,
                retrying=retrying,
            )
        finally:
            close(connection)
        self._identity = self._found()

    def check(self, *, now: bool = False) -> None:
        """Raise if the file was deleted or replaced; looks at most every 0.2 s unless `now`.

        Raises:
            StorePermanentError: it is gone.
        """
        if self._identity is None:
            return
        moment = time.monotonic()
        if not now and moment - self._looked_at < _LOOK_EVERY:
            return
        if self._found() != self._identity:
            self._looked_at = 0.0
            raise self._gone()
        self._looked_at = moment

    def refuse_writing(self) -> StorePermanentError:
        """What to raise for a write to a file that was opened read-only."""
        return StorePermanentError(
            f"the database {self.path} was opened with mode=ro; open it without mode=ro to write"
        )

    def schema_status(self, retrying: migrations.Retrying) -> int | None:
        """The newest version in the ledger; None if there is no file or no schema."""
        if not os.path.exists(self.path):  # noqa: PTH110
            return None
        try:
            connection = retrying(self.connect)
            try:
                return retrying(lambda: migrations.version_of(connection))
            finally:
                close(connection)
        except sqlite3.Error as error:
            raise translated(error, self.path) from error

    def schema_upgrade(self, now: Callable[[], int], retrying: migrations.Retrying) -> list[int]:
        """Apply what is missing; answers the versions applied by this call."""
        if self.read_only:
            raise self.refuse_writing()
        try:
            connection = retrying(self._connect_or_create)
            try:
                return migrations.upgrade(connection, self.path, now=now, retrying=retrying)
            finally:
                close(connection)
        except sqlite3.Error as error:
            raise translated(error, self.path) from error

    def _found(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)  # noqa: PTH116
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _gone(self) -> StorePermanentError:
        how = "deleted" if self._found() is None else "replaced by another"
        return StorePermanentError(
            f"the database file {self.path} was {how} while in use; put the original back, "
            "or restart this process to use what is there now"
        )


def close(connection: sqlite3.Connection) -> None:
    """Close it; one that cannot be closed is let go."""
    with contextlib.suppress(sqlite3.Error):
        connection.close()


def _text(stored: bytes) -> str:
    """Text as it was stored; bytes that are none, which only another program can have put there, as U+FFFD."""
    return str(stored, "utf-8", "replace")
