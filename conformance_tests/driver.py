"""Moves jobs through the SPI: into each state, and several nodes at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

from conformance_tests.harness import START, SettableClock
from conformance_tests.under_test import Time
from ratchet.domain.ids import new_id
from ratchet.domain.job import Claim, Job, NewJob
from ratchet.domain.lifecycle import Execution, Status, Trigger
from ratchet.domain.settlement import Change, Effect, Settlement
from ratchet.spi.store import Applied, Claimed, ClaimRequest, JobStore, RecoverRequest, Settled

SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
EVERYTHING: Final = {"threads": 1000, "async": 1000, "processes": 1000}

T = TypeVar("T")


def new_job(**fields: Any) -> NewJob:
    """A job to submit; every field but the id has a plain default."""
    return NewJob(**{"id": new_id(), "target": "shop.jobs:charge", "payload": "[]", **fields})


def request(incarnation: str = "node-1", limit: int = 50, **fields: Any) -> ClaimRequest:
    return ClaimRequest(
        incarnation=incarnation, limit=limit, limits=fields.pop("limits", EVERYTHING), **fields
    )


def ids(entries: Sequence[Claim] | Sequence[Job]) -> list[UUID]:
    return [entry.job_id if isinstance(entry, Claim) else entry.id for entry in entries]


class Driver:
    """Moves jobs through the SPI, failing where a step that must succeed does not."""

    def __init__(self, store: JobStore, clock: Time) -> None:
        self.store, self.clock = store, clock

    def submit(self, **fields: Any) -> UUID:
        new = new_job(**fields)
        (answer,) = self.store.insert([new])
        assert answer.created
        return new.id

    def job(self, job_id: UUID) -> Job:
        job = self.store.get(job_id)
        assert job is not None
        return job

    def history(self, job_id: UUID) -> list[Execution]:
        return list(self.store.history(job_id))

    def status(self, job_id: UUID) -> Status:
        return self.job(job_id).status

    def claim(self, incarnation: str = "node-1", limit: int = 50, **fields: Any) -> Claimed:
        answer = self.store.claim(request(incarnation, limit, **fields))
        return replace(answer, claims=list(answer.claims))

    def claim_one(self, job_id: UUID, incarnation: str = "node-1") -> Claim:
        """Claim exactly this job, which must be the only one that is due."""
        (claim,) = self.claim(incarnation).claims
        assert claim.job_id == job_id
        return claim

    def settle(self, trigger: Trigger, job_id: UUID, *effects: Effect, **fields: Any) -> Settled:
        answer = self.store.settle(Settlement(Change(trigger, job_id, **fields), effects))
        assert isinstance(answer, Settled), answer
        return answer

    def apply(self, trigger: Trigger, job_id: UUID, **fields: Any) -> Job:
        answer = self.store.apply(Change(trigger, job_id, **fields))
        assert isinstance(answer, Applied), answer
        return answer.job

    def end(self, claim: Claim, trigger: Trigger, *effects: Effect, **fields: Any) -> Settled:
        """End `claim` by `trigger`, with what that row needs."""
        given = {"error": "ValueError: no", "duration": SECOND} | fields
        return self.settle(trigger, claim.job_id, *effects, claim_seq=claim.claim_seq, **given)

    def drive(self, status: Status, *, eventful: bool = False, **fields: Any) -> Job:
        """A new job in `status`; an eventful one has been retried and recovered before."""
        if status is Status.WAITING:
            return self.job(self.submit(start=Status.WAITING, **fields))
        job_id = self.submit(**fields)
        if eventful:
            self.end(self.claim_one(job_id, "node-0"), Trigger.RETRY, delay=timedelta())
            self.claim_one(job_id, "node-0")
            gone = RecoverRequest(grace=MINUTE, crash_budget=3, known_gone=frozenset({"node-0"}))
            assert [orphan.job_id for orphan in self.store.recover(gone).recovered] == [job_id]
        self.clock.advance(SECOND)
        match status:
            case Status.PENDING:
                pass
            case Status.PAUSED:
                self.apply(Trigger.PAUSE, job_id)
            case Status.CANCELED:
                self.settle(Trigger.CANCEL, job_id)
            case _:
                claim = self.claim_one(job_id)
                self.clock.advance(SECOND)
                if status is Status.SUCCEEDED:
                    self.end(claim, Trigger.SUCCEED, result='"done"')
                elif status is Status.FAILED:
                    self.end(claim, Trigger.FAIL, attempts=claim.attempts + 1)
        self.clock.advance(SECOND)
        job = self.job(job_id)
        assert job.status is status
        return job


PENDING_LAST: Final = sorted(Status, key=lambda status: status is Status.PENDING)
"""An order in which a job can be driven into each state: a pending one would be claimed for the next."""


def at_once(*actions: Callable[[], T], patience: float = 60) -> list[T | BaseException]:
    """Run all at the same moment, a thread each; what each returned or raised, in order."""
    barrier = threading.Barrier(len(actions))
    answers: list[T | BaseException | None] = [None] * len(actions)

    def run(place: int, action: Callable[[], T]) -> None:
        barrier.wait(30)
        try:
            answers[place] = action()
        except BaseException as error:
            answers[place] = error

    threads = [threading.Thread(target=run, args=entry) for entry in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience)
        assert not thread.is_alive(), "a store call hangs"
    return answers  # type: ignore[return-value]


def returned(answers: Sequence[T | BaseException]) -> list[T]:
    """What the actions returned, none of which may have raised."""
    for answer in answers:
        if isinstance(answer, BaseException):
            raise AssertionError("an action raised") from answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]


__all__ = [
    "EVERYTHING", "MINUTE", "PENDING_LAST", "SECOND", "START", "Driver", "SettableClock", "at_once", "ids",
    "new_job", "request", "returned",
]  # fmt: skip
