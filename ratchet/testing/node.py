"""A node without threads: it claims, runs and writes only when told to, so that it can die in between."""

from __future__ import annotations

import asyncio
import contextvars
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn
from uuid import UUID

from ratchet.domain.ids import new_id
from ratchet.domain.lifecycle import UNSCHEDULED
from ratchet.domain.outcome import Failed, Outcome, Succeeded, decide, released, timed_out
from ratchet.domain.settlement import Settlement
from ratchet.engine import logs
from ratchet.engine.attempt import Attempt, Ended, Pipeline
from ratchet.engine.bodies import Bodies
from ratchet.engine.ending import Callbacks, Endings, _Call
from ratchet.engine.guards import Heartbeat, Sweep
from ratchet.engine.poller import Pace
from ratchet.engine.settler import Settler
from ratchet.errors import UsageError
from ratchet.settings import EXECUTORS
from ratchet.spi.store import ClaimRequest, NodeInfo, PendingCallback, RecoverRequest, Refused, Settled

if TYPE_CHECKING:
    from ratchet.domain.job import Claim
    from ratchet.domain.lifecycle import Status
    from ratchet.scheduler import Scheduler

DRAIN: Final = 10.0
_ZERO: Final = timedelta()
Draw = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Ran:
    """One execution.

    Attributes:
        job_id: the job.
        claim_seq: the claim under which it ran.
        attempt: the number of the attempt, from 1.
        target: the stored text of the function.
        outcome: how the attempt ended.
        status: where the job is now; None if nothing was written: the claim was over.
        refused: why the store refused the outcome; None if it did not.
        error: what the body raised, alive; None if it returned.
    """

    job_id: UUID
    claim_seq: int
    attempt: int
    target: str
    outcome: Outcome
    status: Status | None
    refused: str | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """A body that has ended; nothing is written yet.

    Attributes:
        claim: under which it ran.
        outcome: how it ended.
        error: what it raised; None if it returned.
    """

    claim: Claim
    outcome: Outcome
    error: BaseException | None
    _ended: Ended


class _LeftOut(set[tuple[str, int]]):
    """What cannot run here, until the caller says otherwise."""

    def forget(self, pair: tuple[str, int]) -> None:
        self.discard(pair)


