"""The node's own watchers: deadlines, heartbeat, custody of claims, and the sweep for dead nodes."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from ratchet.defaults.sanitizer import sanitize_text
from ratchet.domain.lifecycle import Status, Trigger
from ratchet.domain.outcome import timed_out
from ratchet.domain.settlement import Change, RunCallback, Settlement
from ratchet.engine.attempt import Attempt, Ended
from ratchet.engine.identity import is_gone
from ratchet.engine.logs import Sparse, told, traced
from ratchet.errors import StoreError
from ratchet.spi.store import JobStore, Node, NodeInfo, Orphan, RecoverRequest, Settled

if TYPE_CHECKING:
    from ratchet.domain.job import Job
    from ratchet.engine.ending import Callbacks, Endings
    from ratchet.engine.slots import LoopSlots, ThreadSlots
    from ratchet.settings import NodeSettings, TimeoutSettings

log = logging.getLogger("ratchet.engine")
Known = Mapping[tuple[UUID, int], Attempt]


class Loop:
    """A daemon thread that does one thing again and again; an error never ends it, and is not a flood in the log.

    Args:
        name: for the thread and the log.
        step: does it once; answers how many seconds to wait before the next time.
        patience: the longest wait, in seconds, after a step that failed.
    """

    def __init__(self, name: str, step: Callable[[], float], *, patience: float = 1.0) -> None:
        self.name, self._step, self._patience = name, step, patience
        self.failures = 0
        self._lines = Sparse()
        self._after = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ratchet-{name}", daemon=True)

    def start(self, after: float = 0.0) -> None:
        """Begin, with the first step `after` so many seconds."""
        self._after = after
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def stop(self, timeout: float = 2.0) -> None:
        """End after the step under way; waits up to `timeout` seconds for it."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        delay = self._after
        while not self._stop.wait(delay):
            try:
                delay = self._step()
                self.failures = 0
            except Exception as error:  # noqa: BLE001 - whatever it is, the loop goes on
                self.failures += 1
                delay = min(self._patience, 0.1 * 2 ** min(self.failures, 4))
                if self._lines.wants(self.failures):
                    text = told(error) if isinstance(error, StoreError) else traced(error)
                    log.warning("%s failed (%d in a row): %s", self.name, self.failures, text)


class Heartbeat:
    """Reports this incarnation as alive, and knows how far its own word can be trusted (section 9)."""

    def __init__(self, store: JobStore, settings: NodeSettings, info: Callable[[], NodeInfo]) -> None:
        self._store, self._settings, self._info = store, settings, info
        self.interval = settings.heartbeat_interval
        self.last_sent: float = time.monotonic()
        self.skew: float = 0.0
        self._skewed = False
        self._calm_since: float | None = None
        self._last_try: float | None = None
        self._last_answer: tuple[datetime, float] | None = None

    def beat(self) -> float:
        """Send one; answers the delay until the next."""
        sent = time.monotonic()
        late = self._last_try is not None and sent - self._last_try > 2 * self.interval
        self._last_try = sent
        wall = time.time()
        try:
            answer = self._store.heartbeat(self._info())
        except BaseException:
            self._calm_since = None
            raise
        took = time.monotonic() - sent
        self.last_sent = sent
        self._note_skew(answer.timestamp() - wall, took)
        jumped = self._has_jumped(answer, sent)
        if late or jumped or self._calm_since is None:
            self._calm_since = sent
        # Under load the interval only shrinks: a slow answer must not be followed by a long silence.
        return max(self.interval / 2 if took > self.interval / 4 else self.interval, 0.05)

    def _note_skew(self, skew: float, took: float) -> None:
        passed = abs(skew) > 1.0 + took
        before, self._skewed, self.skew = self._skewed, passed, skew
        if passed and not before:  # once each time, not with every heartbeat
            log.warning("this node's clock differs from the store's by %.1f s; the store's counts", skew)

    def silent_for(self) -> float:
        """Seconds since the sending of the last heartbeat that succeeded."""
        return time.monotonic() - self.last_sent

    def _has_jumped(self, answer: datetime, sent: float) -> bool:
        """True if store time has left monotonic time behind since the last heartbeat, by more than may be.

        A machine that was suspended, or a clock that was set: everyone looks dead until he has reported
        himself again. Up to half the grace nobody does: a heartbeat is at most a third of it old.
        """
        last, self._last_answer = self._last_answer, (answer, sent)
        if last is None:
            return False
        ahead = (answer - last[0]).total_seconds() - (sent - last[1])
        return ahead > self._settings.orphan_grace.total_seconds() / 2

    def vouches_for(self, own: Node) -> bool:
        """True if this node, as it is registered, shows that store time can be trusted now.

        One that looks half dead itself, though it lives, judges nobody until its own heartbeats have
        succeeded for two intervals; nor does one whose latest heartbeat is still being answered.
        """
        if own.age > self._settings.orphan_grace / 2:
            self._calm_since = None
        last = self._last_answer
        return self.may_recover and last is not None and last[0] == own.last_heartbeat

    @property
    def may_recover(self) -> bool:
        """True once own heartbeats have succeeded for two intervals: an outage makes everyone look dead."""
        calm = self._calm_since
        return calm is not None and time.monotonic() - calm >= 2 * self.interval


