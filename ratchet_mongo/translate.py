"""The driver's errors as the store's own, by class, label and code, never by their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bson.errors import InvalidDocument
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    ExecutionTimeout,
    InvalidOperation,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WTimeoutError,
)

from ratchet.errors import (
    DuplicateIdempotencyKey,
    RatchetError,
    StoreError,
    StorePermanentError,
    StoreTransientError,
    UsageError,
)

_LABELS: Final = (
    "RetryableWriteError",
    "TransientTransactionError",
    "RetryableError",
    "SystemOverloadedError",
)
"""With one of these the server or the driver says that the same call may work."""

_AGAIN: Final = frozenset({
    6,  # HostUnreachable
    7,  # HostNotFound
    43,  # CursorNotFound: killed or lost between two batches of a read, which is begun anew
    63,  # StaleShardVersion
    64,  # WriteConcernFailed: written, not yet by a majority
    89,  # NetworkTimeout
    91,  # ShutdownInProgress
    112,  # WriteConflict
    133,  # FailedToSatisfyReadPreference
    134,  # ReadConcernMajorityNotAvailableYet
    150,  # StaleEpoch
    175,  # QueryPlanKilled: an index was made or dropped meanwhile
    189,  # PrimarySteppedDown
    202,  # NetworkInterfaceExceededTimeLimit
    234,  # RetryChangeStream
    237,  # CursorKilled
    262,  # ExceededTimeLimit
    365,  # TemporarilyUnavailable
    9001,  # SocketException
    10107,  # NotWritablePrimary
    11600,  # InterruptedAtShutdown
    11602,  # InterruptedDueToReplStateChange
    13388,  # StaleConfig
    13435,  # NotPrimaryNoSecondaryOk
    13436,  # NotPrimaryOrSecondary
})  # fmt: skip
"""Codes that pass by themselves; every write here is fenced or carries a token, so that it may be repeated."""

_LATER: Final = frozenset({24, 50, 100, 11601, 14031, 46841})
"""Lock time-out, time limit, too few members, killed by an operator, disk full, out of memory: not at once,
but without anybody changing the call."""

_ADVICE: Final = {
    13: "does not let this client do that; log in as a user (the URL names him) that has readWrite on its database",
    18: "does not know this user; see to the user name, password and authSource of the URL",
    20: "has no transactions: it runs as a standalone server; make it a replica set",
    8000: "refused the credentials; see to the user and its database access",
    10334: "cannot store a document of this size; make the job smaller",
    14031: "is out of disk space; free some, work then goes on by itself",
    17419: "cannot store a document of this size; make the job smaller",
    17420: "cannot store a document of this size; make the job smaller",
    17280: "cannot index a key of this length; make the key shorter",
}

_LONGEST: Final = 200
"""Characters of what the server or the driver said that are passed on."""

TRANSACTIONS_MISSING: Final = 20
DUPLICATE_KEY: Final = 11000
INDEX_CONFLICTS: Final = frozenset({85, 86})
"""An index of this name, or of this specification, is there and not the same."""
NAMESPACE_EXISTS: Final = 48
_AGAIN_LABEL: Final = "TransientTransactionError"
_QUOTING: Final = frozenset({9, 40, 121, DUPLICATE_KEY})
"""Codes whose message quotes what was sent: parse errors, conflicting updates, validation, keys."""


def codes(error: PyMongoError) -> set[int]:
    """The codes that the server gave, those of single writes and of the write concern included."""
    found: set[int] = set()
    if isinstance(error, OperationFailure):
        if error.code is not None:
            found.add(error.code)
        details = error.details or {}
        for entry in (*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())):
            found.add(entry.get("code", 0))
        concern = details.get("writeConcernError")
        if concern:
            found.add(concern.get("code", 0))
    if isinstance(error, BulkWriteError):
        found.discard(65)  # MultipleErrorsOccurred: a wrapper, the driver's own
    return found


def is_retryable(error: PyMongoError) -> bool:
    """True if the same call may be made again at once."""
    if isinstance(error, ServerSelectionTimeoutError | WaitQueueTimeoutError | NetworkTimeout):
        return False  # time enough has passed
    if isinstance(error, ConnectionFailure):
        return True
    if any(error.has_error_label(label) for label in _LABELS):
        return True
    found = codes(error)
    return bool(found) and found <= _AGAIN


def is_duplicate(error: PyMongoError) -> bool:
    """True if it says of some id that it is taken, and nothing else."""
    return codes(error) == {DUPLICATE_KEY}


def translated(error: PyMongoError, name: str) -> StoreError:
    """What to raise instead of `error`, chained to it by the caller."""
    found = codes(error)
    known = next((_ADVICE[code] for code in sorted(found) if code in _ADVICE), None)
    told = ", ".join(str(code) for code in sorted(found)) or type(error).__name__
    transient = (
        is_retryable(error)
        or isinstance(error, AutoReconnect | ConnectionFailure | ExecutionTimeout | WTimeoutError)
        or bool(found and found <= _AGAIN | _LATER)
    )
    if isinstance(error, InvalidOperation):
        known = f"cannot be reached by a client that its owner has closed; open another store{_said(error)}"
    if isinstance(error, ConfigurationError):
        known = "cannot be used as it is configured; see the cause"
    if known is None:
        said = _said(error)
        known = f"could not answer; try again{said}" if transient else f"refused a command{said}"
    family = StoreTransientError if transient else StorePermanentError
    return family(f"the MongoDB database {name!r} {known} ({told})")


class TransactionAborted(StoreTransientError, PyMongoError):
    """The caller's transaction was rolled back; run all of it again.

    A driver's error, too, with the label by which ``session.with_transaction`` runs its callback again.
    """

    def __init__(self, message: str) -> None:
        PyMongoError.__init__(self, message, error_labels=(_AGAIN_LABEL,))


class IdempotencyKeyInUse(DuplicateIdempotencyKey, PyMongoError):
    """Another transaction used the key first; this one was rolled back, and in a new one the key is answered.

    A driver's error, too, with the label by which ``session.with_transaction`` runs its callback again.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        told = ", ".join(map(repr, keys))
        message = f"idempotency key used by another transaction meanwhile; run this one again: {told}"
        PyMongoError.__init__(self, message, error_labels=(_AGAIN_LABEL,))


