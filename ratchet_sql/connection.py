"""Connections to one SQLite file: one that writes, a few that read, and what forks and deletions do to them.

One writer per process, behind a lock: SQLite lets one connection write at a time anyway, and a queue of
threads before a Python lock is fairer and cheaper than a queue of connections before a file lock. Readers
are separate, so that a slow one never keeps a writer waiting (WAL).

Busy handling is our own. SQLite's sleeps up to 100 ms between two tries, while a commit takes a tenth of
a millisecond; ours starts below a millisecond and draws each pause at random.

Forks. SQLite keeps its view of a file's locks per process, in memory that a fork copies: a child that
opened the same file would believe in locks that only its parent holds, and its parent's last close
could throw away a log that the child still writes. So all connections are closed, in order, just before
a fork; parent and child open their own when they next need one.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

from ratchet.errors import StoreClosed, StoreError, StorePermanentError, StoreTransientError
from ratchet.spi.clock import Clock
from ratchet_sql import migrations
from ratchet_sql.rows import to_ms
from ratchet_sql.translate import is_broken, is_busy, translated

T = TypeVar("T")

_LOOK_AT_FILE_EVERY: Final = 0.2  # seconds between two looks whether the file is still there
_IDLE_READERS: Final = 4
_FORK_PATIENCE: Final = 30.0  # seconds a fork waits for the statements of other threads
_FIRST_PAUSE: Final = 0.0003
_LONGEST_PAUSE: Final = 0.005


class Execute(Protocol):
    """Runs a statement of the rendered ones inside a unit of work."""

    def __call__(self, sql: str, parameters: Any = ..., /) -> sqlite3.Cursor: ...


def _no_step(name: str) -> None:
    """The place between two steps; tests put a crash or a barrier here."""


class Database:
    """One SQLite file, opened at first use.

    Args:
        path: of the file, absolute.
        read_only: open it with ``mode=ro``.
        synchronous: ``FULL`` or ``NORMAL``.
        timeout: seconds to wait for the lock of another process.
        auto_upgrade: bring the schema of an older or foreign file up to date at first use.
        clock: replaces the process's wall clock.
    """

    def __init__(
        self,
        path: str,
        *,
        read_only: bool = False,
        synchronous: str = "FULL",
        timeout: float = 5.0,
        auto_upgrade: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.path = path
        self.read_only = read_only
        self.step: Callable[[str], None] = _no_step
        self._synchronous = synchronous
        self._timeout = timeout
        self._auto_upgrade = auto_upgrade
        self._clock = clock
        self._closed = False
        self._fresh()
        _databases.add(self)

    def _fresh(self) -> None:
        """The state of a database that no connection is open to."""
        self._lock = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._pool = threading.Condition()
        self._idle: list[sqlite3.Connection] = []
        self._reading = 0
        self._frozen = False
        self._identity: tuple[int, int] | None = getattr(self, "_identity", None)
        self._looked_at = 0.0

    # -- time

    def now_ms(self) -> int:
        """Store time, in whole milliseconds."""
        if self._clock is None:
            return time.time_ns() // 1_000_000
        return to_ms(self._clock.now())

    # -- writing

    def write(self, work: Callable[[Execute, int], T]) -> T:
        """Run `work(execute, now)` as one transaction and commit it; what it raises undoes it.

        `now` is store time, read once the lock is held. `work` runs once.
        """
        with self._writing() as connection:
            self._retrying(lambda: connection.execute("BEGIN IMMEDIATE"))
            try:
                self.step("begun")
                answer = work(connection.execute, self.now_ms())
                self.step("before commit")
                self._retrying(lambda: connection.execute("COMMIT"))
            except BaseException:
                _roll_back(connection)
                raise
            self.step("committed")
            return answer

    def write_one(self, sql: str, parameters: Callable[[int], Any]) -> int:
        """Run one statement as its own transaction; answers how many rows it touched.

        `parameters` is called with store time, again for each try.
        """
        with self._writing() as connection:
            cursor = self._retrying(lambda: connection.execute(sql, parameters(self.now_ms())))
            self.step("committed")
            return cursor.rowcount

    def data_version(self) -> int | None:
        """A number that changes whenever another process has committed; None if a writer is at work here."""
        lock = self._lock
        if not lock.acquire(blocking=False):
            return None
        try:
            connection = self._writer or self._open_writer()
            version: int = connection.execute("PRAGMA data_version").fetchone()[0]
            return version
        except sqlite3.Error as error:
            raise self._failed(error) from error
        finally:
            lock.release()

    def _writing(self) -> _Writing:
        return _Writing(self)

    def _open_writer(self) -> sqlite3.Connection:
        """The writer, opened; the lock is held."""
        if self._closed:
            raise StoreClosed("the store was closed")
        connection = self._writer
        if connection is None:
            self._prepare()
            connection = self._writer = self._connect("ro" if self.read_only else "rw")
        return connection

    def _retrying(self, attempt: Callable[[], T]) -> T:
        """Try until the lock of another process is free, at most for the time-out."""
        pause = _FIRST_PAUSE
        deadline = 0.0
        while True:
            try:
                return attempt()
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                now = time.monotonic()
                if not deadline:
                    deadline = now + self._timeout
                elif now >= deadline:
                    raise
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 1.3, _LONGEST_PAUSE)

    def _failed(self, error: sqlite3.Error) -> StoreError:
        """Translate an error of the writer, and drop the connection if it may be broken; the lock is held."""
        if is_broken(error) and self._writer is not None:
            connection, self._writer = self._writer, None
            _close(connection)
        if is_busy(error):
            return StoreTransientError(
                f"the database {self.path} has been locked by another process for {self._timeout:g} s; "
                "try again, or find who holds it"
            )
        return translated(error, self.path)

    # -- reading

    def read(self, sql: str, parameters: Any = ()) -> Any:
        """The only value of the only row that a statement answers; None without a row."""
        connection = self._take_reader()
        try:
            row = self._retrying(lambda: connection.execute(sql, parameters).fetchone())
        except BaseException as error:
            self._drop_reader(connection)
            if isinstance(error, sqlite3.Error):
                raise translated(error, self.path) from error
            raise
        self._give_reader(connection)
        return None if row is None else row[0]

    def reading(self, work: Callable[[Execute], T]) -> T:
        """Run `work(execute)` over one unchanging state of the database."""
        connection = self._take_reader()
        try:
            self._retrying(lambda: connection.execute("BEGIN"))
            answer = work(connection.execute)
            connection.execute("COMMIT")
        except BaseException as error:
            self._drop_reader(connection)
            if isinstance(error, sqlite3.Error):
                raise translated(error, self.path) from error
            raise
        self._give_reader(connection)
        return answer

    def _take_reader(self) -> sqlite3.Connection:
        with self._pool:
            while self._frozen:
                self._pool.wait()
            if self._closed:
                raise StoreClosed("the store was closed")
            self._reading += 1
            if self._idle:
                return self._idle.pop()
        try:
            if self._identity is None:
                with self._writing():
                    pass  # whoever comes first prepares the file
            connection = self._connect("ro" if self.read_only else "rw")
            connection.execute("PRAGMA query_only = 1")
            return connection
        except BaseException as error:
            self._drop_reader(None)
            if isinstance(error, sqlite3.Error):
                raise translated(error, self.path) from error
            raise

    def _give_reader(self, connection: sqlite3.Connection) -> None:
        with self._pool:
            self._reading -= 1
            keep = not self._closed and not self._frozen and len(self._idle) < _IDLE_READERS
            if keep:
                self._idle.append(connection)
            elif self._frozen:
                _close(connection)  # before the fork goes on
            self._pool.notify_all()
        if not keep:
            _close(connection)

    def _drop_reader(self, connection: sqlite3.Connection | None) -> None:
        if connection is not None:
            _close(connection)
        with self._pool:
            self._reading -= 1
            self._pool.notify_all()

    # -- the file

    def _connect(self, mode: str) -> sqlite3.Connection:
        if self._identity is not None and self._file_identity() != self._identity:
            raise self._gone()
        connection = sqlite3.connect(
            f"file:{quote(self.path)}?mode={mode}",
            uri=True,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        try:
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute("PRAGMA temp_store = memory")
            connection.execute("PRAGMA journal_size_limit = 67108864")
        except BaseException:
            _close(connection)
            raise
        return connection

    def _prepare(self) -> None:
        """See that the file exists, belongs to us and has the schema; the writer's lock is held."""
        if self._identity is not None:
            return
        mode = "ro" if self.read_only else "rw" if Path(self.path).exists() else "rwc"
        connection = self._connect(mode)
        try:
            migrations.prepare(
                connection,
                self.path,
                read_only=self.read_only,
                auto_upgrade=self._auto_upgrade,
                now=self.now_ms,
                retrying=self._retrying,
            )
        finally:
            _close(connection)
        self._identity = self._file_identity()

    def _file_identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)  # noqa: PTH116
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _gone(self) -> StorePermanentError:
        deleted = self._file_identity() is None
        return StorePermanentError(
            f"the database file {self.path} was {'deleted' if deleted else 'replaced by another'} while in use; "
            "put the original back, or restart this process to use what is there now"
        )

    def check_file(self, *, now: bool = False) -> None:
        """Raise if the file was deleted or replaced; looks at most every 0.2 s unless `now`."""
        if self._identity is None:
            return
        moment = time.monotonic()
        if not now and moment - self._looked_at < _LOOK_AT_FILE_EVERY:
            return
        if self._file_identity() != self._identity:
            self._looked_at = 0.0
            raise self._gone()
        self._looked_at = moment

    # -- schema

    def schema_status(self) -> int | None:
        """The newest version in the ledger; None if there is no file or no schema."""
        if not Path(self.path).exists():
            return None
        try:
            connection = self._connect("ro")
            try:
                return self._retrying(lambda: migrations.version_of(connection))
            finally:
                _close(connection)
        except sqlite3.Error as error:
            raise translated(error, self.path) from error

    def schema_upgrade(self) -> list[int]:
        """Apply what is missing; answers the versions applied by this call."""
        if self.read_only:
            raise self._read_only()
        with self._pool:
            if self._closed:
                raise StoreClosed("the store was closed")
        try:
            connection = self._connect("rw" if Path(self.path).exists() else "rwc")
            try:
                return migrations.upgrade(connection, self.path, now=self.now_ms, retrying=self._retrying)
            finally:
                _close(connection)
        except sqlite3.Error as error:
            raise translated(error, self.path) from error

    def _read_only(self) -> StorePermanentError:
        return StorePermanentError(
            f"the database {self.path} was opened with mode=ro; open it without to write"
        )

    # -- the end

    def close(self) -> None:
        """Close all connections; idempotent."""
        with self._pool:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            _close(connection)
        with self._lock:
            writer, self._writer = self._writer, None
            if writer is not None:
                _close(writer)

    # -- forks

    def _before_fork(self) -> None:
        self._held_for_fork = self._lock.acquire(timeout=_FORK_PATIENCE)
        with self._pool:
            self._frozen = True
            self._pool.wait_for(lambda: self._reading == 0, timeout=_FORK_PATIENCE)
            idle, self._idle = self._idle, []
        for connection in idle:
            _close(connection)
        if self._held_for_fork and self._writer is not None:
            _close(self._writer)
            self._writer = None

    def _after_fork_in_parent(self) -> None:
        with self._pool:
            self._frozen = False
            self._pool.notify_all()
        if self._held_for_fork:
            self._lock.release()

    def _after_fork_in_child(self) -> None:
        if self._writer is not None:
            _inherited.append(self._writer)  # never used, never closed: it is the parent's
        self._fresh()


