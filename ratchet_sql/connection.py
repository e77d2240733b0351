"""Connections to one SQLite file: one that writes, a few that read, and how they wait for each other.

One writer per process, behind a lock: SQLite lets one connection write at a time anyway, and a queue of
threads before a lock of this process is fairer and cheaper than a queue of connections before the file's.
Readers are separate, so that a slow one never keeps a writer waiting (WAL). They are few and kept: SQLite
cannot really close a file while another connection of the process has locks on it.

Waiting for another process is our own. SQLite's handler sleeps up to 100 ms between two tries, while a
commit takes a tenth of a millisecond; ours starts below a millisecond, draws each pause at random, and
grows to two milliseconds, to ten for who has waited a second.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar

from ratchet.errors import StoreClosed, StoreError, StoreTransientError, UsageError
from ratchet.spi.clock import Clock
from ratchet_sql import forks
from ratchet_sql.files import DatabaseFile, close
from ratchet_sql.rows import to_ms
from ratchet_sql.translate import is_broken, is_busy, translated

T = TypeVar("T")

_MOST_READERS: Final = 8
_FIRST_PAUSE: Final = 0.0003
_LONGEST_PAUSE: Final = (
    0.002  # measured: at 5 ms the slower of two busy processes waits twice as long at times
)
_PATIENT_PAUSE: Final = 0.01  # after the first second nobody is merely between two commits
_FORK_PATIENCE: Final = 30.0
"""Seconds a fork waits for statements that other threads have begun."""


class Execute(Protocol):
    """Runs a statement inside a unit of work."""

    def __call__(self, sql: str, parameters: Any = ..., /) -> sqlite3.Cursor: ...


class KeyTaken(Exception):
    """A statement would have made a unique key double; never leaves this package."""


def _no_step(name: str) -> None:
    """The place between two steps."""


class Database:
    """The connections of this process to one file, opened at first use.

    Args:
        file: the file.
        timeout: seconds to wait for the lock of another process.
        clock: replaces the process's wall clock.

    Attributes:
        step: called with the name of each step of a unit as it is reached; tests crash or wait there.
    """

    def __init__(self, file: DatabaseFile, *, timeout: float, clock: Clock | None = None) -> None:
        self.file = file
        self.step: Callable[[str], None] = _no_step
        self._timeout = timeout
        self._clock = clock
        self._closed = False
        self._start_afresh()
        forks.register(self)

    def _start_afresh(self) -> None:
        self._lock = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._readers = threading.Condition()
        self._idle: list[sqlite3.Connection] = []
        self._reading = 0
        self._frozen = False
        self._locked_for_fork = False

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    def now_ms(self) -> int:
        """Store time, in whole milliseconds."""
        if self._clock is None:
            return time.time_ns() // 1_000_000
        return to_ms(self._clock.now())

    def close(self) -> None:
        """Close all connections; idempotent. Later calls raise `StoreClosed`."""
        with self._readers:
            self._closed = True
            idle, self._idle = self._idle, []
            self._readers.notify_all()
        for connection in idle:
            close(connection)
        with self._lock:
            writer, self._writer = self._writer, None
            if writer is not None:
                close(writer)

    # -- writing

    def write(self, work: Callable[[Execute, int], T]) -> T:
        """Run `work(execute, now)` as one transaction and commit it; what it raises undoes it.

        `now` is store time, read once the lock is held. `work` runs once.
        """
        with _Writing(self) as connection:
            self.retrying(lambda: connection.execute("BEGIN IMMEDIATE"))
            try:
                self.step("begun")
                answer = work(connection.execute, self.now_ms())
                self.step("before commit")
                self.retrying(lambda: connection.execute("COMMIT"))
            except BaseException:
                # The first error is the one to tell; a connection that cannot go on is dropped below.
                with contextlib.suppress(sqlite3.Error):
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                raise
            self.step("committed")
            return answer

    def write_one(self, sql: str, parameters: Callable[[int], Any]) -> int:
        """Run one statement as its own transaction; answers how many rows it touched.

        `parameters` is called with store time, again for each try.

        Raises:
            KeyTaken: a unique key of the row is in use.
        """
        with _Writing(self) as connection:
            try:
                cursor = self.retrying(lambda: connection.execute(sql, parameters(self.now_ms())))
            except sqlite3.IntegrityError as error:
                raise KeyTaken from error
            self.step("committed")
            return cursor.rowcount

    def data_version(self) -> int | None:
        """A number that changes whenever another connection has committed; None if a writer is at work here."""
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

    def retrying(self, attempt: Callable[[], T], /) -> T:
        """Try again while another process holds the lock, at most for the time-out."""
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
            patient = now > deadline - self._timeout + 1.0
            pause = min(pause * 1.3, _PATIENT_PAUSE if patient else _LONGEST_PAUSE)

    def _open_writer(self) -> sqlite3.Connection:
        """The writer, opened if need be; the lock is held."""
        if self._closed:
            raise StoreClosed("the store was closed")
        if self._writer is None:
            self.file.prepare(self.now_ms, self.retrying)
            self._writer = self.retrying(self.file.connect)
        return self._writer

    def _failed(self, error: sqlite3.Error) -> StoreError:
        """Translate an error, and drop the writer if it may be broken; the lock is held."""
        if is_broken(error) and self._writer is not None:
            close(self._writer)
            self._writer = None
        return self.translated(error)

    def translated(self, error: sqlite3.Error) -> StoreError:
        """What to raise instead of a driver's error."""
        if is_busy(error):
            return StoreTransientError(
                f"the database {self.file.path} has been locked by another process for {self._timeout:g} s; "
                "try again, or find out who holds it"
            )
        return translated(error, self.file.path)

    # -- reading

    def read(self, sql: str, parameters: Any = ()) -> Any:
        """The only value of the only row that a statement answers; None without a row."""
        with _Reading(self) as connection:
            row = self.retrying(lambda: connection.execute(sql, parameters).fetchone())
            return None if row is None else row[0]

    def reading(self, work: Callable[[Execute], T]) -> T:
        """Run `work(execute)` over one unchanging state of the database."""
        with _Reading(self) as connection:
            self.retrying(lambda: connection.execute("BEGIN"))
            answer = work(connection.execute)
            connection.execute("COMMIT")
            return answer

    def _take_reader(self) -> sqlite3.Connection:
        with self._readers:
            while not self._closed and (self._frozen or self._reading >= _MOST_READERS):
                self._readers.wait()
            if self._closed:
                raise StoreClosed("the store was closed")
            self._reading += 1
            if self._idle:
                return self._idle.pop()
        try:
            if not self.file.is_prepared:
                with self._lock:
                    self._open_writer()
            connection = self.retrying(self.file.connect)
            connection.execute("PRAGMA query_only = 1")
            return connection
        except BaseException as error:
            self._give_reader(None)
            if isinstance(error, sqlite3.Error):
                raise self.translated(error) from error
            raise

    def _give_reader(self, connection: sqlite3.Connection | None) -> None:
        """Take a reader back, or (None) hear that it is no more."""
        with self._readers:
            self._reading -= 1
            if connection is not None:
                if self._closed or self._frozen:
                    close(connection)
                else:
                    self._idle.append(connection)
            self._readers.notify_all()

    # -- forks

    def before_fork(self) -> None:
        """Close everything; see `ratchet_sql.forks`."""
        with self._readers:
            self._frozen = True
            self._readers.wait_for(lambda: self._reading == 0, timeout=_FORK_PATIENCE)
            idle, self._idle = self._idle, []
        # After the readers: the first of them may need the writer's lock to get ready.
        self._locked_for_fork = self._lock.acquire(timeout=_FORK_PATIENCE)
        for connection in idle:
            close(connection)
        if self._locked_for_fork and self._writer is not None:
            close(self._writer)
            self._writer = None

    def after_fork_in_parent(self) -> None:
        """Let the threads go on."""
        with self._readers:
            self._frozen = False
            self._readers.notify_all()
        if self._locked_for_fork:
            self._locked_for_fork = False
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """New locks, no connections."""
        if self._writer is not None:
            _not_ours.append(self._writer)
        self._start_afresh()