class Watchdog:
    """Deadlines of attempts, and the fence of a node that cannot heartbeat.

    Args:
        known: what the node holds.
        settings: warnings and grace.
        timed_out: takes the outcome of an attempt whose deadline has passed.
        stop_hard: ends a body by force.
        lose: marks all claims lost.
    """

    def __init__(
        self,
        known: Known,
        settings: TimeoutSettings,
        *,
        put: Callable[[Ended], None],
        timeout_text: Callable[[Attempt], str],
        stop_hard: Callable[[Attempt], None],
        fence_after: float,
        heartbeat: Heartbeat,
        lose: Callable[[], None],
    ) -> None:
        self._known, self._settings = known, settings
        self._put, self._timeout_text, self._stop_hard = put, timeout_text, stop_hard
        self._fence_after, self._heartbeat, self._lose = fence_after, heartbeat, lose
        self.fenced = False
        self._warn_left = 1.0 - settings.warn_at
        self._grace = settings.grace.total_seconds()

    def tick(self) -> float:
        """One look at everything; answers the delay until the next."""
        self._fence()
        now = time.monotonic()
        nearest = 0.05  # an attempt that starts after this look is late by no more than this
        for attempt in list(self._known.values()):
            deadline = attempt.deadline
            if deadline is None or attempt.ended or attempt.is_decided:
                continue
            timeout = attempt.claim.timeout.total_seconds()
            left = deadline - now
            if left <= 0:
                self._expire(attempt)
                continue
            if 0 < self._grace < timeout and left <= self._grace:
                attempt.request_stop("timeout")
            if not attempt.warned and left <= timeout * self._warn_left:
                attempt.warned = True
                log.warning("job %s has used %.0f %% of its %s", attempt.claim.job_id, 100 * self._settings.warn_at,
                            attempt.claim.timeout)  # fmt: skip
            nearest = min(nearest, left)
        return max(nearest, 0.002)

    def _expire(self, attempt: Attempt) -> None:
        if not attempt.take_verdict():
            return
        now = time.monotonic()
        duration = timedelta(seconds=now - (attempt.started or now))
        attempt.request_stop("timeout")
        log.error("job %s overran its %s and is stopped", attempt.claim.job_id, attempt.claim.timeout)
        self._put(Ended(attempt, timed_out(self._timeout_text(attempt), duration), now))
        self._stop_hard(attempt)

    def _fence(self) -> None:
        silent = self._heartbeat.silent_for()
        if silent >= self._fence_after:
            if not self.fenced:
                self.fenced = True
                log.error("no heartbeat for %.1f s: every claim of this node counts as lost", silent)
                self._lose()
        elif self.fenced:
            self.fenced = False
            log.warning("heartbeats succeed again")


class Custody:
    """Once a second: do the store and this node agree on what the node holds (section 5)."""

    UNKNOWN_FOR: Final = 10.0

    def __init__(
        self, store: JobStore, incarnation: str, known: Known, *, claim_sent: Callable[[], float | None]
    ) -> None:
        self._store, self._incarnation, self._known = store, incarnation, known
        self._claim_sent = claim_sent
        self._unknown: dict[tuple[UUID, int], float] = {}

    def suspect(self, job_id: UUID) -> None:
        """An insert with a claim has failed: if the claim was stored all the same, it goes back at once."""
        self._unknown[job_id, 1] = -math.inf

    def check(self) -> float:
        """One comparison; answers the delay until the next."""
        mine = [attempt for attempt in list(self._known.values()) if not attempt.is_decided]
        asked = time.monotonic()
        held = {(job_id, seq) for job_id, seq in self._store.held(self._incarnation)}
        for attempt in mine:
            if attempt.key not in held and not attempt.is_decided and attempt.started is not None:
                self._ask_why(attempt)
        self._look_for_unknown(held, asked)
        return 1.0

    def _ask_why(self, attempt: Attempt) -> None:
        job = self._store.get(attempt.claim.job_id)
        if attempt.is_decided:
            return
        if job is not None and job.claim_seq == attempt.claim.claim_seq and job.status is Status.RUNNING:
            return
        canceled = job is not None and job.status is Status.CANCELED
        attempt.request_stop("canceled" if canceled else "claim_lost")

    def _look_for_unknown(self, held: set[tuple[UUID, int]], asked: float) -> None:
        unknown = {key for key in held if key not in self._known}
        self._unknown = {key: self._unknown.get(key, asked) for key in unknown}
        sent = self._claim_sent()
        for key, since in list(self._unknown.items()):
            if asked - since >= self.UNKNOWN_FOR and (sent is None or sent >= since):
                job_id, claim_seq = key
                log.warning("job %s is claimed by this node, which does not know it: released", job_id)
                self._store.settle(Settlement(Change(Trigger.RELEASE, job_id, claim_seq)))
                self._unknown.pop(key, None)