class _Writing:
    """The writer connection under its lock; errors leave translated."""

    __slots__ = ("_database", "_lock")

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> sqlite3.Connection:
        database = self._database
        self._lock = lock = database._lock
        if not lock.acquire(timeout=database._timeout + 1.0):
            raise StoreTransientError(
                f"the database {database.path} is locked, and other threads wait for it already; try again"
            )
        try:
            connection = database._writer or database._open_writer()
            database.check_file()
            if database.read_only:
                raise database._read_only()
            return connection
        except BaseException as error:
            lock.release()
            if isinstance(error, sqlite3.Error):
                raise translated(error, database.path) from error
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.IntegrityError):
                raise self._database._failed(error) from error
        finally:
            self._lock.release()


def _roll_back(connection: sqlite3.Connection) -> None:
    # The first error is the one to tell; `_failed` drops a connection that cannot go on.
    with contextlib.suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _close(connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):  # one that cannot be closed is let go
        connection.close()


_databases: Final[weakref.WeakSet[Database]] = weakref.WeakSet()
_forking: Final[list[Database]] = []
_inherited: Final[list[object]] = []


def _before_fork() -> None:
    _forking[:] = list(_databases)
    for database in _forking:
        database._before_fork()


def _after_fork_in_parent() -> None:
    for database in _forking:
        database._after_fork_in_parent()
    _forking.clear()


def _after_fork_in_child() -> None:
    for database in _forking:
        database._after_fork_in_child()
    _forking.clear()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
