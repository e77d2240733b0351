"""The poller: one thread that claims what this node can take and hands it to the executors."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from ratchet.domain.lifecycle import UNSCHEDULED
from ratchet.engine.apart import ALONE_FOR, first_strong, parted
from ratchet.engine.attempt import Attempt
from ratchet.engine.logs import Sparse, told
from ratchet.engine.polling import (
    Observation,
    PollSettings,
    PollState,
    error_delay,
    next_delay,
    woken_up,
)
from ratchet.spi.executor import Executor, ExecutorRefused
from ratchet.spi.store import Claimed, ClaimRequest, JobStore

if TYPE_CHECKING:
    from ratchet.domain.job import Claim, NewJob
    from ratchet.engine.settler import Settler
    from ratchet.settings import ExecutionSettings

log = logging.getLogger("ratchet.engine")

REFUSED_FIRST: Final = 1.0
REFUSED_MOST: Final = 60.0
UNKNOWN_FIRST: Final = 30.0
UNKNOWN_MOST: Final = 600.0
SMOOTHING: Final = 0.2
NOT_SHORT: Final = 0.1


class LeftOut:
    """(target, payload format) pairs that this node cannot run at present: for 30 s, doubling to 10 minutes."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, int], tuple[float, float, float]] = {}
        self._lock = threading.Lock()

    def add(self, pair: tuple[str, int]) -> None:
        """It could not be run just now."""
        now = time.monotonic()
        with self._lock:
            until, wait, since = self._until.get(pair, (0.0, 0.0, now))
            if now >= until:
                wait = min(wait * 2, UNKNOWN_MOST) if wait else UNKNOWN_FIRST
                self._until[pair] = (now + wait, wait, since)

    def forget(self, pair: tuple[str, int]) -> None:
        """It ran after all."""
        if self._until:
            with self._lock:
                self._until.pop(pair, None)

    def now(self) -> frozenset[tuple[str, int]]:
        """The pairs to leave out of a claim sent now."""
        if not self._until:
            return frozenset()
        now = time.monotonic()
        with self._lock:
            return frozenset(pair for pair, (until, _, _) in self._until.items() if until > now)

    def next_try(self) -> float | None:
        """Seconds until the next pair may be asked for again."""
        if not self._until:
            return None
        now = time.monotonic()
        with self._lock:
            waits = [until - now for until, _, _ in self._until.values() if until > now]
        return min(waits, default=None)

    def unresolved(self, older_than: float = 3600.0) -> list[str]:
        """Targets that this node has not been able to run for that long (seconds)."""
        now = time.monotonic()
        with self._lock:
            return [f"{target} (format {fmt})" for (target, fmt), (_, _, since) in self._until.items()
                    if now - since >= older_than]  # fmt: skip


class Pace:
    """The measured mean duration of the bodies of one executor."""

    def __init__(self) -> None:
        self.mean: float | None = None

    def saw(self, seconds: float) -> None:
        """A body took this long."""
        mean = self.mean
        self.mean = seconds if mean is None else mean + SMOOTHING * (seconds - mean)