_not_ours: Final[list[sqlite3.Connection]] = []
"""Connections of the parent that could not be closed in time: never used here, and never closed."""


class _Writing:
    """The writer under its lock; errors of the driver leave translated."""

    __slots__ = ("_database", "_lock")

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = database._lock

    def __enter__(self) -> sqlite3.Connection:
        database = self._database
        if not self._lock.acquire(timeout=database._timeout + 1.0):
            raise StoreTransientError(
                f"the database {database.file.path} is locked, and other threads of this process wait for it "
                "already; try again"
            )
        try:
            connection = database._writer or database._open_writer()
            database.file.check(now=True)  # a write to a file that is not there any more would be lost
            if database.file.read_only:
                raise database.file.refuse_writing()
            return connection
        except BaseException as error:
            self._lock.release()
            if isinstance(error, sqlite3.Error):
                raise database.translated(error) from error
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, sqlite3.Error):
                raise self._database._failed(error) from error
        finally:
            self._lock.release()


class _Reading:
    """A reader of the pool; one that met an error is not used again."""

    __slots__ = ("_connection", "_database")

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> sqlite3.Connection:
        self._connection = self._database._take_reader()
        return self._connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._database._give_reader(self._connection)
            return
        close(self._connection)
        self._database._give_reader(None)
        if isinstance(error, sqlite3.Error):
            raise self._database.translated(error) from error
        if isinstance(error, UnicodeEncodeError):
            raise UsageError(
                "text with a lone surrogate is nowhere stored and cannot be looked for"
            ) from error
