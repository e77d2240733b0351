"""A job that is submitted where a slot is free for it is inserted as claimed: one commit and one hop fewer.

The submission asks for the claim (`NewJob.claim_for`), and the store may grant it with the insert. Asked for
only where the poller would claim the job at once anyway: a slot of its executor is free, nothing else is
known to be due, and the node may claim. What the store answers goes straight to the slot.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

from ratchet.domain.job import Claim, NewJob
from ratchet.spi.store import Inserted, JobStore


class Eager:
    """Inserts jobs one by one for a running node.

    Args:
        store: where.
        incarnation: of the node.
        has_room_for: True if the node would claim this job at once.
        take: called with the claim, and the monotonic time at which the insert was sent.
        suspect: called with a job whose insert raised: its claim may have been stored, and nobody knows it.
    """

    def __init__(
        self,
        store: JobStore,
        incarnation: str,
        *,
        has_room_for: Callable[[NewJob], bool],
        take: Callable[[Claim, float], None],
        suspect: Callable[[UUID], None],
    ) -> None:
        self._store, self._incarnation = store, incarnation
        self._has_room_for, self._take, self._suspect = has_room_for, take, suspect
        self._changed = threading.Condition()
        self._under_way = 0
        self._closed = False

    def insert(self, job: NewJob) -> Sequence[Inserted]:
        """As `JobStore.insert` with one job; if the store grants its claim, it is on its way to a slot."""
        if not self._enter(job):
            return self._store.insert([job])
        try:
            sent = time.monotonic()
            try:
                answers = self._store.insert([replace(job, claim_for=self._incarnation)])
            except BaseException:
                self._suspect(job.id)
                raise
            claim = answers[0].claim
            if claim is not None:
                self._take(claim, sent)
            return answers
        finally:
            self._leave()

    def _enter(self, job: NewJob) -> bool:
        if job.at is not None or job.delay is not None or not self._has_room_for(job):
            return False
        with self._changed:
            if self._closed:
                return False
            self._under_way += 1
            return True

    def _leave(self) -> None:
        with self._changed:
            self._under_way -= 1
            if self._closed:
                self._changed.notify_all()

    def close(self, timeout: float) -> None:
        """Ask for no more claims; wait at most `timeout` seconds for the answers that are still to come."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._under_way, max(timeout, 0.0))
