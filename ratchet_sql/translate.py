"""The driver's errors as the store's own: transient or permanent, with one sentence that says what to do."""

from __future__ import annotations

import sqlite3
from typing import Final

from ratchet.errors import StoreError, StorePermanentError, StoreTransientError

_BUSY: Final = sqlite3.SQLITE_BUSY
_LOCKED: Final = sqlite3.SQLITE_LOCKED

# primary result code -> (may the same call work later?, what to do)
_KNOWN: Final[dict[int, tuple[bool, str]]] = {
    sqlite3.SQLITE_BUSY: (True, "is locked by another process; try again, or find who holds it open"),
    sqlite3.SQLITE_LOCKED: (True, "is locked by another connection; try again"),
    sqlite3.SQLITE_FULL: (
        True,
        "cannot grow, the disk is full; free some space, work then goes on by itself",
    ),
    sqlite3.SQLITE_IOERR: (
        True,
        "could not be read or written; see to the disk (space, limits, errors), work then goes on by itself",
    ),
    sqlite3.SQLITE_NOMEM: (True, "could not be used for want of memory; free some"),
    sqlite3.SQLITE_INTERRUPT: (True, "was interrupted; try again"),
    sqlite3.SQLITE_PROTOCOL: (True, "could not be locked in time; try again"),
    sqlite3.SQLITE_SCHEMA: (True, "changed its schema at this moment; try again"),
    sqlite3.SQLITE_READONLY: (False, "is read-only; make the file and its folder writable for this user"),
    sqlite3.SQLITE_PERM: (False, "may not be opened; give this user access to the file and its folder"),
    sqlite3.SQLITE_AUTH: (False, "may not be opened; give this user access to the file and its folder"),
    sqlite3.SQLITE_CANTOPEN: (
        False,
        "cannot be opened; see that its folder exists and that this user may read and write there",
    ),
    sqlite3.SQLITE_CORRUPT: (False, "is damaged; stop all nodes and restore it from a backup"),
    sqlite3.SQLITE_NOTADB: (False, "is not an SQLite database; check the path"),
    sqlite3.SQLITE_TOOBIG: (False, "cannot store a value of this size; make it smaller"),
}


def code_of(error: sqlite3.Error) -> int:
    """The primary result code; 0 if the driver gave none."""
    code: int = getattr(error, "sqlite_errorcode", 0) or 0
    return code & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """True if somebody else holds the lock at this moment."""
    return code_of(error) in (_BUSY, _LOCKED)


def is_broken(error: sqlite3.Error) -> bool:
    """True if the connection had better not be used again.

    So also where the driver itself refused (no code of SQLite's): the connection was closed under us.
    """
    return code_of(error) in (
        0,
        sqlite3.SQLITE_MISUSE,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
    )


def translated(error: sqlite3.Error, path: str) -> StoreError:
    """What to raise instead of `error`, chained to it by the caller."""
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    closed = isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error)
    unknown = (
        (True, "lost its connection; try again") if closed else (False, "refused a statement; see the cause")
    )
    transient, advice = _KNOWN.get(code_of(error), unknown)
    family = StoreTransientError if transient else StorePermanentError
    return family(f"the database {path} {advice} ({name}: {error})")
