"""Every error Ratchet raises: one root, families by what the caller should do next.

===================  ==========================================================
family               what to do
===================  ==========================================================
UsageError           change the call
ConfigurationError   change the settings or the installation
PayloadError         change the data that travels
ConflictError        somebody else holds it: wait, or choose another key
StoreTransientError  try again; the store could not answer
StorePermanentError  an operator must act; trying again cannot help
===================  ==========================================================

Exceptions that a job body raises on purpose (`CancellationRequested`, `RetryAfter`, `DoNotRetry`)
live here too, so that a body needs one import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar
from uuid import UUID

if TYPE_CHECKING:
    from typing import Self


class RatchetError(Exception):
    """Root of every error Ratchet raises itself."""


# -- families ------------------------------------------------------------------------------------


class UsageError(RatchetError, ValueError):
    """The call is wrong and stays wrong however often it is repeated."""


class ConfigurationError(RatchetError):
    """Settings, installation or wiring are wrong; nothing was started."""


class PayloadError(RatchetError):
    """A value cannot travel, or a stored one cannot be read."""


class ConflictError(RatchetError):
    """Another job holds what this call needs."""


class StoreError(RatchetError):
    """The store could not do what was asked."""


class StoreTransientError(StoreError):
    """The store could not answer now (connection, lock, busy); the same call may work later."""


class StorePermanentError(StoreError):
    """The store cannot do this until somebody acts (read-only, schema, corrupt, deleted)."""


# -- usage ---------------------------------------------------------------------------------------


class ArgumentError(UsageError):
    """The arguments do not fit the job function's signature or annotations."""


class UnsupportedTarget(UsageError):
    """The callable cannot be a job: lambda, closure, generator function, or not importable."""


class TargetRefused(UsageError):
    """The target lies outside the target policy."""


class NotReplaceable(UsageError):
    """`replace` needs a job that is pending, paused or waiting."""


class NotRunning(UsageError):
    """The call needs a started scheduler, or the opposite."""


# -- configuration -------------------------------------------------------------------------------


class UnknownScheme(ConfigurationError):
    """No installed store answers to this URL scheme."""


class MissingExtra(ConfigurationError):
    """An optional part is not installed; the message names the extra."""


class CapabilityMissing(ConfigurationError):
    """The store does not declare the capability that this call needs.

    Args:
        capability: its name, one of `ratchet.spi.capabilities.Capability`.
    """

    def __init__(self, capability: str, message: str | None = None) -> None:
        super().__init__(message or f"this store does not offer {capability!r}; use one that declares it")
        self.capability = capability


class NodeNameTaken(ConfigurationError):
    """Another live process runs under the node name that was set explicitly."""


# -- payload -------------------------------------------------------------------------------------


class PayloadTooLarge(PayloadError):
    """An encoded payload exceeds its limit (section 2: arguments 100 KiB)."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(
            f"{what}: {size:,} bytes encoded, the limit is {limit:,}; store the data elsewhere and pass its key"
        )
        self.size, self.limit = size, limit


class UnencodableValue(PayloadError):
    """A value has no exact JSON form.

    Args:
        path: where it sits, like ``argument 'order'['lines'][3]``.
    """

    def __init__(self, path: str, message: str) -> None:
        shown = path if len(path) <= 200 else f"{path[:97]} ... {path[-97:]}"  # deep nesting
        super().__init__(f"{shown}: {message}")
        self.path = path


class UnreadablePayload(PayloadError):
    """A stored payload cannot be decoded: corrupt, or of a class that is gone."""


class NewerPayloadFormat(PayloadError):
    """A stored payload has a format version that this code does not know yet."""


class ResultNotStored(PayloadError):
    """The job succeeded, but its result was larger than the limit and only its size was kept."""


# -- conflict ------------------------------------------------------------------------------------


class DuplicateBusinessKey(ConflictError):
    """A business key is held by a job that has not settled; retrying helps only after it has.

    Args:
        conflicts: business key -> id of the job that holds it.
    """

    def __init__(self, conflicts: Mapping[str, UUID]) -> None:
        told = ", ".join(f"{key!r} (held by job {holder})" for key, holder in conflicts.items())
        super().__init__(f"business key already in use: {told}")
        self.conflicts: Mapping[str, UUID] = dict(conflicts)

    @property
    def holder(self) -> UUID:
        """The id of the first holder."""
        return next(iter(self.conflicts.values()))


class DuplicateIdempotencyKey(ConflictError):
    """The caller's own transaction met a taken idempotency key; in a fresh one it answers the original."""