class Poller:
    """Claims in the pace of `ratchet.engine.polling`; no store error ends it (sections 3 and 4).

    Args:
        store: where it claims.
        incarnation: for whom.
        executors: what can run here.
        settler: whose backlog bounds what is taken.
        settings: slots, batch size, filters.
        pace: bounds of the delays.
        received: called with each new attempt before it is handed over (it is *known* from then on).
        give_back: called with attempts that will not begin here: they are released.
        may_claim: False while the node is fenced, stopping or unhealthy.
        watch: tells the coordinator whether a hint would be of use.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        incarnation: str,
        executors: Mapping[str, Executor[Attempt]],
        settler: Settler,
        settings: ExecutionSettings,
        pace: PollSettings,
        received: Callable[[Attempt], None],
        give_back: Callable[[list[Attempt], str], None],
        may_claim: Callable[[], bool],
        watch: Callable[[bool], None],
    ) -> None:
        self._store, self._incarnation, self._executors = store, incarnation, executors
        self._settler, self._settings, self._pace_settings = settler, settings, pace
        self._received, self._give_back, self._may_claim, self._watch = received, give_back, may_claim, watch
        self.left_out = LeftOut()
        self.paces = {name: Pace() for name in executors}
        self.state = PollState()
        self.claim_sent: float | None = None
        self._wake = threading.Event()
        self._wake_came = False
        self._woken = False
        self._asked = False
        self._backlog: set[str] = set()
        self._asked_all = -math.inf
        self._returned: set[str] = set()
        self._low_mark = 1
        self._stop = threading.Event()
        self._due_at = math.inf
        self._due_lock = threading.Lock()
        self._failures = 0
        self._lines = Sparse()
        self._resting: dict[str, tuple[float, float]] = {}
        self._watching: bool | None = None
        self._risky: set[Attempt] = set()
        self._alone: tuple[Attempt, float] | None = None
        self._nothing_ahead_before = -math.inf
        self._thread: threading.Thread | None = None

    # -- what others may tell it

    def start(self) -> None:
        """Make the thread."""
        self._thread = threading.Thread(target=self._run, name="ratchet-poller", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is work: leave deep idle, poll at once, then in bursts."""
        self._woken = True
        if not self._wake.is_set():
            self._wake.set()

    def look(self) -> None:
        """Something changed in the store, nobody knows what: poll once, without a burst."""
        self._asked = True
        if not self._wake.is_set():
            self._wake.set()

    def refill(self) -> None:
        """A slot is free: if more is known to be due, take it at once."""
        if self._backlog and not self._wake.is_set() and self._waiting() < self._low_mark:
            self._wake.set()

    def _waiting(self) -> int:
        return sum(each.waiting() for each in self._executors.values())

    def has_room_for(self, new: NewJob) -> bool:
        """True if this node would claim the job at once, were it stored now (asked by submitting threads)."""
        executor, now = self._executors.get(new.executor), time.monotonic()
        return (
            executor is not None
            and executor.busy() + executor.waiting() < executor.slots
            and self._asked_all > -math.inf  # it has looked once; what was there before it came goes first
            and not (self._backlog or self._wake.is_set() or self.claim_sent is not None)
            and self._due_at > now
            and self._alone is None
            and new.executor not in self._resting
            and self._settings.require_tags <= new.tags
            and self._settings.exclude_tags.isdisjoint(new.tags)
            and (new.target, new.format) not in self.left_out.now()
            and not self._stop.is_set()
            and self._may_claim()
        )

    def take(self, claim: Claim, sent: float) -> None:
        """A claim that came with a submission: to its slot, or back to the store if there is none any more."""
        attempt = Attempt(claim, sent)
        self._received(attempt)
        if self._stop.is_set():
            self._give_back([attempt], "the node is stopping")
        elif self._alone is not None:  # a strong suspect has come in between: nothing begins beside it
            self._return([attempt], "not begun beside a job that has crashed before")
        elif not self._submit(attempt):
            self._give_back([attempt], "refused by the executor")

    def due_in(self, delay: timedelta) -> None:
        """A job of this node's own becomes due after `delay`: sleep no longer than that."""
        due_at = time.monotonic() + delay.total_seconds() + 0.001
        with self._due_lock:
            sooner = due_at < self._due_at
            self._due_at = min(due_at, self._due_at)
        if sooner and not self._wake.is_set():
            self._wake.set()

    def stop(self, timeout: float = 5.0) -> None:
        """Claim no more; returns when the loop has ended, or after `timeout` seconds with a claim that hangs.

        What such a claim still brings is given back at once.
        """
        self._stop.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    # -- the loop

    def _run(self) -> None:
        delay, polled_at = 0.0, time.monotonic()
        while not self._stop.is_set():
            self._wake_came = self._wake.wait(delay) if delay > 0 else False
            if self._stop.is_set():
                return
            self._wake.clear()
            woken, self._woken = self._woken, False
            # A poll that only refills a slot asks for nothing but the executors whose backlog is known.
            timer = (delay > 0 and not self._wake_came) or self._due_at <= time.monotonic()
            # Now and then the others too: without wake-ups between nodes nobody tells of their jobs.
            timer = timer or time.monotonic() - self._asked_all >= self._pace_settings.burst_delay
            only_backlog = not (woken or self._asked or timer)
            self._asked = False
            if woken:
                self.state = woken_up(self.state)
            now = time.monotonic()
            try:
                delay = self._poll(elapsed=now - polled_at, only_backlog=only_backlog)
                if self._waiting():  # to give them back in time, should they not begin
                    delay = min(delay, self._pace_settings.burst_delay)
                self._failures = 0
            except Exception as error:  # noqa: BLE001 - whatever a store raises, the poller goes on
                self._failures += 1
                if self._lines.wants(self._failures):
                    log.warning("claiming failed (%d in a row): %s", self._failures, told(error))
                # Wake-ups do not cut the wait short, stopping does.
                self._stop.wait(error_delay(self._failures, jitter=random.random()))
                delay, self._asked = 0.0, True
            polled_at = now

    def _poll(self, *, elapsed: float, only_backlog: bool) -> float:
        self._return_stale()
        limits = self._limits()
        free = any(limits.values())
        full = set(self._executors) - set(limits)
        if only_backlog:
            limits = {name: limit for name, limit in limits.items() if name in self._backlog}
        else:
            self._asked_all = time.monotonic()
        total = sum(limits.values())
        self._tell_watcher(free)
        now = time.monotonic()
        if not total or not self._may_claim():
            self._backlog |= self._take_returned()
            self.state, delay = next_delay(
                self.state,
                Observation(
                    claimed=0,
                    asked=0,
                    free_slots=0,
                    utilisation=1.0,
                    elapsed=elapsed,
                    until_next_due=self._until_due() if free else None,
                ),
                self._pace_settings,
            )
            return min(delay, 1.0)
        limit = min(total, self._settings.batch_size)
        request = ClaimRequest(
            incarnation=self._incarnation,
            limits=limits,
            limit=limit,
            boost_interval=self._settings.boost_interval,
            require_tags=self._settings.require_tags,
            exclude_tags=self._settings.exclude_tags,
            leave_out=self.left_out.now(),
        )
        with self._due_lock:  # what is said from here on may be missing from the answer
            before, self._due_at = self._due_at, math.inf
        self.claim_sent = now
        try:
            claimed = self._store.claim(request)
        except BaseException:
            with self._due_lock:
                self._due_at = min(before, self._due_at)
            raise
        finally:
            self.claim_sent = None
        self._hand_over(claimed, now)
        if claimed.claims:
            time.sleep(0)  # lets go of the interpreter: the bodies begin before the next delay is worked out
        delay = self._pace(claimed, request, elapsed, before, full)
        return delay if self._alone is None else min(delay, 1.0)

    def _pace(
        self, claimed: Claimed, request: ClaimRequest, elapsed: float, before: float, full: set[str]
    ) -> float:
        got = len(claimed.claims)
        asked = set(request.limits)
        returned = self._take_returned()
        # Of an executor that was full or resting nothing is known: ask when a slot is free.
        self._backlog = (self._backlog - asked) | _with_more(claimed, request) | full | returned
        self._learn_due(claimed, before if set(self._executors) - asked else math.inf)
        limits = self._limits()
        slots = sum(each.slots for each in self._executors.values()) or 1
        busy = sum(min(each.busy() + each.waiting(), each.slots) for each in self._executors.values())
        self.state, delay = next_delay(
            self.state,
            Observation(
                claimed=got,
                asked=request.limit,
                free_slots=sum(limit for name, limit in limits.items() if name in self._backlog or not got),
                utilisation=busy / slots,
                woken=self._woken,
                more_due=claimed.more or bool(returned),
                elapsed=elapsed,
                until_next_due=self._until_due(),
            ),
            self._pace_settings,
        )
        return delay

    def _learn_due(self, claimed: Claimed, before: float) -> None:
        """Merge the store's answer with what was said since the claim was sent, and what it did not cover."""
        now = time.monotonic()
        due_at = before if before > now else math.inf
        if claimed.next_due is not None and claimed.next_due != UNSCHEDULED:
            due_at = min(due_at, now + (claimed.next_due - claimed.now).total_seconds() + 0.001)
        with self._due_lock:
            self._due_at = min(due_at, self._due_at)

    def _until_due(self) -> float | None:
        """Seconds until the next known due time, or until a left-out target may be asked for again."""
        with self._due_lock:
            due_at = self._due_at
        waits = [due_at - time.monotonic()] if due_at != math.inf else []
        next_try = self.left_out.next_try()
        return min([*waits, next_try] if next_try is not None else waits, default=None)

    # -- capacity

    def _limits(self) -> dict[str, int]:
        """Executor -> how many to ask for, those ahead of a free slot included."""
        limits: dict[str, int] = {}
        now = time.monotonic()
        if self._runs_alone(now):
            return limits
        room = self._settings.batch_size
        for name, executor in self._executors.items():
            if not executor.slots or self._resting.get(name, (0.0, 0.0))[0] > now:
                continue
            busy, waiting = executor.busy(), executor.waiting()
            free = executor.slots - busy - waiting
            extra = 0
            mean = self.paces[name].mean
            horizon = self._settings.ahead.total_seconds()
            calm = not self._risky and now >= self._nothing_ahead_before
            if calm and mean is not None and mean < horizon:
                # A body that has run for longer already is no short one: nothing is expected to start there.
                long = sum(
                    1
                    for each in executor.running()
                    if each.started is not None and now - each.started > horizon
                )
                expected = max(executor.slots - long, 0) * horizon / max(mean, 1e-6)
                extra = min(int(expected), room) - max(waiting - max(executor.slots - busy, 0), 0)
            take = min(max(free, 0) + max(extra, 0), max(room - waiting, 0))
            if extra > 0 and free <= 0 and waiting * 2 > room:
                take = 0  # enough is waiting: a claim for a handful would cost as much as one for many
            if take > 0:
                limits[name] = take
                self._low_mark = max(take // 2, 1)
        return limits

    def _tell_watcher(self, active: bool) -> None:
        if active is not self._watching:
            self._watching = active
            self._watch(active)

    # -- handing over

    def _hand_over(self, claimed: Claimed, sent: float) -> None:
        attempts = [Attempt(claim, sent) for claim in claimed.claims]
        for attempt in attempts:
            self._received(attempt)
        if self._stop.is_set():  # answered while the node stops
            self._give_back(attempts, "the node is stopping")
            return
        self._risky = {each for each in self._risky if not each.answered}
        if any(attempt.claim.crash_count for attempt in attempts):
            attempts = self._keep_apart(attempts)
        refused = [attempt for attempt in attempts if not self._submit(attempt)]
        if refused:
            self._give_back(refused, "refused by the executor")

    def _submit(self, attempt: Attempt) -> bool:
        """Hand it to its executor; False if that refuses."""
        executor = self._executors[attempt.claim.executor]
        try:
            executor.submit(attempt)
        except Exception as error:  # noqa: BLE001 - a refusal is an answer whatever its type
            if not isinstance(error, ExecutorRefused):
                log.error("executor %s failed to take a job: %s", executor.name, type(error).__name__)
            self._rest(attempt.claim.executor)
            return False
        self._resting.pop(attempt.claim.executor, None)
        return True

    def _keep_apart(self, attempts: list[Attempt]) -> list[Attempt]:
        """A batch with a job that has crashed a node before: see `ratchet.engine.apart`."""
        strong = first_strong(attempts) is not None
        back: list[Attempt] = []
        if strong:
            back += self._withdrawn(self._executors.values())
        room = {name: each.slots - each.busy() - each.waiting() for name, each in self._executors.items()}
        keep, too_many = parted(attempts, room)
        back = too_many + back
        if not strong:  # unstarted ones of earlier batches too
            executors = self._executors.values()
            back += self._withdrawn(e for e in executors if e.waiting() + e.busy() > e.slots)
        if back:
            self._return(back, "not claimed ahead beside a job that has crashed before")
        now = time.monotonic()
        self._nothing_ahead_before = now + self._pace_settings.burst_delay
        self._risky |= {each for each in keep if each.claim.crash_count}
        if strong and keep:
            self._alone = keep[0], now + ALONE_FOR
            self._returned |= set(self._executors)  # to be asked as soon as it has ended
            job_id, crashes = keep[0].claim.job_id, keep[0].claim.crash_count
            log.warning("job %s has crashed %d nodes: nothing else begins beside it", job_id, crashes)
        return keep

    @staticmethod
    def _withdrawn(executors: Iterable[Executor[Attempt]]) -> list[Attempt]:
        return [attempt for each in executors for attempt in each.withdraw()]  # type: ignore[misc]

    def _runs_alone(self, now: float) -> bool:
        """True while a strong suspect runs, for at most `ALONE_FOR`: whoever began now might go down with it."""
        if self._alone is None:
            return False
        attempt, until = self._alone
        if attempt.ended or now >= until:
            self._alone = None
        return self._alone is not None

    def _rest(self, name: str) -> None:
        now = time.monotonic()
        until, wait = self._resting.get(name, (0.0, 0.0))
        if now >= until:
            wait = min(wait * 2, REFUSED_MOST) if wait else REFUSED_FIRST
            self._resting[name] = (now + wait, wait)
            log.warning("executor %s refused a job; it is asked again in %g s", name, wait)

    def _return_stale(self) -> None:
        """Release what was claimed ahead and has not started within a burst interval."""
        oldest = time.monotonic() - self._pace_settings.burst_delay
        for executor in self._executors.values():
            if not executor.waiting() or executor.busy() < executor.slots:
                continue
            waiting: list[Attempt] = executor.withdraw()  # type: ignore[assignment]
            stale = [each for each in waiting if each.sent < oldest]
            for attempt in waiting:
                if attempt.sent >= oldest:
                    executor.submit(attempt)
            if stale:
                self._return(stale, "claimed ahead, but no slot became free")

    def _return(self, attempts: list[Attempt], why: str) -> None:
        """Give back what is due and waits for a slot: the next one that becomes free is refilled at once."""
        self._returned |= {each.claim.executor for each in attempts}
        self._give_back(attempts, why)

    def _take_returned(self) -> set[str]:
        returned, self._returned = self._returned, set()
        return returned


def _with_more(claimed: Claimed, request: ClaimRequest) -> set[str]:
    """The executors that may have left something due behind.

    The store says `more` of all together. One that was given as many as it could take explains it, and then
    one that was given fewer has nothing left, unless the limit in all cut the answer short.
    """
    if not claimed.more:
        return set()
    asked = set(request.limits)
    given = Counter(claim.executor for claim in claimed.claims)
    sated = {name for name in asked if given[name] >= request.limits[name]}
    return sated if sated and len(claimed.claims) < request.limit else asked