class InlineNode:
    """One incarnation that works in the calling thread, through the real store, pipeline and settlement.

    A live application needs only `InlineRunner`; this is for tests of what happens when a node dies:

        node = InlineNode(scheduler)
        claim = node.claim()             # RUNNING, on this node
        body = node.run(claim)           # the body has run ...
        node.die()                       # ... its node has not lived to say so: the job is recovered
        assert node.write(body).refused  # a zombie changes nothing

    ``async def`` bodies run on one event loop of the node's own; where a loop is running already, on a
    helper thread. Bodies for child processes run like the others.

    Args:
        scheduler: whose jobs; it need not be started.
        name: the node's name.
        draw: random numbers in [0, 1) for the jitter of back-offs (default: always 0).
    """

    def __init__(self, scheduler: Scheduler, *, name: str = "inline", draw: Draw = lambda: 0.0) -> None:
        logs.install()
        self.scheduler, self.name, self._draw = scheduler, name, draw
        self.incarnation = str(new_id())
        self.left_out = _LeftOut()
        self._errors: dict[tuple[UUID, int], BaseException] = {}
        self._pipeline = _NotingPipeline(self._errors, scheduler, name)
        self._callbacks = _InlineCallbacks(scheduler, self._pipeline)
        self._settler = _Catch(scheduler)
        self._bodies = Bodies(
            self._pipeline,
            self._settler,
            {each: Pace() for each in EXECUTORS},
            self.left_out,
            _no_children,
        )
        self._endings = Endings(
            bus=scheduler._bus,
            node=name,
            waiters=scheduler._waiters,
            forget=lambda ended: None,
            due_in=lambda delay: None,
            callbacks=self._callbacks,
            now=scheduler.store.now,
        )
        self._loop: asyncio.Runner | None = None

    # -- claiming

    def claim(self, job_id: UUID | None = None) -> Claim | None:
        """Take the next due job, or the given one; None if it is not due or there is none.

        To reach a given job those before it are claimed too, and released afterwards.
        """
        passed: list[Claim] = []
        found: Claim | None = None
        while found is None:
            claim, _ = self.look()
            if claim is None:
                break
            if job_id is None or claim.job_id == job_id:
                found = claim
            else:
                passed.append(claim)
        for claim in passed:
            settlement = decide(claim, released("passed over"))
            if settlement is not None:
                self.scheduler.store.settle(settlement)
        return found

    def look(self) -> tuple[Claim | None, datetime | None]:
        """(the next due job, claimed; when the next one is due, where that is known)."""
        execution = self.scheduler.settings.execution
        claimed = self.scheduler.store.claim(
            ClaimRequest(
                incarnation=self.incarnation,
                limits=dict.fromkeys(EXECUTORS, 1),
                limit=1,
                boost_interval=execution.boost_interval,
                require_tags=execution.require_tags,
                exclude_tags=execution.exclude_tags,
                leave_out=frozenset(self.left_out),
            )
        )
        next_due = None if claimed.next_due == UNSCHEDULED else claimed.next_due
        return (claimed.claims[0] if claimed.claims else None), next_due

    # -- running and writing

    def run(self, claim: Claim) -> Finished:
        """Execute the attempt, gates to outcome; nothing is written.

        A body in which the store's clock passes the job's timeout ends as timed out.
        """
        attempt = Attempt(claim, time.monotonic())
        began = self.scheduler.store.now()
        _off_loop(lambda: self._execute(attempt))
        ended = self._settler.ended.pop(attempt.key)
        ran = self.scheduler.store.now() - began
        ended = replace(ended, outcome=self._by_store_time(claim, ended.outcome, ran))
        error = self._errors.pop(attempt.key, None)
        return Finished(claim, ended.outcome, error, ended)

    def write(self, finished: Finished) -> Ran:
        """Write the outcome, with everything that follows: events, callbacks. A lost claim is refused."""
        claim, ended = finished.claim, finished._ended
        settlement = decide(claim, ended.outcome, answer=ended.answer, draw=self._draw())
        answer = None
        if settlement is not None:
            (answer,) = self.scheduler.store.settle_many([settlement])
        self._endings.answered([(ended, settlement, answer)])
        self.scheduler._bus.drain(DRAIN)
        return Ran(
            job_id=claim.job_id,
            claim_seq=claim.claim_seq,
            attempt=claim.attempts + 1,
            target=claim.target,
            outcome=ended.outcome,
            status=answer.status if isinstance(answer, Settled) else None,
            refused=answer.reason if isinstance(answer, Refused) else None,
            error=finished.error,
        )

    def execute(self, claim: Claim) -> Ran:
        """`run` and `write`."""
        return self.write(self.run(claim))

    def _execute(self, attempt: Attempt) -> None:
        if attempt.claim.executor == "async":
            call = self._bodies.gate_async(attempt)
            if call is not None:
                result, error = self._on_loop(call)
                self._bodies.ended_async(attempt, result, error, cancel_was_ours=False)
        else:
            self._bodies.in_thread(attempt)

    def _on_loop(self, call: Callable[[], Awaitable[Any]]) -> tuple[object, BaseException | None]:
        async def body() -> tuple[object, BaseException | None]:
            try:
                return await call(), None
            except BaseException as error:  # noqa: BLE001 - whatever a body raises ends its attempt only
                return None, error

        if self._loop is None:
            self._loop = asyncio.Runner()
            weakref.finalize(self, _off_loop, self._loop.close)
        return self._loop.run(body(), context=contextvars.Context())

    def _by_store_time(self, claim: Claim, outcome: Outcome, ran: timedelta) -> Outcome:
        """The same outcome with the duration that the store's clock shows: exact and repeatable in a test."""
        if not isinstance(outcome, (Succeeded, Failed)):
            return outcome
        if ran >= claim.timeout:
            return timed_out(self._pipeline.timeout_text(Attempt(claim, 0.0)), ran)
        return replace(outcome, duration=max(ran, _ZERO))

    # -- the end

    def die(self) -> tuple[UUID, ...]:
        """This node is found dead: the others take back what it holds, as they would after the grace.

        Jobs below their crash budget are PENDING again, the others fail; recorded callbacks are run.

        Returns:
            The jobs it held.
        """
        held = tuple(job_id for job_id, _ in self.scheduler.store.held(self.incarnation))
        InlineNode(self.scheduler, name="survivor", draw=self._draw)._bury(self.incarnation)
        return held

    def _bury(self, incarnation: str) -> None:
        scheduler = self.scheduler
        info = NodeInfo(incarnation=self.incarnation, name=self.name)
        sweep = _Burial(
            scheduler.store,
            scheduler.settings.node,
            info,
            heartbeat=Heartbeat(scheduler.store, scheduler.settings.node, lambda: info),
            endings=self._endings,
            callbacks=self._callbacks,
            wake=scheduler._wake,
        )
        sweep.bury(
            RecoverRequest(
                grace=scheduler.settings.node.orphan_grace,
                crash_budget=scheduler.settings.node.max_crash_redeliveries,
                known_gone=frozenset({incarnation}),
                never=frozenset({self.incarnation}),
                only_known_gone=True,
            )
        )
        scheduler._bus.drain(DRAIN)

    def close(self) -> None:
        """Let go of the event loop, if there is one."""
        loop, self._loop = self._loop, None
        if loop is not None:
            _off_loop(loop.close)