class Sweep:
    """Takes back the claims of dead nodes, and their callbacks (section 9)."""

    def __init__(
        self,
        store: JobStore,
        settings: NodeSettings,
        info: NodeInfo,
        *,
        heartbeat: Heartbeat,
        endings: Endings,
        callbacks: Callbacks,
        wake: Callable[[], None],
    ) -> None:
        self._store, self._settings, self._info = store, settings, info
        self._heartbeat, self._endings, self._callbacks, self._wake = heartbeat, endings, callbacks, wake
        self._unsure: dict[tuple[UUID, int], tuple[Job, str]] = {}

    def run(self) -> float:
        """One sweep, if this node may judge others at all; answers the delay until the next."""
        if not self._heartbeat.may_recover:
            return min(self._heartbeat.interval, 1.0)
        grace = self._settings.orphan_grace
        nodes = self._store.nodes()
        own = next((node for node in nodes if node.info.incarnation == self._info.incarnation), None)
        if own is None or not self._heartbeat.vouches_for(own):
            return min(self._heartbeat.interval, 1.0)
        gone = frozenset(node.info.incarnation for node in nodes if is_gone(node, self._info))
        request = RecoverRequest(
            grace=grace,
            crash_budget=self._settings.max_crash_redeliveries,
            known_gone=gone,
            never=frozenset({self._info.incarnation}),
        )
        self._make_sure()
        self._recover(request)
        self._take_callbacks()
        for node in nodes:
            dead = node.info.incarnation in gone or node.age > grace
            other = node.info.incarnation != self._info.incarnation
            if dead and other and not self._store.held(node.info.incarnation):
                self._store.forget_node(node.info.incarnation)
        return self._settings.sweep_interval

    def at_start(self) -> None:
        """Recover at once what earlier incarnations of this name left that are certainly gone."""
        gone = frozenset(
            node.info.incarnation
            for node in self._store.nodes()
            if node.info.name == self._info.name and is_gone(node, self._info)
        )
        if gone:
            request = RecoverRequest(
                grace=self._settings.orphan_grace,
                crash_budget=self._settings.max_crash_redeliveries,
                known_gone=gone,
                never=frozenset({self._info.incarnation}),
                only_known_gone=True,
            )
            self._recover(request)

    def _recover(self, request: RecoverRequest) -> None:
        while True:
            recovery = self._store.recover(request)
            for orphan in recovery.recovered:
                self._endings.tally.recovered += 1
                log.warning("job %s recovered from dead node %s (crash %d)", orphan.job_id, orphan.incarnation,
                            orphan.crash_count)  # fmt: skip
            if recovery.recovered:
                self._wake()
            failed = sum(not self._fail(orphan) for orphan in recovery.exhausted)
            for problem in recovery.errors:
                log.error("a job could not be recovered and is tried again: %s", sanitize_text(problem))
            progress = len(recovery.recovered) + len(recovery.exhausted) - failed
            if not recovery.more or not progress:
                return

    def _fail(self, orphan: Orphan) -> bool:
        """Settle a job whose crash budget is spent; one that cannot be settled now is left to the next sweep."""
        key = orphan.job_id, orphan.claim_seq
        error = f"NodeCrashed: the node running this job died {orphan.crash_count + 1} times"
        try:
            job = self._store.get(orphan.job_id)
            if job is None:
                return False
            self._unsure[key] = job, error
            effects = () if job.on_failure is None else (RunCallback("on_failure", job.on_failure, error),)
            change = Change(Trigger.CRASH_FAIL, job.id, orphan.claim_seq, error=error)
            answer = self._store.settle(Settlement(change, effects))
        except Exception as problem:  # noqa: BLE001 - whatever one job raises, it costs no other its recovery
            log.error("job %s could not be failed and is tried again: %s", orphan.job_id, told(problem))
            return False
        self._unsure.pop(key, None)
        if not isinstance(answer, Settled):
            return False
        self._failed(job, error, answer.now)
        return True

    def _failed(self, job: Job, error: str, at: datetime) -> None:
        log.error("job %s failed: %s", job.id, error)
        self._endings.failed(
            error, job.attempts, job_id=job.id, attempt=job.attempts + 1, at=at, node=self._info.name
        )

    def _make_sure(self) -> None:
        """Tell of jobs that were failed after all, where the store's answer was lost."""
        for key, (job, error) in list(self._unsure.items()):
            for entry in self._store.history(job.id):
                if entry.claim_seq == key[1] and entry.trigger is Trigger.CRASH_FAIL:
                    self._failed(job, error, entry.ended_at)
            self._unsure.pop(key, None)  # if it was not, the next pass reports it again

    def _take_callbacks(self) -> None:
        for pending in self._store.take_callbacks(
            self._info.incarnation, grace=self._settings.orphan_grace, limit=100
        ):
            self._callbacks.put(pending)


def stuck(executor: ThreadSlots | LoopSlots, now: float) -> list[Attempt]:
    """Attempts whose outcome is written though their body still runs."""
    return [
        each
        for each in executor.running()
        if each.is_decided and each.deadline is not None and now > each.deadline + 1
    ]
