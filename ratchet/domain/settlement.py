"""What is asked of a store: a change of one job, and the consequences that belong to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeAlias
from uuid import UUID

from ratchet.domain.job import CallbackKind, NewJob
from ratchet.domain.lifecycle import Status, Trigger
from ratchet.domain.value import ValueObject

_NONE: Final = timedelta()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Change(ValueObject):
    """One row of the lifecycle table, applied to one job. Carries durations, never instants of a node.

    Attributes:
        trigger: the row.
        job_id: the job.
        claim_seq: the claim that the sender holds (or, for a recovery, saw dead); the fence.
        version: the version that the sender saw, where it insists on it.
        target: only where the row has two: which.
        incarnation: who claims.
        attempts: the new count, for a failure that counts; None keeps it.
        error: sanitized error text.
        result: the result as codec text.
        delay: from store time to the next due time; None keeps the due time.
        duration: how long the body ran; None: since the claim.
        age: how long ago the body ended.
        timed_out: the attempt ended at its deadline (history says TIMED_OUT).
        superseded_by: the job that replaces this one.
        signal: the delivered signal as codec text.
    """

    trigger: Trigger
    job_id: UUID
    claim_seq: int | None = None
    version: int | None = None
    target: Status | None = None
    incarnation: str | None = None
    attempts: int | None = None
    error: str | None = None
    result: str | None = None
    delay: timedelta | None = None
    duration: timedelta | None = None
    age: timedelta = _NONE
    timed_out: bool = False
    superseded_by: UUID | None = None
    signal: str | None = None


# -- effects: a closed union; a later capability adds a member, not a method ----------------------


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Submit(ValueObject):
    """Insert a job in the same unit.

    Under `replace` a job that names no business key takes over that of the old one; one that names
    another needs it to be free. Its idempotency key must not be taken.
    """

    job: NewJob

    capability: str | None = field(default=None, init=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RunCallback(ValueObject):
    """Record that a callback must run: by the settling node, or after its death by a sweep.

    Attributes:
        name: ``on_success`` or ``on_failure``.
        target: the callable, as a target text.
        argument: codec text of the result, or the sanitized error text.
    """

    name: CallbackKind
    target: str
    argument: str

    capability: str | None = field(default=None, init=False, repr=False)


Effect: TypeAlias = Submit | RunCallback


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Settlement(ValueObject):
    """A change and everything that must happen with it or not at all."""

    change: Change
    effects: tuple[Effect, ...] = ()
