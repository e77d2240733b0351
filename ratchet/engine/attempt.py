"""One attempt: the record that the node keeps of a claim, and the list of steps that executes it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ratchet.context import JobContext
from ratchet.domain.job import Claim
from ratchet.domain.lifecycle import Status
from ratchet.domain.outcome import (
    Failed,
    Outcome,
    deferred,
    discarded,
    failed,
    failed_for_good,
    poisoned,
    released,
    succeeded,
    timed_out,
)
from ratchet.domain.retry import PASS_THROUGH, RetryAnswer, answers_request, do_not_retry_reason, retry_after
from ratchet.engine.bus import events
from ratchet.engine.targets import Target, Targets, UnknownTarget
from ratchet.errors import (
    ArgumentError,
    NewerPayloadFormat,
    PayloadTooLarge,
    StoreError,
    TargetRefused,
)

if TYPE_CHECKING:
    from ratchet.engine.bus import Bus
    from ratchet.settings import Settings
    from ratchet.spi.codec import PayloadCodec
    from ratchet.spi.resilience import ResilienceStrategy
    from ratchet.spi.retry import RetryPolicy
    from ratchet.spi.store import JobStore

log = logging.getLogger("ratchet.engine")

STALE_AFTER: Final = 1.0
"""Seconds since the claim call was sent after which the job is read again before it runs (section 5)."""

LEAST_DEFERRAL: Final = timedelta(seconds=1)
PERMIT_DELAY: Final = timedelta(seconds=5)
MAX_ERROR: Final = 2_000
TOO_LARGE: Final = '{"__ratchet__":"result-too-large","size":%d}'


def with_reason(error: str, reason: str) -> str:
    """The stored error of a job that is not retried."""
    return error if error.endswith(reason) else f"{error} [{reason}]"[:MAX_ERROR]


def unencodable(error: str) -> str:
    """The stored error of a job whose result cannot travel."""
    return f"result not serialisable: {error}"[:MAX_ERROR]


class HardStop(BaseException):
    """Raised in a thread whose body overran its deadline. Not an `Exception`, so that bodies rarely catch it."""


class Attempt:
    """A claim on its way through this node.

    Attributes:
        claim: what the store gave.
        sent: monotonic time at which the claim call was sent; when it became known here is later.
        context: what the body sees; made when the attempt starts.
        started: monotonic time of the start; None before.
        deadline: monotonic time at which it is stopped; None before the start.
        ended: True once the body has returned (or was never run).
        asked: why it is to stop, if that was asked for before its body had a context.
        lost: the node could not heartbeat in time: nothing unstarted starts.
        hard_stopped: the deadline passed and the body was still running.
    """

    __slots__ = (
        "_verdict",
        "answered",
        "asked",
        "claim",
        "context",
        "deadline",
        "ended",
        "error",
        "guard",
        "hard_stopped",
        "interrupt",
        "lost",
        "sent",
        "started",
        "target",
        "thread_id",
        "warned",
    )

    def __init__(self, claim: Claim, sent: float) -> None:
        self.claim = claim
        self.sent = sent
        self.context: JobContext | None = None
        self.target: Target | None = None
        self.started: float | None = None
        self.deadline: float | None = None
        self.ended = False
        self.answered = False
        self.asked: str | None = None
        self.lost = False
        self.warned = False
        self.hard_stopped = False
        self.error: BaseException | None = None
        self.thread_id: int | None = None
        self.guard: threading.Lock | None = None
        self.interrupt: Callable[[], None] | None = None
        self._verdict: list[bool] = [True]

    @property
    def key(self) -> tuple[UUID, int]:
        """What names the claim: the job and its `claim_seq`."""
        return self.claim.job_id, self.claim.claim_seq

    def take_verdict(self) -> bool:
        """True for exactly one caller: the one whose outcome counts (body, watchdog or shutdown)."""
        try:
            return self._verdict.pop()  # atomic: no lock on the hot path
        except IndexError:
            return False

    @property
    def is_decided(self) -> bool:
        """True once somebody has taken the verdict."""
        return not self._verdict

    def request_stop(self, reason: str) -> bool:
        """Ask the body to stop, or not to start; True if nobody had asked before."""
        if self.context is not None:
            return self.context.request_cancellation(reason)
        first, self.asked = self.asked is None, self.asked or reason
        return first


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt and its outcome, on the way to the settler."""

    attempt: Attempt
    outcome: Outcome
    at: float
    answer: RetryAnswer = PASS_THROUGH