def translated_joined(error: PyMongoError, name: str) -> RatchetError:
    """What to raise instead of `error` in the caller's transaction, chained to it by the caller.

    Whatever passes by itself is a reason to run the transaction again, labelled by the server or not. So is a
    key that is taken: it was free in the transaction's view.
    """
    if error.has_error_label(_AGAIN_LABEL) or is_retryable(error) or DUPLICATE_KEY in codes(error):
        told = ", ".join(str(code) for code in sorted(codes(error))) or type(error).__name__
        return TransactionAborted(
            f"the transaction on the MongoDB database {name!r} was rolled back; run it again, as "
            f"session.with_transaction does ({told})"
        )
    if isinstance(error, InvalidOperation):
        return UsageError(f"the session given as unit= cannot be used{_said(error)}")
    return translated(error, name)


UNENCODABLE: Final = (OverflowError, UnicodeEncodeError, InvalidDocument)
"""What the driver raises, none of it an error of its own, for values that it cannot send."""


def unencodable(error: Exception, name: str) -> RatchetError:
    """What to raise instead of one of `UNENCODABLE`; values are not quoted."""
    if isinstance(error, DocumentTooLarge):
        return StorePermanentError(f"the MongoDB database {name!r} {_ADVICE[10334]} (DocumentTooLarge)")
    if isinstance(error, OverflowError):
        return UsageError(f"MongoDB stores integers of at most 64 bits: {error}")
    return UsageError(f"MongoDB cannot store a value of the job: {type(error).__name__}")


def unusable(error: Exception) -> StorePermanentError:
    """What to raise where no client can be made; the driver's text may have parts of a password."""
    return StorePermanentError(
        "no client can be made from the MongoDB URL: see to its host, port and options, and percent-encode user "
        f"name and password ({type(error).__name__})"
    )


def _said(error: PyMongoError) -> str:
    """What the server or the driver said, without what it quotes: whole commands and documents, payloads included."""
    if isinstance(error, BulkWriteError) or codes(error) & _QUOTING:
        return ""
    if isinstance(error, OperationFailure):
        details = error.details or {}
        text = str(details.get("errmsg") or "")
    else:
        text = str(error).partition(" (configured timeouts")[0]  # behind it: settings, the whole topology
    text = " ".join(text.split())
    return f": {text[:_LONGEST]}" if text else ""


__all__ = [
    "DUPLICATE_KEY",
    "INDEX_CONFLICTS",
    "NAMESPACE_EXISTS",
    "TRANSACTIONS_MISSING",
    "UNENCODABLE",
    "IdempotencyKeyInUse",
    "TransactionAborted",
    "codes",
    "is_duplicate",
    "is_retryable",
    "translated",
    "translated_joined",
    "unencodable",
    "unusable",
]
