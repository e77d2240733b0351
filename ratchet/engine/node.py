"""The running node: makes the parts, starts them, and stops them in the right order (section 10)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ratchet.context import _current
from ratchet.domain.outcome import released
from ratchet.engine import logs
from ratchet.engine.attempt import Attempt, Ended, Pipeline
from ratchet.engine.bodies import Bodies
from ratchet.engine.bus import Bus
from ratchet.engine.eager import Eager
from ratchet.engine.ending import Callbacks, Endings, Waiters
from ratchet.engine.guards import Custody, Heartbeat, Loop, Sweep, Watchdog, stuck
from ratchet.engine.identity import identify, is_gone
from ratchet.engine.poller import Poller
from ratchet.engine.polling import PollSettings
from ratchet.engine.settler import Settler
from ratchet.engine.slots import LoopSlots, ProcessSlots, ThreadSlots
from ratchet.errors import NodeNameTaken, StoreError
from ratchet.spi.coordinator import ClusterCoordinator, Hint
from ratchet.spi.store import JobStore, NodeInfo

if TYPE_CHECKING:
    import asyncio

    from ratchet.engine.child_process import ChildProcess
    from ratchet.settings import PollingSettings, Settings
    from ratchet.spi.executor import Executor

log = logging.getLogger("ratchet.engine")

STOP_TIMEOUT: Final = 25.0
MAX_NOTICE: Final = 5.0
"""Bodies are asked to stop this long before the end of the shutdown (or half of it, if shorter)."""
CHECKUP_AFTER: Final = 1.0
"""Seconds from a node's start to its look at whether the store is well."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a shutdown went.

    Attributes:
        drained: True if every body had ended by itself and every outcome was written.
        released: jobs given back because their bodies had not ended.
        stuck: jobs whose bodies still run in this process.
        unwritten: outcomes that the store never answered; recovery will find those jobs.
    """

    drained: bool
    released: tuple[UUID, ...]
    stuck: tuple[UUID, ...]
    unwritten: int


@dataclass(slots=True)
class _Parts:
    """Everything of one run of a node; made by `start`, gone after `stop`."""

    settler: Settler
    poller: Poller
    bodies: Bodies
    endings: Endings
    callbacks: Callbacks
    heartbeat: Heartbeat
    watchdog: Watchdog
    sweep: Sweep
    eager: Eager
    threads: ThreadSlots
    loop: LoopSlots
    processes: ProcessSlots
    loops: list[Loop] = field(default_factory=list)


class Node:
    """One incarnation of a scheduler that executes jobs.

    Args:
        store: where the jobs are.
        settings: how.
        pipeline: makes the steps for this node's name.
        coordinator: hints from other nodes.
        bus, waiters: of the scheduler.
        make_child: makes the child process of a slot.
        loop: the application's event loop for async bodies; None: an own one.
    """

    def __init__(
        self,
        store: JobStore,
        settings: Settings,
        *,
        pipeline: Callable[[str], Pipeline],
        coordinator: ClusterCoordinator,
        bus: Bus,
        waiters: Waiters,
        make_child: Callable[[], ChildProcess],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.store, self.settings, self.coordinator = store, settings, coordinator
        self.info = identify(settings.node.name)
        self._bus, self._waiters, self._make_child, self._app_loop = bus, waiters, make_child, loop
        self._known: dict[tuple[UUID, int], Attempt] = {}
        self._hurry = threading.Event()
        self._idle = threading.Condition()
        self._stopping = False
        self._state = "running"
        self._reason = ""
        self._parts = self._make(pipeline(self.info.name))

    # -- wiring

    def _make(self, pipeline: Pipeline) -> _Parts:
        settings, store = self.settings, self.store
        callbacks = Callbacks(store, pipeline, self._bus)
        endings = Endings(
            bus=self._bus,
            node=self.info.name,
            waiters=self._waiters,
            forget=self._answered,
            due_in=lambda delay: self._parts.poller.due_in(delay),
            callbacks=callbacks,
            now=store.now,
        )
        settler = Settler(store, batch_size=settings.execution.batch_size, answered=endings.answered)
        executors: dict[str, Executor[Attempt]] = {}
        threads = ThreadSlots(
            "threads", settings.execution.threads, lambda attempt: bodies.in_thread(attempt), self._freed
        )
        processes = ProcessSlots(
            "processes", settings.execution.processes, lambda attempt: bodies.in_process(attempt), self._freed
        )
        loop = LoopSlots(
            settings.execution.async_,
            lambda attempt: bodies.gate_async(attempt),
            lambda attempt, result, error, ours: bodies.ended_async(attempt, result, error, ours),
            self._freed,
            self._app_loop,
        )
        callbacks.on_loop = loop.call
        for each in (threads, loop, processes):
            if each.slots:
                executors[each.name] = each
        heartbeat = Heartbeat(store, settings.node, self._describe)
        poller = Poller(
            store,
            incarnation=self.info.incarnation,
            executors=executors,
            settler=settler,
            settings=settings.execution,
            pace=_pace(settings.polling),
            received=self._received,
            give_back=self._give_back,
            may_claim=lambda: self._state == "running" and not self._parts.watchdog.fenced,
            watch=self.coordinator.watch,
        )
        bodies = Bodies(pipeline, settler, poller.paces, poller.left_out, self._make_child, on_loop=loop.call)
        watchdog = Watchdog(
            self._known,
            settings.timeouts,
            put=settler.put,
            timeout_text=pipeline.timeout_text,
            stop_hard=self._stop_hard,
            fence_after=settings.node.orphan_grace.total_seconds() * 5 / 6,
            heartbeat=heartbeat,
            lose=self._lose_claims,
        )
        sweep = Sweep(
            store,
            settings.node,
            self.info,
            heartbeat=heartbeat,
            endings=endings,
            callbacks=callbacks,
            wake=poller.wake,
        )
        custody = Custody(
            store,
            self.info.incarnation,
            self._known,
            claim_sent=lambda: poller.claim_sent,
        )
        eager = Eager(
            store,
            self.info.incarnation,
            has_room_for=poller.has_room_for,
            take=poller.take,
            suspect=custody.suspect,
        )
        parts = _Parts(
            settler, poller, bodies, endings, callbacks, heartbeat, watchdog, sweep, eager,
            threads, loop, processes,
        )  # fmt: skip
        parts.loops = [
            # Asked for again well within the fence: an outage must not cost the time of a back-off on top.
            Loop("heartbeat", heartbeat.beat, patience=min(1.0, max(heartbeat.interval / 3, 0.1))),
            Loop("watchdog", self._watch),
            Loop("custody", custody.check),
            Loop("sweep", sweep.run),
            Loop("checkup", self._check_store, patience=60.0),
        ]
        return parts

    # -- start

    def start(self) -> None:
        """Register, recover what this name left behind, and begin to claim.

        Raises:
            NodeNameTaken: a live process runs under the name that was set.
            StoreError: the store cannot be reached; nothing was started.
        """
        self._check_name()
        logs.install()
        parts = self._parts
        next_beat = parts.heartbeat.beat()
        parts.sweep.at_start()
        parts.settler.start()
        self.coordinator.start(self.info.name, self._hint)
        parts.poller.wake()
        parts.poller.start()
        for loop in parts.loops:  # after the poller: making threads would delay the first job
            loop.start({"heartbeat": next_beat, "checkup": CHECKUP_AFTER}.get(loop.name, 0.0))

    def _check_store(self) -> float:
        from ratchet.engine import checkup  # a second after the start: it would delay the first job

        return checkup.check(self.store)

    def _check_name(self) -> None:
        if self.settings.node.name is None:
            return
        for node in self.store.nodes():
            alive = node.age <= self.settings.node.orphan_grace and not is_gone(node, self.info)
            if node.info.name == self.info.name and alive:
                raise NodeNameTaken(
                    f"node name {self.info.name!r} is in use by process {node.info.pid} on {node.info.host or '?'}; "
                    "give each node its own name, or none"
                )

    def _hint(self, hint: Hint) -> None:
        if hint.priority is None:
            self._parts.poller.look()
        else:
            self._parts.poller.wake()

    # -- what the parts tell each other

    def _received(self, attempt: Attempt) -> None:
        self._known[attempt.key] = attempt

    def _freed(self, attempt: Attempt) -> None:
        """A body has ended: its slot is free."""
        if attempt.answered:
            self._known.pop(attempt.key, None)
        if self._stopping:
            with self._idle:
                self._idle.notify_all()
        self._parts.poller.refill()

    def _answered(self, ended: Ended) -> None:
        """The store has answered (or nothing was to be written)."""
        attempt = ended.attempt
        attempt.answered = True
        if attempt.ended or attempt.started is None:
            self._known.pop(attempt.key, None)

    def _give_back(self, attempts: list[Attempt], why: str) -> None:
        """Release claims that will not begin here."""
        now = time.monotonic()
        for attempt in attempts:
            attempt.ended = True
            if attempt.take_verdict():
                self._parts.settler.put(Ended(attempt, released(why), now))

    def _stop_hard(self, attempt: Attempt) -> None:
        executor = {"threads": self._parts.threads, "processes": self._parts.processes}.get(
            attempt.claim.executor
        )
        (executor or self._parts.loop).stop_hard(attempt)

    def _lose_claims(self) -> None:
        """The node could not heartbeat in time: others may have taken everything it holds."""
        for executor in self._executors():
            for attempt in executor.withdraw():
                attempt.ended = attempt.answered = True
                if attempt.take_verdict():
                    self._known.pop(attempt.key, None)
        for attempt in list(self._known.values()):
            attempt.lost = True
            attempt.request_stop("claim_lost")

    def _executors(self) -> tuple[Any, ...]:
        return self._parts.threads, self._parts.loop, self._parts.processes

    # -- health

    def _watch(self) -> float:
        delay = self._parts.watchdog.tick()
        reason = self._ailment(time.monotonic())
        if reason and self._state == "running":
            self._state, self._reason = "unhealthy", reason
            log.critical("%s: this node claims no more; restart it", reason)
            self._try_beat()
        elif reason and self._state == "unhealthy":
            self._reason = reason
        elif not reason and self._state == "unhealthy":
            self._state, self._reason = "running", ""
            log.warning("the stuck bodies have ended: this node claims again")
            self._parts.poller.wake()
        return delay

    def _ailment(self, now: float) -> str:
        """Why this node should claim no more; empty if it is well (section 5)."""
        for executor in (self._parts.threads, self._parts.loop):
            bodies = stuck(executor, now)
            if executor.slots and 2 * len(bodies) >= executor.slots:
                return f"{len(bodies)} of {executor.slots} {executor.name} slots are stuck"
        if self._parts.loop.has_stalled(now):
            return "the event loop is blocked past the deadline of everything on it"
        return ""

    def stop_canceled(self, job_id: UUID) -> None:
        """A job was canceled from this process: if it runs here, ask it to stop without waiting for custody."""
        for attempt in list(self._known.values()):
            if attempt.claim.job_id == job_id and not attempt.is_decided:
                attempt.request_stop("canceled")

    def _try_beat(self) -> None:
        try:
            self.store.heartbeat(self._describe())
        except StoreError:
            log.info("the state will be reported with the next heartbeat")

    @property
    def state(self) -> str:
        """``running``, ``stopping`` or ``unhealthy``."""
        return self._state

    @property
    def reason(self) -> str:
        """Why it is unhealthy."""
        return self._reason

    @property
    def known(self) -> int:
        """How many claims this node holds."""
        return len(self._known)

    @property
    def parts(self) -> _Parts:
        """The parts, for tests and health."""
        return self._parts

    def _describe(self) -> NodeInfo:
        parts = self._parts
        detail = {each.name: f"{each.busy()}/{each.slots}" for each in self._executors() if each.slots}
        now = time.monotonic()
        bodies = (*stuck(parts.threads, now), *stuck(parts.loop, now))
        stuck_jobs = list(
            dict.fromkeys(str(each.claim.job_id) for each in bodies)
        )  # of a retried job several
        if stuck_jobs:
            detail["stuck"] = ",".join(stuck_jobs[:20])
        unresolved = parts.poller.left_out.unresolved()
        if unresolved:
            detail["unresolved"] = "; ".join(unresolved[:20])
        if self._reason:
            detail["reason"] = self._reason
        detail["settled"] = str(parts.endings.tally.settled)
        detail["refused"] = str(parts.endings.tally.refused)
        detail["recovered"] = str(parts.endings.tally.recovered)
        return replace(self.info, state=self._state, detail=detail)

    # -- stop

    def is_inside(self) -> bool:
        """True in a body or callback of this node, and on its event loop: who waits there waits for himself."""
        context = _current.get()
        if context is not None:
            if any(attempt.context is context for attempt in list(self._known.values())):
                return True
            if self._parts.callbacks.runs(context):
                return True
        loop = self._parts.loop.loop
        if loop is None:
            return False
        import asyncio  # there is a loop: it has been imported

        return asyncio._get_running_loop() is loop

    def hurry(self) -> None:
        """Skip what is left of the waiting in `stop` (a second signal)."""
        self._hurry.set()
        with self._idle:
            self._idle.notify_all()

    def stop(self, timeout: float = STOP_TIMEOUT) -> Stopped:
        """Stop claiming, give back what has not begun, wait, ask, release, deregister (section 10).

        Args:
            timeout: seconds for all of it.
        """
        parts = self._parts
        end = time.monotonic() + timeout
        self._stopping = True
        if self._state == "running":
            self._state = "stopping"
        parts.poller.stop(min(5.0, timeout / 2))
        parts.eager.close(min(5.0, timeout / 2, end - time.monotonic()))
        self._return_unstarted()
        self._wait_for_bodies(end - min(MAX_NOTICE, timeout / 2))
        for attempt in list(self._known.values()):
            attempt.request_stop("shutdown")
        self._wait_for_bodies(end)
        parts.poller.stop(max(end - time.monotonic(), 0.0))  # a claim under way gives back what it brings
        parts.eager.close(end - time.monotonic())
        released_ids = self._release_unfinished()
        written = parts.settler.flush(max(1.0, end - time.monotonic()))
        parts.callbacks.drain(max(0.1, min(1.0, end - time.monotonic())))
        unwritten = parts.settler.backlog
        running = (each.claim.job_id for executor in self._executors() for each in executor.running())
        still = tuple(dict.fromkeys(running))
        self._close(deregister=written, until=end)
        return Stopped(not (released_ids or still or unwritten), tuple(released_ids), still, unwritten)

    def _return_unstarted(self) -> None:
        for executor in self._executors():
            self._give_back(executor.withdraw(), "the node is stopping")

    def _bodies_running(self) -> int:
        return sum(each.busy() + each.waiting() for each in self._executors())

    def _wait_for_bodies(self, until: float) -> None:
        while self._bodies_running() and not self._hurry.is_set():
            left = until - time.monotonic()
            if left <= 0:
                return
            self._return_unstarted()
            with self._idle:
                self._idle.wait(min(left, 0.05))

    def _release_unfinished(self) -> list[UUID]:
        now = time.monotonic()
        unfinished: list[UUID] = []
        for attempt in list(self._known.values()):
            if not attempt.ended and attempt.take_verdict():
                unfinished.append(attempt.claim.job_id)
                attempt.request_stop("shutdown")
                self._parts.settler.put(Ended(attempt, released("shutdown"), now))
                if attempt.interrupt is not None:
                    attempt.interrupt()  # a child process would outlive the release
        return unfinished

    def _close(self, *, deregister: bool, until: float) -> None:
        parts = self._parts
        _bounded(self.coordinator.close, until)
        for loop in parts.loops:
            if loop.name != "heartbeat":
                loop.stop(0.5)
        for executor in self._executors():
            executor.close()
        parts.settler.close(1.0 if deregister else 0.1)  # what the flush could not write is left to recovery
        parts.callbacks.close()
        parts.bodies.close()
        for loop in parts.loops:  # heartbeats continue until the last claim is released
            loop.stop(0.5)
        if deregister and not _bounded(self._deregister, until):
            log.warning("this node could not deregister in time: the store does not answer")

    def _deregister(self) -> None:
        try:
            self.store.forget_node(self.info.incarnation)
        except StoreError as error:
            log.warning("this node could not deregister: %s", logs.told(error))


def _bounded(call: Callable[[], object], until: float) -> bool:
    """Make a call that a store which does not answer may hold up; True if it has ended in time (at least 1 s)."""
    thread = threading.Thread(target=call, name="ratchet-close", daemon=True)
    thread.start()
    thread.join(max(until - time.monotonic(), 1.0))
    return not thread.is_alive()


def _pace(settings: PollingSettings) -> PollSettings:
    return PollSettings(
        burst_delay=settings.burst,
        min_delay=settings.fastest,
        max_delay=settings.slowest,
        deep_idle_delay=settings.idle,
        deep_idle_after=settings.idle_after,
    )
