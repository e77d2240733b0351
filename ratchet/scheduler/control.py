"""Control: cancel, pause, resume, retry, replace; each one guarded change in the store, then its event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from ratchet.builder import check_builder
from ratchet.domain.lifecycle import CANCELABLE, REPLACEABLE, Status, Trigger
from ratchet.domain.options import JobOptions, check_id
from ratchet.domain.settlement import Change, Settlement, Submit
from ratchet.engine.bus import events
from ratchet.errors import DuplicateIdempotencyKey, NotReplaceable, UsageError
from ratchet.query import check_limit, checked
from ratchet.scheduler.submission import Submitting
from ratchet.spi.store import Applied, OnConflict, Refused, Selected, Selection, Settled

if TYPE_CHECKING:
    from ratchet.builder import Draft, JobBuilder
    from ratchet.handle import JobHandle

R = TypeVar("R")


class Controlling(Submitting):
    """What can be done to a job that is stored."""

    def cancel(self, job_id: UUID) -> bool:
        """Cancel a job that has not settled; a running body is asked to stop within 2 s.

        Returns:
            True if it is canceled now; False if it had settled, was canceled before, or is unknown.
        """
        check_id(job_id)
        with self._bus.ahead(job_id) as publish:
            while True:
                answer = self.store.settle(Settlement(Change(Trigger.CANCEL, job_id)))
                if isinstance(answer, Settled):
                    self._tell(publish, events.JobCanceled, job_id, answer.now)
                    self._waiters.poke()
                    return True
                if answer.current is None or answer.current.is_settled:
                    return False
                answer = self.store.settle(Settlement(Change(Trigger.CANCEL_RUNNING, job_id)))
                if isinstance(answer, Settled):
                    self._tell(publish, events.JobCanceling, job_id, answer.now)
                    node = self._running_node()
                    if node is not None:
                        node.stop_canceled(job_id)
                    self._waiters.poke()
                    return True
                if answer.current is None or answer.current.is_settled:
                    return False

    def cancel_tagged(self, *tags: str) -> int:
        """Cancel every PENDING, PAUSED and WAITING job that carries all of the tags; answers how many."""
        if not tags:
            raise UsageError("cancel_tagged needs at least one tag")
        wanted = JobOptions(tags=frozenset(tags)).tags
        selection = Selection(tags=wanted, statuses=CANCELABLE)
        count, cursor = 0, None
        while True:
            page = self.store.find(selection, order="id_asc", limit=500, cursor=cursor)
            cancels = [Settlement(Change(Trigger.CANCEL, job.id)) for job in page.jobs]
            with self._bus.ahead() as publish:
                for answer in self.store.settle_many(cancels):
                    if isinstance(answer, Settled):
                        count += 1
                        self._tell(publish, events.JobCanceled, answer.job_id, answer.now)
            self._waiters.poke()
            cursor = page.cursor
            if cursor is None:
                return count

    def pause(self, job_id: UUID) -> bool:
        """Suspend a PENDING job. True if it is paused now (also if it was); False otherwise."""
        answer = self._apply(Trigger.PAUSE, job_id, events.JobPaused)
        if isinstance(answer, Applied):
            return True
        return answer.current is not None and answer.current.status is Status.PAUSED

    def resume(self, job_id: UUID) -> bool:
        """Queue a PAUSED job again with its due time: paused time counts as waiting. False if not paused or unknown."""
        answer = self._apply(Trigger.RESUME, job_id, events.JobResumed)
        if isinstance(answer, Applied):
            self._wake()
            return True
        return False

    def retry(self, job_id: UUID) -> bool:
        """Give a FAILED job a new life: attempts and crash count 0, due now. False for any other.

        Raises:
            DuplicateBusinessKey: another job holds its key now.
        """
        answer = self._apply(Trigger.REQUEUE, job_id, events.JobRequeued)
        if isinstance(answer, Applied):
            self._wake()
            return True
        return False

    def retry_all(
        self, selection: Selection | None = None, *, limit: int = 1000, on_conflict: OnConflict = "abort"
    ) -> Selected:
        """`retry` for up to `limit` FAILED jobs of the selection, in one unit, oldest first.

        Args:
            selection: which; always narrowed to FAILED; None: all.
            limit: 1 to 1000; call again while as many come back.
            on_conflict: ``abort``: one business key in use, and nothing changes; ``skip``: leave those.

        Raises:
            DuplicateBusinessKey: under ``abort``, with the conflicting ids.
            UsageError: a limit outside 1 to 1000.
        """
        check_limit(limit)
        selection = checked(selection)
        with self._bus.ahead() as publish:
            chosen = self.store.apply_where(selection, Trigger.REQUEUE, limit=limit, on_conflict=on_conflict)
            for job_id in chosen.ids:
                self._tell(publish, events.JobRequeued, job_id, chosen.now)
            if chosen.ids and self._bus.active:
                ids, skipped = tuple(chosen.ids), len(chosen.skipped)
                publish(
                    events.JobsBulkRetried(job_ids=ids, skipped=skipped, at=chosen.now, node=self._name())
                )
        if chosen.ids:
            self._wake()
        return chosen

    def _apply(self, trigger: Trigger, job_id: UUID, event: type[events.JobEvent]) -> Applied | Refused:
        check_id(job_id)
        with self._bus.ahead(job_id) as publish:
            answer = self.store.apply(Change(trigger, job_id))
            if isinstance(answer, Applied):
                self._tell(publish, event, job_id, answer.job.updated_at)
            return answer

    def replace(self, job_id: UUID, builder: JobBuilder[R]) -> JobHandle[R]:
        """Cancel a job that has not begun and put another in its place, as one step.

        The new job takes over the business key, unless the builder names another, which must be free.

        Raises:
            NotReplaceable: it is not PENDING, PAUSED or WAITING, or unknown.
            DuplicateBusinessKey: the builder's own key is held; the old job is unchanged.
            UsageError: no builder, or none of this scheduler's kind.
        """
        check_id(job_id)
        check_builder(builder)
        with builder.taken() as draft:
            return self._replace(job_id, draft)

    def _replace(self, job_id: UUID, draft: Draft) -> JobHandle[Any]:
        new = self._submission.encode(draft)
        change = Change(Trigger.REPLACE, job_id, superseded_by=new.id)
        with self._bus.ahead(job_id) as publish:
            try:
                answer = self.store.settle(Settlement(change, (Submit(new),)))
            except DuplicateIdempotencyKey:
                original = self.store.find_by_key(idempotency=new.idempotency_key)
                if original is None:
                    raise
                return self._handle(original.id, created=False)
            if isinstance(answer, Refused):
                if answer.current is not None and answer.current.superseded_by == new.id:
                    return self._handle(new.id, created=True)  # done by an earlier call whose answer was lost
                state = "unknown" if answer.current is None else str(answer.current.status)
                raise NotReplaceable(
                    f"job {job_id} is {state}; only {', '.join(sorted(REPLACEABLE))} jobs can be replaced"
                )
            self._tell(publish, events.JobCanceled, job_id, answer.now, superseded_by=new.id)
        self._waiters.poke()
        self._inserted([new], immediate=draft.immediate)
        return self._handle(new.id, created=True)
