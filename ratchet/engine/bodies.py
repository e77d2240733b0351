"""Runs attempts: in a thread, on the loop, in a child process; each from the gates to an outcome."""

from __future__ import annotations

import contextvars
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, assert_never

from ratchet.context import _current
from ratchet.domain.outcome import (
    Deferred,
    Failed,
    Outcome,
    Succeeded,
    deferred,
    failed,
    failed_for_good,
    poisoned,
    released,
    succeeded,
)
from ratchet.engine.attempt import TOO_LARGE, Attempt, Ended, HardStop, Pipeline, unencodable, with_reason
from ratchet.engine.ending import run_alone
from ratchet.engine.slots import call_in_thread
from ratchet.errors import JobError

if TYPE_CHECKING:
    from ratchet.engine.child_process import ChildProcess
    from ratchet.engine.child_wire import BodyReply
    from ratchet.engine.poller import Pace
    from ratchet.engine.settler import Settler

log = logging.getLogger("ratchet.engine")


class Unresolvable(Protocol):
    """(target, payload format) pairs that cannot run here at present."""

    def add(self, pair: tuple[str, int], /) -> None: ...
    def forget(self, pair: tuple[str, int], /) -> None: ...


class Bodies:
    """What the executors call.

    Args:
        pipeline: the steps.
        settler: where outcomes go.
        paces: executor -> measured duration, for claiming ahead.
        left_out: learns which targets cannot run here.
        make_child: makes the child process of a slot.
        on_loop: awaits on the node's event loop; by default on one of its own.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        settler: Settler,
        paces: dict[str, Pace],
        left_out: Unresolvable,
        make_child: Callable[[], ChildProcess],
        on_loop: Callable[[Callable[[], Awaitable[Any]], Attempt], Any] = lambda make, _: run_alone(make),
    ) -> None:
        self._pipeline, self._settler, self._paces, self._make_child = pipeline, settler, paces, make_child
        self._left_out, self._on_loop = left_out, on_loop
        self._children: dict[int, ChildProcess] = {}

    def finish(self, ended: Ended) -> None:
        """Hand the outcome over, unless somebody decided first (the watchdog, a shutdown)."""
        if ended.attempt.take_verdict():
            pair = (ended.attempt.claim.target, ended.attempt.claim.format)
            match ended.outcome:
                case Deferred(delay=None):  # known before it is written: the next claim must not get it again
                    self._left_out.add(pair)
                case Succeeded() | Failed():
                    self._left_out.forget(pair)
            self._settler.put(ended)

    def _broken(self, attempt: Attempt, error: BaseException) -> None:
        """An error of ours, or of code that an application lent us: it fails the attempt like one of the body's."""
        log.error("job %s could not be run to its end: %s", attempt.claim.job_id, type(error).__name__)
        self.finish(Ended(attempt, failed(self._pipeline.sanitize(error), timedelta()), time.monotonic()))

    # -- threads

    def in_thread(self, attempt: Attempt) -> None:
        """Execute on this thread."""
        try:
            self._in_thread(attempt)
        except HardStop:
            raise
        except BaseException as error:  # noqa: BLE001 - every path ends in a settled or claimable job
            self._broken(attempt, error)

    def _in_thread(self, attempt: Attempt) -> None:
        self._settler.wait_for_room()
        pipeline = self._pipeline
        outcome = pipeline.gates(attempt)
        if outcome is None:
            prepared = pipeline.prepare(attempt)
            if callable(prepared):
                pipeline.announce(attempt)
                self._call(attempt, prepared)
                return
            outcome = prepared
        self.finish(Ended(attempt, outcome, time.monotonic()))

    def _call(self, attempt: Attempt, call: Callable[[], Any]) -> None:
        pipeline, target = self._pipeline, attempt.target
        service = target.service if target is not None else None
        try:
            # An empty context of its own: nothing of one job's context is visible to the next.
            result = contextvars.Context().run(self._bound, attempt, service, call)
        except HardStop:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a body raises ends its attempt, not the worker
            ended = pipeline.raised(attempt, error)
        else:
            ended = pipeline.returned(attempt, result)
        self._measure(attempt, ended)
        self.finish(ended)

    def _bound(self, attempt: Attempt, service: str | None, call: Callable[[], Any]) -> Any:
        _current.set(attempt.context)
        return self._pipeline.resilience.execute(
            service, lambda: call_in_thread(attempt, lambda: self._result_of(attempt, call))
        )

    def _result_of(self, attempt: Attempt, call: Callable[[], Any]) -> Any:
        result = call()
        # A plain function around an async one, or one that became async after the job was stored for threads.
        if result is not None and inspect.isawaitable(result):
            return self._on_loop(lambda: result, attempt)
        return result

    def _measure(self, attempt: Attempt, ended: Ended) -> None:
        if attempt.started is not None:
            self._paces[attempt.claim.executor].saw(ended.at - attempt.started)

    # -- the loop

    def gate_async(self, attempt: Attempt) -> Callable[[], Awaitable[Any]] | None:
        """Run the gates on a helper thread; answers what to await on the loop, or None if it ended here."""
        try:
            return self._gate_async(attempt)
        except BaseException as error:  # noqa: BLE001 - see in_thread
            self._broken(attempt, error)
            return None

    def _gate_async(self, attempt: Attempt) -> Callable[[], Awaitable[Any]] | None:
        self._settler.wait_for_room()
        pipeline = self._pipeline
        outcome: Outcome | None = pipeline.gates(attempt)
        if outcome is None:
            prepared = pipeline.prepare(attempt)
            if callable(prepared):
                pipeline.announce(attempt)
                return self._awaited(attempt, prepared)
            outcome = prepared
        self.finish(Ended(attempt, outcome, time.monotonic()))
        return None

    def _awaited(self, attempt: Attempt, call: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
        service = attempt.target.service if attempt.target is not None else None

        async def awaited() -> Any:
            result = call()
            return await result if inspect.isawaitable(result) else result

        async def bound() -> Any:
            _current.set(attempt.context)
            return await self._pipeline.resilience.execute_async(service, awaited)

        return bound

    def ended_async(
        self,
        attempt: Attempt,
        result: object,
        error: BaseException | None,
        cancel_was_ours: bool,
    ) -> None:
        """The body on the loop has ended. With an error it is called on a thread: its text is the job's code."""
        try:
            if error is not None:
                ended = self._pipeline.raised(attempt, error, cancel_was_ours=cancel_was_ours)
            else:
                ended = self._pipeline.returned(attempt, result)
            self._measure(attempt, ended)
            self.finish(ended)
        except BaseException as problem:  # noqa: BLE001 - see in_thread
            self._broken(attempt, problem)

    # -- child processes

    def in_process(self, attempt: Attempt) -> None:
        """Execute in the child process of this thread's slot."""
        try:
            self._in_process(attempt)
        except BaseException as error:  # noqa: BLE001 - see in_thread
            self._broken(attempt, error)

    def _in_process(self, attempt: Attempt) -> None:
        from ratchet.engine.child_wire import BodyRequest

        self._settler.wait_for_room()
        pipeline, claim = self._pipeline, attempt.claim
        outcome = pipeline.gates(attempt, resolve=False)
        if outcome is not None:
            self.finish(Ended(attempt, outcome, time.monotonic()))
            return
        context = attempt.context = pipeline.context_of(attempt, {})
        if attempt.asked is not None:
            self.finish(
                Ended(attempt, pipeline.stopped(attempt, attempt.asked, timedelta()), time.monotonic())
            )
            return
        child = self._child()
        target = pipeline.targets.import_path(claim.target)
        request = BodyRequest(
            job_id=str(claim.job_id),
            claim_seq=claim.claim_seq,
            attempt=claim.attempts + 1,
            target=target,
            payload=claim.payload,
            format=claim.format,
            params=claim.params,
            timeout_seconds_left=(attempt.deadline or time.monotonic()) - time.monotonic(),
            node=pipeline.node,
            metadata=claim.metadata,
        )
        pipeline.announce(attempt)
        attempt.interrupt = lambda: child.kill(request=request)
        if attempt.is_decided:  # whoever took the decision has found nothing to interrupt
            attempt.interrupt = None
            return
        context.on_cancellation(lambda reason: child.request_cancellation(reason, request=request))
        try:
            reply = child.run(request, on_log=_log_record)
        finally:
            context.on_cancellation(None)
            attempt.interrupt = None
        ended = self._from_reply(attempt, reply)
        self._measure(attempt, ended)
        self.finish(ended)

    def _child(self) -> ChildProcess:
        ident = threading.get_ident()
        child = self._children.get(ident)
        if child is None:
            child = self._children[ident] = self._make_child()
        return child

    def _from_reply(self, attempt: Attempt, reply: BodyReply) -> Ended:
        from ratchet.engine.child_wire import Died, Raised, Refused, Returned

        pipeline, now = self._pipeline, time.monotonic()
        ran = timedelta(seconds=now - (attempt.started or now))
        outcome: Outcome
        match reply:
            case Returned():
                text = TOO_LARGE % reply.result_size if reply.result is None else reply.result
                outcome = succeeded(text, timedelta(seconds=reply.duration))
            case Raised():
                return self._from_raised(attempt, reply, now - reply.age)
            case Refused():
                outcome = _refused(reply.kind, reply.message)
            case Died() if not reply.started:  # the body certainly did not begin: nothing is charged
                log.error("a child process could not take a job: %s", reply.description)
                outcome = released("the child process did not start")
            case Died():
                error = JobError("ProcessDied", reply.description)
                outcome = failed(str(error), ran)
                return Ended(attempt, outcome, now, pipeline.ask_policy(attempt.claim.attempts + 1, error))
            case _:
                assert_never(reply)
        return Ended(attempt, outcome, now)

    def _from_raised(self, attempt: Attempt, reply: Any, at: float) -> Ended:
        duration = timedelta(seconds=reply.duration)
        context = attempt.context
        reason = context.cancellation_reason if context is not None else None
        if reply.cancellation and reason is not None:
            return Ended(attempt, self._pipeline.stopped(attempt, reason, duration), at)
        if reply.unencodable_result:
            return Ended(attempt, failed_for_good(unencodable(reply.error), duration, reason="result"), at)
        if reply.do_not_retry is not None:
            log.warning("job %s failed for good: %s", attempt.claim.job_id, reply.do_not_retry)
            text = with_reason(reply.error, reply.do_not_retry)
            return Ended(attempt, failed_for_good(text, duration, reason=reply.do_not_retry), at)
        wait = None if reply.retry_after is None else timedelta(seconds=reply.retry_after)
        message = reply.error.removeprefix(f"{reply.type_name}: ")
        answer = self._pipeline.ask_policy(attempt.claim.attempts + 1, JobError(reply.type_name, message))
        return Ended(attempt, failed(reply.error, duration, retry_after=wait), at, answer)

    def close(self) -> None:
        """End the children."""
        for child in list(self._children.values()):
            child.close()
        self._children.clear()


def _refused(kind: str, message: str) -> Outcome:
    match kind:
        case "unknown":
            return deferred(f"unknown target: {message}")
        case "newer_format":
            return deferred(f"newer payload format: {message}")
        case "poison":
            return poisoned(message)
        case "policy":
            return failed_for_good(message, timedelta(), reason="outside the target policy")
        case _:
            return failed_for_good(message, timedelta(), reason="the arguments do not fit")


def _log_record(record: logging.LogRecord) -> None:
    logging.getLogger(record.name).handle(record)