class _NotingPipeline(Pipeline):
    """The engine's pipeline; remembers what bodies raised."""

    def __init__(
        self, errors: dict[tuple[UUID, int], BaseException], scheduler: Scheduler, name: str
    ) -> None:
        super().__init__(
            store=scheduler.store,
            targets=scheduler.targets,
            codec=scheduler.codec,
            sanitize=scheduler._sanitize,
            retry_policy=scheduler.retry_policy,
            resilience=scheduler.resilience,
            bus=scheduler._bus,
            settings=scheduler.settings,
            node=name,
        )
        self._errors = errors

    def raised(self, attempt: Attempt, error: BaseException, *, cancel_was_ours: bool = False) -> Ended:
        self._errors[attempt.key] = error
        return super().raised(attempt, error, cancel_was_ours=cancel_was_ours)


class _Catch(Settler):
    """Keeps what ended instead of writing it."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler.store, batch_size=1, answered=_nothing)
        self.ended: dict[tuple[UUID, int], Ended] = {}

    def put(self, ended: Ended) -> None:
        self.ended[ended.attempt.key] = ended

    def wait_for_room(self) -> None:
        """There is always room."""


class _InlineCallbacks(Callbacks):
    """Runs a callback at once, in the calling thread, after the listeners have had their events."""

    def __init__(self, scheduler: Scheduler, pipeline: Pipeline) -> None:
        super().__init__(scheduler.store, pipeline, scheduler._bus)
        self._closed = True  # a store error is the test's to see, not to be waited out

    def put(self, pending: PendingCallback, error: BaseException | None = None) -> None:
        self._bus.drain(DRAIN)
        _off_loop(lambda: self._run(_Call(pending, error)))


class _Burial(Sweep):
    """The engine's sweep, for one dead node, now."""

    def bury(self, request: RecoverRequest) -> None:
        self._recover(request)
        self._take_callbacks()


def _nothing(group: Sequence[tuple[Ended, Settlement | None, object]]) -> None:
    """No settler thread, nothing to be told."""


def _no_children() -> NoReturn:
    raise UsageError("an inline node has no child processes")


def _off_loop(call: Callable[[], None]) -> None:
    """`call()` here, or, where an event loop runs in this thread, on a thread that is waited for."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        call()
        return
    with ThreadPoolExecutor(1, thread_name_prefix="ratchet-inline") as thread:
        thread.submit(call).result()
