"""What follows a commit: events, callbacks, waiters, and what the node no longer needs to know."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ratchet.context import JobContext, bind_context
from ratchet.domain.lifecycle import SETTLED, Status, Trigger
from ratchet.domain.outcome import Deferred, Discarded, Failed
from ratchet.domain.settlement import RunCallback, Settlement
from ratchet.engine.attempt import Ended, Pipeline
from ratchet.engine.bus import events
from ratchet.engine.logs import traced
from ratchet.engine.polling import error_delay
from ratchet.errors import JobError, ResultNotStored, StoreError
from ratchet.spi.store import JobStore, PendingCallback, Refused, SettleAnswer, Settled

if TYPE_CHECKING:
    from ratchet.engine.bus import Bus

log = logging.getLogger("ratchet.engine")
CALLBACK_THREADS: Final = 2
LIVE_ERRORS: Final = 16
"""So many waiting callbacks keep the exception itself, whose frames hold what the body held; beyond, its text."""


class Waiters:
    """Lets `handle.result()` in this process wake as soon as something settles here."""

    def __init__(self) -> None:
        self.start_afresh()

    def start_afresh(self) -> None:
        """Nobody waits: at first, and in a child process, where its parent's waiting threads do not exist."""
        self._changed = threading.Condition()
        self._waiting = 0
        self._count = 0
        self._listeners: tuple[Callable[[], None], ...] = ()

    def listen(self, call: Callable[[], None]) -> None:
        """Call `call()`, which neither blocks nor raises, whenever something settles here."""
        with self._changed:
            self._listeners = (*self._listeners, call)

    def unlisten(self, call: Callable[[], None]) -> None:
        """End `listen`."""
        with self._changed:
            self._listeners = tuple(each for each in self._listeners if each != call)

    def poke(self) -> None:
        """Something settled."""
        for call in self._listeners:
            call()
        if self._waiting:
            with self._changed:
                self._count += 1
                self._changed.notify_all()

    def wait(self, timeout: float) -> None:
        """Until something settles here, or `timeout` seconds."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait(timeout)
            finally:
                self._waiting -= 1


@dataclass(slots=True)
class Tally:
    """Counts of this node since its start, for health."""

    settled: int = 0
    refused: int = 0
    recovered: int = 0


class Endings:
    """Called by the settler after each commit.

    Args:
        bus: where events go.
        node: the node's name.
        forget: drops an attempt from what the node knows.
        due_in: tells the poller of a retry of this node's own.
        callbacks: runs what the settlement recorded.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        node: str,
        waiters: Waiters,
        forget: Callable[[Ended], None],
        due_in: Callable[[timedelta], None],
        callbacks: Callbacks,
        now: Callable[[], datetime],
    ) -> None:
        self._bus, self._node, self._waiters, self._forget = bus, node, waiters, forget
        self._due_in, self._callbacks, self._now = due_in, callbacks, now
        self.tally = Tally()

    def answered(self, group: Sequence[tuple[Ended, Settlement | None, SettleAnswer | None]]) -> None:
        """A group of outcomes was answered by the store (or has nothing to write)."""
        publish = self._bus.active
        for ended, settlement, answer in group:
            match answer:
                case Settled():
                    self.tally.settled += 1
                    if settlement is not None:
                        self._followed(ended, settlement, answer)
                        if publish:
                            self._publish(ended, settlement, answer)
                        if settlement.effects:
                            self._run_callbacks(ended, settlement)
                case Refused():
                    self.tally.refused += 1
                    log.info(
                        "the outcome of job %s, claim %d was refused: %s", *ended.attempt.key, answer.reason
                    )
                    if publish and answer.current is not None and answer.current.status is Status.CANCELED:
                        self._canceled(ended)
                case None:
                    if (
                        publish
                        and isinstance(ended.outcome, Discarded)
                        and ended.outcome.reason == "canceled"
                    ):
                        self._canceled(ended)
            self._forget(ended)
        self._waiters.poke()

    def _followed(self, ended: Ended, settlement: Settlement, answer: Settled) -> None:
        change = settlement.change
        if answer.status in SETTLED:
            return
        outcome = ended.outcome
        if isinstance(outcome, Deferred):
            claim = ended.attempt.claim
            if outcome.delay is None:
                log.warning("job %s was put back: %s", claim.job_id, outcome.reason)
            else:
                self._due_in(outcome.delay)
        elif change.trigger is Trigger.RETRY and change.delay is not None:
            self._due_in(change.delay)

    # -- events

    def _publish(self, ended: Ended, settlement: Settlement, answer: Settled) -> None:
        claim, outcome, bus = ended.attempt.claim, ended.outcome, self._bus
        base: dict[str, Any] = {
            "job_id": claim.job_id,
            "attempt": claim.attempts + 1,
            "at": answer.now,
            "node": self._node,
        }
        if isinstance(outcome, Failed) and outcome.timed_out:
            bus.publish(events.JobTimedOut(timeout=claim.timeout, elapsed=outcome.duration, **base))
        match settlement.change.trigger:
            case Trigger.SUCCEED:
                duration = settlement.change.duration or timedelta()
                bus.publish(events.JobCompleted(duration=duration, queue_wait=answer.queue_wait, **base))
            case Trigger.RETRY:
                error = settlement.change.error or ""
                bus.publish(events.JobRetrying(error=error, scheduled_time=answer.scheduled_time, **base))
            case Trigger.FAIL:
                attempts = (
                    claim.attempts if settlement.change.attempts is None else settlement.change.attempts
                )
                self.failed(settlement.change.error or "", attempts, **base)
            case _:
                pass

    def failed(self, error: str, attempts: int, **base: Any) -> None:
        """A job became FAILED: failed, then dlq, once each."""
        if self._bus.active:
            self._bus.publish(events.JobFailed(error=error, attempts=attempts, **base))
            self._bus.publish(events.JobDlq(error=error, attempts=attempts, **base))

    def _canceled(self, ended: Ended) -> None:
        claim = ended.attempt.claim
        try:
            at = self._now()
        except StoreError:  # the body has ended, whether or not the store can say when
            at = claim.picked_at + timedelta(seconds=max(ended.at - ended.attempt.sent, 0.0))
        self._bus.publish(
            events.JobCanceled(job_id=claim.job_id, attempt=claim.attempts + 1, at=at, node=self._node)
        )

    def _run_callbacks(self, ended: Ended, settlement: Settlement) -> None:
        claim, error = ended.attempt.claim, ended.attempt.error
        ended.attempt.error = None
        for effect in settlement.effects:
            if isinstance(effect, RunCallback):
                pending = PendingCallback(
                    claim.job_id, claim.claim_seq, effect.name, effect.target, effect.argument
                )
                self._callbacks.put(pending, error)