class Pipeline:
    """The steps over one claim: recheck, policy, resolve, breaker, permit, decode, run, conclude.

    Each step answers an outcome, which ends the attempt, or None, which goes on. None of them raises.
    """

    def __init__(
        self,
        *,
        store: JobStore,
        targets: Targets,
        codec: PayloadCodec,
        sanitize: Callable[[BaseException], str],
        retry_policy: RetryPolicy,
        resilience: ResilienceStrategy,
        bus: Bus,
        settings: Settings,
        node: str,
    ) -> None:
        self.store, self.targets, self.codec = store, targets, codec
        self.sanitize, self.retry_policy, self.resilience = sanitize, retry_policy, resilience
        self.bus, self.node = bus, node
        self._floor_told = False
        self._result_limit = settings.payload.result
        self._none = codec.encode_value(None, what="result")

    # -- the gates: everything before the body

    def gates(self, attempt: Attempt, *, resolve: bool = True) -> Outcome | None:
        """Run the steps before decoding. `resolve` is False where a child process resolves."""
        claim = attempt.claim
        now = time.monotonic()
        if attempt.lost:
            return discarded("claim_lost")
        if attempt.asked is not None:
            return self.stopped(attempt, attempt.asked, timedelta())
        if now - attempt.sent > STALE_AFTER:
            stale = self._recheck(attempt)
            if stale is not None:
                return stale
        attempt.started = now = time.monotonic()
        attempt.deadline = now + claim.timeout.total_seconds()
        if resolve:
            refused = self._resolve(attempt)
        else:
            refused = self._allowed(claim)
        if refused is not None:
            return refused
        service = attempt.target.service if attempt.target is not None else None
        wait = self.resilience.retry_delay(service)
        if wait is not None:
            return deferred(f"circuit breaker of {service} is open", self._floored(wait))
        if claim.resource is not None:
            return deferred(f"resource {claim.resource!r} is not configured", PERMIT_DELAY)
        return None

    def _floored(self, wait: timedelta) -> timedelta:
        """A gate that is closed for no time at all would be asked again at once, hundreds of times a second."""
        if wait > timedelta():
            return wait
        if not self._floor_told:
            self._floor_told = True
            log.warning(
                "the resilience strategy defers a job by %s; at least %s is waited", wait, LEAST_DEFERRAL
            )
        return LEAST_DEFERRAL

    def _recheck(self, attempt: Attempt) -> Outcome | None:
        try:
            job = self.store.get(attempt.claim.job_id)
        except StoreError:
            return (
                None  # the fence decides in any case; a body that might be stale may overlap, as documented
            )
        if job is None:
            return discarded("claim_lost")
        if job.status is Status.CANCELED:
            return discarded("canceled")
        if job.claim_seq != attempt.claim.claim_seq or job.status is not Status.RUNNING:
            return discarded("claim_lost")
        return None

    def _allowed(self, claim: Claim) -> Outcome | None:
        if self.targets.policy.allows_target(claim.target):
            return None
        return failed_for_good(f"TargetRefused: {claim.target} lies outside the target policy", timedelta(),
                               reason="outside the target policy")  # fmt: skip

    def _resolve(self, attempt: Attempt) -> Outcome | None:
        try:
            attempt.target = self.targets.resolve(attempt.claim.target)
        except UnknownTarget as error:
            return deferred(f"unknown target: {error}")
        except TargetRefused as error:
            return failed_for_good(self.sanitize(error), timedelta(), reason="outside the target policy")
        except BaseException as error:  # noqa: BLE001 - a service factory is user code
            return deferred(f"unknown target: {type(error).__name__} while resolving {attempt.claim.target}")
        return None

    # -- the call

    def prepare(self, attempt: Attempt) -> Outcome | Callable[[], Any]:
        """Decode and validate the arguments; answers the call to make."""
        claim, target = attempt.claim, attempt.target
        if target is None:
            raise RuntimeError("the gates were not passed")
        try:
            args, kwargs = self.codec.decode_arguments(claim.payload, claim.format)
        except NewerPayloadFormat as error:
            return deferred(f"newer payload format: {error}")
        except BaseException as error:  # noqa: BLE001 - decoding may run user classes' code
            return poisoned(self.sanitize(error))
        try:
            args, kwargs = target.signature.validate(args, kwargs)  # binds first
        except ArgumentError as error:
            return failed_for_good(self.sanitize(error), timedelta(), reason="the arguments do not fit")
        except BaseException as error:  # noqa: BLE001 - validators are user code
            return failed_for_good(self.sanitize(error), timedelta(), reason="the arguments do not fit")
        try:
            params = {name: self.codec.decode_value(text) for name, text in claim.params.items()}
        except BaseException as error:  # noqa: BLE001
            return poisoned(self.sanitize(error))
        attempt.context = self.context_of(attempt, params)
        if attempt.asked is not None:
            return self.stopped(attempt, attempt.asked, timedelta())
        call = target.call
        if args or kwargs:
            return lambda: call(*args, **kwargs)
        return call

    def context_of(self, attempt: Attempt, params: Mapping[str, object]) -> JobContext:
        """What the body will see."""
        claim = attempt.claim
        return JobContext(
            claim.job_id,
            attempt=claim.attempts + 1,
            claim_seq=claim.claim_seq,
            node=self.node,
            params=params,
            deadline_monotonic=attempt.deadline,
            metadata=claim.metadata,
        )

    def announce(self, attempt: Attempt) -> None:
        """Tell listeners that the body is about to run."""
        if self.bus.active:
            claim = attempt.claim
            self.bus.publish(
                events.JobStarted(
                    job_id=claim.job_id,
                    attempt=claim.attempts + 1,
                    at=claim.picked_at,
                    node=self.node,
                    target=claim.target,
                )
            )

    # -- the end

    def returned(self, attempt: Attempt, result: object) -> Ended:
        """The body returned: encode the result; one that cannot be encoded fails the attempt."""
        now = time.monotonic()
        duration = timedelta(seconds=now - (attempt.started or now))
        if result is None:
            return Ended(attempt, succeeded(self._none, duration), now)
        try:
            text = self.codec.encode_value(result, what="result")
        except PayloadTooLarge as error:
            text = TOO_LARGE % error.size
        except BaseException as error:  # noqa: BLE001 - encoding looks into the job's objects
            reason = unencodable(self.sanitize(error))
            return Ended(attempt, failed_for_good(reason, duration, reason="result"), now)
        if len(text) > self._result_limit:
            text = TOO_LARGE % len(text)
        return Ended(attempt, succeeded(text, duration), now)

    def raised(self, attempt: Attempt, error: BaseException, *, cancel_was_ours: bool = False) -> Ended:
        """The body raised: decide what kind of end that is (sections 5 and 7)."""
        now = time.monotonic()
        duration = timedelta(seconds=now - (attempt.started or now))
        context = attempt.context
        reason = context.cancellation_reason if context is not None else None
        if reason is not None and (cancel_was_ours or answers_request(error, context)):
            return Ended(attempt, self.stopped(attempt, reason, duration), now)
        text = self.sanitize(error)
        permanent = do_not_retry_reason(error, self.sanitize)
        if permanent is not None:
            log.warning("job %s failed for good: %s", attempt.claim.job_id, permanent)
            outcome: Failed = failed_for_good(with_reason(text, permanent), duration, reason=permanent)
            answer = PASS_THROUGH
        else:
            outcome = failed(text, duration, retry_after=retry_after(error))
            answer = self.ask_policy(attempt.claim.attempts + 1, error)
        if attempt.claim.on_failure is not None:
            attempt.error = error
        return Ended(attempt, outcome, now, answer)

    def stopped(self, attempt: Attempt, reason: str, duration: timedelta) -> Outcome:
        """The body stopped because it was asked to."""
        match reason:
            case "timeout":
                return timed_out(self.timeout_text(attempt), duration)
            case "shutdown":
                return released("shutdown")
            case _:
                return discarded(reason)

    def timeout_text(self, attempt: Attempt) -> str:
        """The stored error of an attempt that overran its deadline."""
        return f"JobTimeout: the attempt ran longer than {attempt.claim.timeout}"

    def ask_policy(self, attempt_number: int, error: BaseException) -> RetryAnswer:
        """What the retry policy says; one that raises counts as the default."""
        try:
            if not self.retry_policy.should_retry(attempt_number, error):
                return RetryAnswer(retry=False)
            delay = self.retry_policy.delay(attempt_number)
            return RetryAnswer(delay=delay + timedelta()) if delay else PASS_THROUGH
        except BaseException as broken:  # noqa: BLE001 - the policy is user code, also where it adds no timedelta
            log.error("the retry policy raised %s; the job's own options decide", type(broken).__name__)
            return PASS_THROUGH
