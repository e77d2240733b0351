"""Back-off arithmetic, and which errors are never retried (specification, section 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, cast

from ratchet.domain.value import ValueObject
from ratchet.errors import CancellationRequested, DoNotRetry, RetryAfter, UsageError, permanent_reason

_ZERO: Final = timedelta()
_MICROSECOND: Final = timedelta(microseconds=1)
MAX_DELAY: Final = timedelta(hours=24)
EXPONENT_CAP: Final = 20
_FOR_EVER: Final = timedelta(days=3_000_000)
"""Beyond year 9999 from any instant, and yet short enough to be told in seconds, as a child process does."""
_MAX_SECONDS: Final = timedelta.max.total_seconds()


class BackoffKind(StrEnum):
    """The three curves."""

    NONE = "none"
    FIXED = "fixed"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Backoff(ValueObject):
    """How long to wait before a retry. Make it with `none`, `fixed` or `exponential`.

    Attributes:
        kind: the curve.
        base: the first delay.
        factor: by how much each further delay grows (exponential only).
        max_delay: no delay is longer, jitter aside.
        jitter: share of the delay that is added at random: the delay is drawn from [d, d * (1 + jitter)].
    """

    kind: BackoffKind = BackoffKind.NONE
    base: timedelta = _ZERO
    factor: float = 2.0
    max_delay: timedelta = MAX_DELAY
    jitter: float = 0.0

    def __post_init__(self) -> None:
        for delay in (self.base, self.max_delay):
            _check_delay(delay)
        for name in ("factor", "jitter"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise UsageError(f"a back-off's {name} is a number, not {type(value).__name__}")
        if self.base < _ZERO or self.max_delay < _ZERO:
            raise UsageError("a back-off delay cannot be negative")
        if not 1.0 <= self.factor < float("inf"):
            raise UsageError(f"a back-off factor must be at least 1 and finite, not {self.factor}")
        if not 0.0 <= self.jitter <= 10.0:
            raise UsageError(f"jitter must lie between 0 and 10, not {self.jitter}")

    @classmethod
    def none(cls) -> Backoff:
        """Retry at once."""
        return NO_BACKOFF

    @classmethod
    def fixed(cls, delay: timedelta, *, jitter: float = 0.0) -> Backoff:
        """Always the same delay."""
        _check_delay(delay)
        return cls(BackoffKind.FIXED, delay, max_delay=max(delay, MAX_DELAY), jitter=jitter)

    @classmethod
    def exponential(
        cls,
        base: timedelta,
        *,
        factor: float = 2.0,
        max_delay: timedelta = MAX_DELAY,
        jitter: float = 0.0,
    ) -> Backoff:
        """`base * factor ** (attempt - 1)`, the exponent capped at 20, the whole at `max_delay`."""
        return cls(BackoffKind.EXPONENTIAL, base, factor, max_delay, jitter)

    def delay(self, attempt: int, draw: float = 0.0) -> timedelta:
        """The delay after failed attempt number `attempt` (from 1). Never overflows.

        Args:
            attempt: how many executions have failed, this one included.
            draw: a random number in [0, 1) for the jitter; the caller's, so that this stays pure.
        """
        match self.kind:
            case BackoffKind.NONE:
                return _ZERO
            case BackoffKind.FIXED:
                seconds = self.base.total_seconds()
            case BackoffKind.EXPONENTIAL:
                try:
                    growth = self.factor ** min(max(attempt, 1) - 1, EXPONENT_CAP)
                except OverflowError:
                    growth = float("inf")
                seconds = self.base.total_seconds() * growth if self.base else 0.0
        seconds = min(seconds, self.max_delay.total_seconds())
        return timedelta(seconds=min(seconds * (1.0 + self.jitter * draw), _MAX_SECONDS - 1))

    def encode(self) -> str:
        """One line of text for a store; `decode` reads it."""
        if self.kind is BackoffKind.NONE:
            return ""
        return (
            f"{self.kind} {self.base // _MICROSECOND} {self.factor!r} "
            f"{self.max_delay // _MICROSECOND} {self.jitter!r}"
        )

    @classmethod
    def decode(cls, text: str | None) -> Backoff:
        """The back-off that `encode` wrote."""
        if not text:
            return NO_BACKOFF
        kind, base, factor, max_delay, jitter = text.split(" ")
        return cls(
            BackoffKind(kind),
            int(base) * _MICROSECOND,
            float(factor),
            int(max_delay) * _MICROSECOND,
            float(jitter),
        )


def _check_delay(delay: object) -> None:
    if not isinstance(delay, timedelta):
        raise UsageError(
            f"a back-off delay is a timedelta, like timedelta(seconds=5), not {type(delay).__name__}"
        )


NO_BACKOFF: Final = Backoff()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RetryAnswer(ValueObject):
    """What the `RetryPolicy` said about one failure: asked before the decision, so that it stays pure.

    Attributes:
        retry: False forbids a retry.
        delay: replaces the job's back-off unless it is zero.
    """

    retry: bool = True
    delay: timedelta = _ZERO


PASS_THROUGH: Final = RetryAnswer()


# -- looking into an exception ---------------------------------------------------------------------
#
# A job may raise an exception that is built, or has gone wrong, so that looking into it raises: nothing
# below does, whatever it meets, since whoever asks is about to settle the job.


def causes(error: BaseException) -> Iterator[BaseException]:
    """`error`, its causes and unsuppressed contexts, and members of groups; each once, however cyclic."""
    seen: set[int] = set()
    pending: list[object] = [error]
    while pending:
        current = pending.pop()
        if not issubclass(type(current), BaseException) or id(current) in seen:
            continue
        seen.add(id(current))
        yield cast("BaseException", current)
        pending.append(_part(current, "__cause__"))
        if not _part(current, "__suppress_context__"):
            pending.append(_part(current, "__context__"))
        if issubclass(type(current), BaseExceptionGroup):
            members = _part(current, "exceptions")
            pending.extend(members if type(members) is tuple else ())


def _part(error: object, name: str) -> object:
    try:
        return getattr(error, name)
    except BaseException:  # noqa: BLE001 - see above
        return None


_READY_MADE: Final = f"{DoNotRetry.__module__}.{DoNotRetry.__qualname__}: "


def do_not_retry_reason(error: BaseException, sanitize: Callable[[BaseException], str]) -> str | None:
    """Why `error` must not be retried: the reason of the first marked class in its chain; None if none is.

    Args:
        error: what a body raised.
        sanitize: makes text of a `DoNotRetry`, whose message is its reason; never raises.
    """
    for cause in causes(error):
        reason = permanent_reason(type(cause))
        if reason is not None:
            return sanitize(cause).removeprefix(_READY_MADE) if type(cause) is DoNotRetry else reason
    return None


def retry_after(error: BaseException) -> timedelta | None:
    """The delay that the body asked for with `RetryAfter`, if it did."""
    if not issubclass(type(error), RetryAfter):
        return None
    delay = _part(error, "delay")
    return min(max(delay, _ZERO), _FOR_EVER) if isinstance(delay, timedelta) else None


def answers_request(error: BaseException, attempt_token: object) -> bool:
    """True if `error` is (or has as a cause) a `CancellationRequested` made after the request, in this attempt."""
    seen: set[int] = set()
    current: object = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if (
            issubclass(type(current), CancellationRequested)
            and _part(current, "attempt_token") is attempt_token
        ):
            return attempt_token is not None
        current = _part(current, "__cause__")
    return False
