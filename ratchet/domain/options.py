"""The vocabulary of a submission: the same words for `@job`, `JobOptions` and the builder."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, Final, TypedDict
from uuid import UUID

from ratchet.domain.job import MAX_KEY, MAX_RETRIES, MAX_TAG, MAX_TIMEOUT
from ratchet.domain.priority import Priority
from ratchet.domain.retry import Backoff
from ratchet.domain.value import ValueObject
from ratchet.errors import UsageError

_ZERO: Final = timedelta()
_LONGEST_WAIT: Final = 3e8
"""Seconds, ten years: beyond it the standard library's waits overflow."""


class OptionWords(TypedDict, total=False):
    """The keywords of `@scheduler.job(...)`; meanings as in `JobOptions`."""

    priority: Priority
    max_retries: int
    backoff: Backoff
    timeout: timedelta
    tags: Iterable[str]
    executor: str
    resource: str
    principal: str
    on_success: Callable[..., Any]
    on_failure: Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class JobOptions(ValueObject):
    """How a job is to run. None (or empty) leaves it to the next outer level, at last to the default.

    Attributes:
        priority: LOWEST to CRITICAL (default NORMAL).
        max_retries: further executions after the first (default 0, at most 2**31 - 1).
        backoff: the delay before each (default none).
        timeout: of one execution (default 30 minutes, at most 10,000 days).
        tags: trimmed, lower-cased, blanks dropped; at most 64 characters each.
        executor: ``threads``, ``async`` or ``processes`` (default by the function's kind).
        resource: the name of a limited resource.
        principal: on whose behalf.
        on_success: called as ``f(ctx, result)`` after success.
        on_failure: called as ``f(ctx, error)`` after permanent failure.
    """

    priority: Priority | None = None
    max_retries: int | None = None
    backoff: Backoff | None = None
    timeout: timedelta | None = None
    tags: frozenset[str] = field(default_factory=frozenset)
    executor: str | None = None
    resource: str | None = None
    principal: str | None = None
    on_success: Callable[..., Any] | None = None
    on_failure: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if self.priority is not None and not isinstance(self.priority, Priority):
            raise UsageError(f"priority must be one of {', '.join('Priority.' + p.name for p in Priority)}")
        if self.max_retries is not None and (
            isinstance(self.max_retries, bool)
            or not isinstance(self.max_retries, int)
            or self.max_retries < 0
        ):
            raise UsageError(f"max_retries must be a whole number, 0 or more, not {self.max_retries!r}")
        if self.max_retries is not None and self.max_retries > MAX_RETRIES:
            raise UsageError(f"max_retries may be {MAX_RETRIES:,} at most, not {self.max_retries}")
        if self.backoff is not None and not isinstance(self.backoff, Backoff):
            raise UsageError("backoff must be made with Backoff.fixed(...) or Backoff.exponential(...)")
        if self.timeout is not None and (not isinstance(self.timeout, timedelta) or self.timeout <= _ZERO):
            raise UsageError(f"timeout must be a timedelta longer than zero, not {self.timeout!r}")
        if self.timeout is not None and self.timeout > MAX_TIMEOUT:
            raise UsageError(f"timeout may be {MAX_TIMEOUT.days:,} days at most, not {self.timeout}")
        for name in ("resource", "principal"):
            if getattr(self, name) is not None:
                check_text(name, getattr(self, name))
        if self.executor is not None and self.executor not in ("threads", "async", "processes"):
            raise UsageError(f"executor must be 'threads', 'async' or 'processes', not {self.executor!r}")
        object.__setattr__(self, "tags", clean_tags(self.tags))
        for name in ("on_success", "on_failure"):
            callback = getattr(self, name)
            if callback is not None and not callable(callback):
                raise UsageError(f"{name} must be a named function, not {type(callback).__name__}")

    def over(self, outer: JobOptions) -> JobOptions:
        """These options, and where they are silent those of `outer`; tags add up."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        given["tags"] = self.tags | outer.tags
        return replace(outer, **given)

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> JobOptions:
        """From keywords; an unknown one is an error that names the nearest."""
        known = [f.name for f in fields(cls)]
        for word in words:
            if word not in known:
                near = difflib.get_close_matches(word, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
                raise UsageError(f"unknown job option {word!r}; {hint}")
        return cls(**words)


def clean_tags(tags: Iterable[str]) -> frozenset[str]:
    """Tags as they are stored: trimmed, lower-cased, blanks dropped.

    Raises:
        UsageError: longer than 64 characters, or with characters that no store can keep.
    """
    if isinstance(tags, str):
        raise UsageError(f"tags takes several texts; write tags=[{tags!r}]")
    if not isinstance(tags, Iterable):
        raise UsageError(f"tags takes several texts, like tags=['nightly'], not {type(tags).__name__}")
    found = set()
    for tag in tags:
        check_text("tag", tag, MAX_TAG, strip=True)
        found.add(tag.strip().lower())
    found.discard("")
    for tag in found:  # lower-casing can lengthen
        check_text("tag", tag, MAX_TAG)
    return frozenset(found)


def check_text(what: str, text: object, limit: int = MAX_KEY, *, strip: bool = False) -> None:
    """Refuse what is not text, too long, or has a NUL or a lone surrogate (section 2).

    Raises:
        UsageError: names `what`.
    """
    if not isinstance(text, str):
        raise UsageError(f"{_a(what)} must be text, not {type(text).__name__}")
    if len(text.strip() if strip else text) > limit:
        raise UsageError(f"{_a(what)} may have {limit} characters; this one has {len(text)}")
    for char in text:
        if char == "\0" or unicodedata.category(char) == "Cs":
            raise UsageError(
                f"{_a(what)} cannot contain {'NUL' if char == chr(0) else 'a lone surrogate'}: {text!a}"
            )


def _a(what: str) -> str:
    return f"{'an' if what[0] in 'aeiou' else 'a'} {what}"


def seconds_of(what: str, duration: object) -> float:
    """A time to wait, in seconds.

    Args:
        what: names it in the error.
        duration: seconds, or a timedelta.

    Raises:
        UsageError: negative, not a number (NaN), or something else.
    """
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise UsageError(f"{_a(what)} is a number of seconds or a timedelta, not {type(duration).__name__}")
    if not seconds >= 0:
        raise UsageError(f"{_a(what)} cannot be {duration}; it is 0 s or longer")
    return float(min(seconds, _LONGEST_WAIT))


def check_id(job_id: object) -> UUID:
    """A job's id as every store takes it.

    Raises:
        UsageError: it is no UUID; for text with the remedy.
    """
    if isinstance(job_id, UUID):
        return job_id
    remedy = f"; write UUID({job_id[:40]!r})" if isinstance(job_id, str) else ""
    raise UsageError(f"a job's id is a UUID, not {type(job_id).__name__}{remedy}")
