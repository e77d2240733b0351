"""Writes outcomes: groups what has ended into one commit, and keeps what cannot be written yet."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import Empty, SimpleQueue

from ratchet.domain.lifecycle import target_of
from ratchet.domain.outcome import decide
from ratchet.domain.settlement import Settlement
from ratchet.engine.attempt import Ended
from ratchet.engine.logs import Sparse, told, traced
from ratchet.engine.polling import error_delay
from ratchet.errors import StoreError
from ratchet.spi.store import JobStore, Refused, SettleAnswer, Settled

log = logging.getLogger("ratchet.engine")

Answered = Callable[[Sequence[tuple[Ended, Settlement | None, SettleAnswer | None]]], None]


class Settler:
    """One thread that turns ended attempts into settlements (section 5).

    Args:
        store: where they are written.
        batch_size: at most this many outcomes in one commit, and unwritten at any time.
        answered: called with each group after its commit: events, callbacks, book-keeping.
        draw: random numbers in [0, 1) for jitter.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        batch_size: int,
        answered: Answered,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._store, self._batch, self._answered, self._draw = store, batch_size, answered, draw
        self._queue: SimpleQueue[Ended | None] = SimpleQueue()
        self._in_flight = 0
        self._room = threading.Condition()
        self._thread: threading.Thread | None = None
        self._giving_up = threading.Event()
        self._lines = Sparse()

    def start(self) -> None:
        """Make the thread."""
        self._thread = threading.Thread(target=self._run, name="ratchet-settler", daemon=True)
        self._thread.start()

    def put(self, ended: Ended) -> None:
        """Hand over an outcome; never blocks."""
        self._queue.put(ended)

    @property
    def backlog(self) -> int:
        """Outcomes that the store has not answered yet."""
        return self._queue.qsize() + self._in_flight

    def wait_for_room(self) -> None:
        """Block a slot, before its next body, while `batch_size` outcomes are unwritten."""
        if self.backlog < self._batch:
            return
        with self._room:
            self._room.wait_for(lambda: self.backlog < self._batch or self._giving_up.is_set())

    def flush(self, timeout: float) -> bool:
        """Wait until everything handed over has been answered."""
        with self._room:
            return self._room.wait_for(lambda: self.backlog == 0, timeout)

    def close(self, timeout: float = 1.0) -> None:
        """End the thread after what is queued; after `timeout` give up on a store that does not answer."""
        self.flush(timeout)
        self._giving_up.set()
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(timeout)
        with self._room:
            self._room.notify_all()

    def _run(self) -> None:
        while True:
            first = self._queue.get()
            if first is None:
                return
            self._in_flight = 1
            group, last = self._gather(first)
            try:
                self._write(group)
            except BaseException as error:  # noqa: BLE001 - the thread serves the next group
                log.error("internal error while settling; the claims are left to recovery\n%s", traced(error))
            self._in_flight = 0
            with self._room:
                self._room.notify_all()
            del first, group
            if last:
                return

    def _gather(self, first: Ended) -> tuple[list[Ended], bool]:
        group = [first]
        get = self._queue.get_nowait
        try:
            while len(group) < self._batch:
                item = get()
                if item is None:
                    return group, True
                group.append(item)
                self._in_flight = len(group)
        except Empty:
            pass
        return group, False

    def _write(self, group: list[Ended]) -> None:
        now = time.monotonic()
        entries: list[tuple[Ended, Settlement | None]] = []
        for ended in group:
            age = timedelta(seconds=max(now - ended.at, 0.0))
            claim = ended.attempt.claim
            entries.append(
                (ended, decide(claim, ended.outcome, age=age, answer=ended.answer, draw=self._draw()))
            )
        settlements = [settlement for _, settlement in entries if settlement is not None]
        answers = iter(self._commit(settlements, now)) if settlements else iter(())
        answered = [
            (ended, settlement, next(answers, None) if settlement is not None else None)
            for ended, settlement in entries
        ]
        self._answered(answered)

    def _commit(self, settlements: list[Settlement], since: float) -> Sequence[SettleAnswer]:
        failures = 0
        while True:
            try:
                if failures:
                    settlements = _older(settlements, time.monotonic() - since)
                    since = time.monotonic()
                answers = self._store.settle_many(settlements)
                if failures:
                    answers = [self._recognize(*each) for each in zip(settlements, answers, strict=True)]
                return answers
            except Exception as error:  # noqa: BLE001 - a third party's store; the outcome is kept whatever it raises
                if not isinstance(error, StoreError):
                    if len(settlements) > 1:  # one bad entry must not hold up the others
                        return [answer for each in settlements for answer in self._commit([each], since)]
                    job_id = settlements[0].change.job_id
                    log.error("the store itself refuses the outcome of job %s\n%s", job_id, traced(error))
                    return [Refused(settlements[0].change.job_id, None, "the store raised")]
                failures += 1
                if self._lines.wants(failures):
                    count = len(settlements)
                    log.error(
                        "outcomes of %d jobs cannot be written, kept and tried again: %s", count, told(error)
                    )
                    if failures == 1:
                        log.debug("where writing outcomes failed first\n%s", traced(error))
                if self._giving_up.wait(error_delay(failures, jitter=random.random())):
                    return ()

    def _recognize(self, settlement: Settlement, answer: SettleAnswer) -> SettleAnswer:
        """A refusal after a failed try may be our own doing: that try was applied, and only its answer was lost.

        History tells: it has one row per ended claim, and the same trigger on our claim can only be ours. Taken
        for a refusal, the settlement would have no event, and its callback would wait for this node's death.
        """
        change = settlement.change
        if not isinstance(answer, Refused) or answer.current is None:
            return answer
        for entry in self._store.history(change.job_id):
            if entry.claim_seq == change.claim_seq and entry.trigger is change.trigger:
                job = answer.current
                return Settled(
                    job_id=job.id,
                    status=target_of(job, change),
                    version=job.version,
                    now=job.updated_at,  # of the commit, unless the job has moved on since
                    scheduled_time=job.scheduled_time,
                    queue_wait=job.queue_wait or timedelta(),
                )
        return answer


def _older(settlements: list[Settlement], seconds: float) -> list[Settlement]:
    """The same settlements, their bodies' ends `seconds` further in the past."""
    from dataclasses import replace

    more = timedelta(seconds=seconds)
    return [replace(each, change=replace(each.change, age=each.change.age + more)) for each in settlements]