@dataclass(slots=True)
class _Call:
    pending: PendingCallback
    error: BaseException | None


class Callbacks:
    """Runs recorded callbacks, at least once each, on threads of its own; they change no outcome (section 6).

    Attributes:
        on_loop: awaits an async one; a node sets its event loop here, where its async bodies run.
    """

    def __init__(self, store: JobStore, pipeline: Pipeline, bus: Bus) -> None:
        self._store, self._pipeline, self._bus = store, pipeline, bus
        self.on_loop: Callable[[Callable[[], Awaitable[Any]]], Any] = run_alone
        self._queue: deque[_Call] = deque()
        self._ready = threading.Condition()
        self._threads = self._idle = self._running = self._live = 0
        self._contexts: list[JobContext] = []
        self._closed = False

    def put(self, pending: PendingCallback, error: BaseException | None = None) -> None:
        """Run it soon."""
        with self._ready:
            if error is not None:
                if self._live < LIVE_ERRORS:
                    self._live += 1
                else:
                    error = None
            self._queue.append(_Call(pending, error))
            if not self._idle and self._threads < CALLBACK_THREADS:
                self._threads += 1
                threading.Thread(target=self._serve, name="ratchet-callbacks", daemon=True).start()
            self._ready.notify()

    def runs(self, context: JobContext) -> bool:
        """True while the callback to which this context was given runs."""
        return any(each is context for each in list(self._contexts))

    def drain(self, timeout: float) -> bool:
        """Wait until all that was put has run."""
        with self._ready:
            return self._ready.wait_for(lambda: not self._queue and not self._running, timeout)

    def close(self) -> None:
        """Run nothing further; what is left is taken over by another node's sweep."""
        with self._ready:
            self._closed = True
            self._queue.clear()
            self._ready.notify_all()

    def _serve(self) -> None:
        while True:
            with self._ready:
                self._idle += 1
                self._ready.wait_for(lambda: self._queue or self._closed)
                self._idle -= 1
                if not self._queue:
                    self._threads -= 1
                    return
                call = self._queue.popleft()
                self._running += 1
                self._live -= call.error is not None
            try:
                self._run(call)
            except BaseException as error:  # noqa: BLE001 - the thread serves the next one
                log.error("internal error in a callback\n%s", traced(error))
            finally:
                del call
                with self._ready:
                    self._running -= 1
                    self._ready.notify_all()

    def _run(self, call: _Call) -> None:
        pending, attempt = call.pending, 1
        try:
            job = self._again(lambda: self._store.get(pending.job_id))
            if job is not None:
                attempt = max(job.attempts + (1 if pending.name == "on_success" else 0), 1)
                params = {name: self._pipeline.codec.decode_value(text) for name, text in job.params.items()}
                context = JobContext(
                    pending.job_id,
                    attempt=attempt,
                    claim_seq=pending.claim_seq,
                    node=self._pipeline.node,
                    params=params,
                    metadata=job.metadata,
                )
                self._call(pending, context, call.error)
        except BaseException as error:  # noqa: BLE001 - a callback harms nobody, whatever it raises
            text = self._pipeline.sanitize(error)
            log.error("callback %s of job %s failed: %s", pending.name, pending.job_id, text)
            if self._bus.active:
                self._bus.publish(
                    events.JobCallbackFailed(
                        job_id=pending.job_id,
                        attempt=attempt,
                        at=self._again(self._store.now),
                        node=self._pipeline.node,
                        callback=pending.name,
                        error=text,
                    )
                )
        self._again(lambda: self._store.callback_done(pending.job_id, pending.claim_seq, pending.name))

    def _call(self, pending: PendingCallback, context: JobContext, error: BaseException | None) -> None:
        target = self._pipeline.targets.resolve(pending.target)
        argument: object
        if pending.name == "on_success":
            try:
                argument = decode_result(self._pipeline.codec.decode_value, pending.argument)
            except (
                ResultNotStored
            ) as too_large:  # the job succeeded all the same, and is to have its callback
                argument = too_large
        else:
            argument = error if error is not None else error_from_text(pending.argument)
        self._contexts.append(context)
        try:
            with bind_context(context):
                result = target.call(context, argument)
                if inspect.isawaitable(result):
                    self.on_loop(lambda: result)
        finally:
            self._contexts.remove(context)

    def _again(self, call: Callable[[], Any]) -> Any:
        failures = 0
        while True:
            try:
                return call()
            except StoreError:
                failures += 1
                if self._closed:
                    raise
                time.sleep(error_delay(failures))  # a retry's back-off, not synchronisation


def run_alone(make: Callable[[], Awaitable[Any]]) -> Any:
    """Await on an event loop made for this alone."""
    import asyncio

    async def awaited() -> Any:
        return await make()

    return asyncio.run(awaited())


def error_from_text(text: str) -> JobError:
    """The stored error as an exception: the live one is gone."""
    type_name, _, message = text.partition(": ")
    return JobError(type_name, message)


def decode_result(decode: Callable[[str], object], text: str | None) -> object:
    """The value of a stored result.

    Raises:
        ResultNotStored: only its size was kept.
    """
    if text is None:
        return None
    if text.startswith('{"__ratchet__":"result-too-large"'):
        raise ResultNotStored(
            f"the result was {text.rpartition(':')[2].rstrip('}')} bytes, more than is kept"
        )
    return decode(text)
