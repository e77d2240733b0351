"""The context of the attempt that is running: what a body may know and ask."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from ratchet import errors
from ratchet.errors import CancellationRequested

_current: ContextVar[JobContext | None] = ContextVar("ratchet_job_context", default=None)
_T = TypeVar("_T")
_log = logging.getLogger("ratchet.job")


class JobContext:
    """One attempt as its body sees it (section 5). Each attempt has its own; a retry starts afresh.

    Attributes:
        id: the job's id.
        attempt: 1 for the first execution; counts executions that were charged (`attempts` + 1).
        claim_seq: the claim under which this attempt runs.
        node: the name of the node.
        params: values given by `with_param`, decoded.
        metadata: further facts that were stored with the job, as text.
    """

    __slots__ = (
        "_deadline_mono",
        "_on_request",
        "_reason",
        "attempt",
        "claim_seq",
        "id",
        "metadata",
        "node",
        "params",
    )

    def __init__(
        self,
        job_id: UUID,
        *,
        attempt: int,
        claim_seq: int,
        node: str,
        params: Mapping[str, object] | None = None,
        deadline_monotonic: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.id = job_id
        self.attempt = attempt
        self.claim_seq = claim_seq
        self.node = node
        self.params: Mapping[str, object] = params if params is not None else {}
        self.metadata: Mapping[str, str] = metadata if metadata is not None else {}
        self._deadline_mono = deadline_monotonic
        self._reason: str | None = None
        self._on_request: Callable[[str], None] | None = None

    # -- time ------------------------------------------------------------------------------------

    def deadline(self) -> datetime | None:
        """When this attempt is stopped, in UTC; None outside a watched attempt (a callback)."""
        if self._deadline_mono is None:
            return None
        return datetime.now(UTC) + timedelta(seconds=self._deadline_mono - time.monotonic())

    # -- cancellation ----------------------------------------------------------------------------

    def is_cancellation_requested(self) -> bool:
        """True once this attempt was asked to stop. Cheap: no I/O."""
        return self._reason is not None

    @property
    def cancellation_reason(self) -> str | None:
        """Why: ``timeout``, ``canceled``, ``shutdown`` or ``claim_lost``; None without a request."""
        return self._reason

    def raise_if_cancellation_requested(self) -> None:
        """Raise `CancellationRequested` if this attempt was asked to stop."""
        if self._reason is not None:
            raise CancellationRequested.for_context(f"stopped on request: {self._reason}", self)

    def request_cancellation(self, reason: str) -> bool:
        """Ask this attempt to stop (the engine's call). The first reason stays; True if it was this one."""
        with _request_lock:
            if self._reason is not None:
                return False
            self._reason = reason
            tell = self._on_request
        if tell is not None:
            tell(reason)
        return True

    def on_cancellation(self, tell: Callable[[str], None] | None) -> None:
        """Have `tell(reason)` called at the request (an executor's call); at once if it has come already."""
        with _request_lock:
            self._on_request = tell
            reason = self._reason
        if reason is not None and tell is not None:
            tell(reason)

    @property
    def attempt_token(self) -> object:
        """What tells this attempt from any other: the context itself."""
        return self

    # -- the rest --------------------------------------------------------------------------------

    @property
    def logger(self) -> logging.Logger:
        """A logger whose records carry this job's id, attempt and node."""
        return _log

    def signal_payload(self, type_: type[_T]) -> _T | None:
        """The payload of the signal that released this job; None if it waited for none."""
        value: Any = self.metadata.get("signal_payload")
        if value is None:
            return None
        if not isinstance(value, type_):
            raise TypeError(f"the signal carried {type(value).__name__}, not {type_.__name__}")
        return value

    def __repr__(self) -> str:
        return f"<JobContext job={self.id} attempt={self.attempt} claim_seq={self.claim_seq}>"


_request_lock = threading.Lock()


def _after_fork_in_child() -> None:
    global _request_lock
    _request_lock = threading.Lock()  # whoever holds it in the parent does not exist here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def current_job() -> JobContext:
    """The context of the attempt that is running here.

    Raises:
        LookupError: outside a job's body.
    """
    context = _current.get()
    if context is None:
        raise LookupError("no job is running here: current_job() works inside a job's body")
    return context


def current_job_or_none() -> JobContext | None:
    """The context of the attempt that is running here, or None."""
    return _current.get()


@contextmanager
def bind_context(context: JobContext) -> Iterator[JobContext]:
    """Make `context` the current one for the block, and nothing of it visible after."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


errors._current_context = _current.get