# -- store ---------------------------------------------------------------------------------------


class StoreClosed(StorePermanentError):
    """The store was closed by `close()`."""


class SchemaMissing(StorePermanentError):
    """The database has no Ratchet schema; run `ratchet schema upgrade`."""


class SchemaTooNew(StorePermanentError):
    """The database was written by a newer Ratchet; upgrade this installation."""


# -- reading a job's end -------------------------------------------------------------------------


class JobNotFound(RatchetError, LookupError):
    """No job has this id."""


class JobPurged(RatchetError):
    """The job ran and has been deleted since; only its idempotency key is remembered."""


class JobFailedError(RatchetError):
    """The job failed permanently.

    Args:
        job_id: which job.
        error: the stored, sanitized error text.
    """

    def __init__(self, job_id: UUID, error: str | None) -> None:
        super().__init__(f"job {job_id} failed: {error or 'no error text was stored'}")
        self.job_id, self.error = job_id, error


class JobCanceledError(RatchetError):
    """The job was canceled; it has no result."""

    def __init__(self, job_id: UUID, superseded_by: UUID | None = None) -> None:
        more = f", replaced by {superseded_by}" if superseded_by else ""
        super().__init__(f"job {job_id} was canceled{more}")
        self.job_id, self.superseded_by = job_id, superseded_by


class JobError(RatchetError):
    """A failure known only by its stored text: the live exception is gone (section 6, callbacks)."""

    def __init__(self, type_name: str, sanitized_message: str) -> None:
        super().__init__(f"{type_name}: {sanitized_message}" if sanitized_message else type_name)
        self.type_name, self.sanitized_message = type_name, sanitized_message


# -- what a body raises on purpose ---------------------------------------------------------------


class _Stoppable(Protocol):
    """What `CancellationRequested` needs to know of a context (`ratchet.context.JobContext`)."""

    @property
    def attempt_token(self) -> object: ...
    @property
    def is_cancellation_requested(self) -> Callable[[], bool]: ...


_current_context: Callable[[], _Stoppable | None] = lambda: None  # set by ratchet.context


class CancellationRequested(RatchetError):
    """Raised by a body that stops because it was asked to (section 5, time limits).

    It counts as an answer to the request only if it was created after the request and in the
    attempt that ends; otherwise it is an ordinary failure. `JobContext.raise_if_cancellation_requested`
    creates it at the right moment; on a thread without the context use `for_context`.
    """

    def __init__(self, message: str = "the job stopped because it was asked to") -> None:
        super().__init__(message)
        self._record(_current_context())

    def _record(self, context: _Stoppable | None) -> None:
        requested = context is not None and context.is_cancellation_requested()
        self.attempt_token: object = context.attempt_token if requested and context is not None else None

    @classmethod
    def for_context(cls, message: str, context: _Stoppable) -> Self:
        """Build it for `context`, on any thread."""
        error = cls(message)
        error._record(context)
        return error


class RetryAfter(RatchetError):
    """Fail this attempt and retry no earlier than `delay` from now, if a retry is left (section 7).

    A negative delay is none; one beyond year 9999 ends there.
    """

    def __init__(self, delay: timedelta, message: str | None = None) -> None:
        if not isinstance(delay, timedelta):
            raise UsageError(f"RetryAfter takes a timedelta, not {type(delay).__name__}")
        super().__init__(message or f"retry after {delay}")
        self.delay = delay


class DoNotRetry(RatchetError):
    """Fail the job at once, whatever its retry budget; the attempt is not counted (section 7)."""


_E = TypeVar("_E", bound=type[BaseException])
_NO_RETRY = "__ratchet_do_not_retry__"


def do_not_retry(reason: str) -> Callable[[_E], _E]:
    """Mark an exception class as permanent: a job that fails with exactly this class is not retried.

    Subclasses are not marked by it. The reason is logged and stored with the job.
    """
    if not reason.strip():
        raise UsageError("do_not_retry needs a reason, like @do_not_retry('the card was declined for good')")

    def mark(cls: _E) -> _E:
        setattr(cls, _NO_RETRY, reason)
        return cls

    return mark


def permanent_reason(cls: type[BaseException]) -> str | None:
    """The reason with which exactly this class was marked, if it was."""
    if cls is DoNotRetry:
        return "DoNotRetry"
    try:
        reason: object = cls.__dict__.get(_NO_RETRY)
    except BaseException:  # noqa: BLE001 - a metaclass may answer anything, and a job is about to be settled
        return None
    return reason if isinstance(reason, str) else None
