"""What other processes do to the store under test: programs for `test_processes` and the endurance test."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess, parent_process
from typing import Any, Final
from uuid import UUID

from conformance_tests.driver import new_job, request
from ratchet.domain.lifecycle import Trigger
from ratchet.domain.settlement import Change, Settlement
from ratchet.errors import DuplicateBusinessKey
from ratchet.spi.store import JobStore, RecoverRequest, Settled

PATIENCE: Final = 90.0
"""Seconds for a process to start and do its part on a busy machine."""

Opener = Callable[[], JobStore]
Program = Callable[..., Any]


def _run(connection: Connection, opener: bytes, program: Program, arguments: tuple[Any, ...]) -> None:
    """Open a handle, report, wait for the start, do it, and send what it answered."""
    store: JobStore = pickle.loads(opener)()
    store.counts()
    connection.send("ready")
    connection.recv()
    try:
        answer: Any = program(store, *arguments, tell=connection.send)
    except BaseException as error:
        answer = error
    connection.send(("done", answer))
    store.close()


class Elsewhere:
    """One program in a process of its own, ready and waiting to be let go."""

    def __init__(self, opener: Opener, program: Program, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_run, args=(there, pickle.dumps(opener), program, arguments), daemon=True
        )
        self.process.start()
        there.close()

    def wait_until_ready(self) -> None:
        """Until the process has opened its handle."""
        assert self.receive() == "ready"

    def receive(self) -> Any:
        """The next thing that it tells."""
        assert self._here.poll(PATIENCE), "the other process says nothing"
        return self._here.recv()

    def go(self) -> None:
        """Let it begin."""
        self._here.send("go")

    def answer(self) -> Any:
        """What the program answered; raises what it raised."""
        while True:
            told = self.receive()
            if isinstance(told, tuple) and told[:1] == ("done",):
                if isinstance(told[1], BaseException):
                    raise told[1]
                return told[1]

    def kill(self) -> None:
        """End it without warning (SIGKILL)."""
        self.process.kill()
        self.process.join(PATIENCE)

    def close(self) -> None:
        """Leave nothing behind."""
        if self.process.is_alive():
            self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(PATIENCE)
        self._here.close()


@contextmanager
def elsewhere(opener: Opener, *programs: tuple[Any, ...]) -> Iterator[list[Elsewhere]]:
    """Start a process for each (program, arguments...), all ready and none begun."""
    running = [Elsewhere(opener, *each) for each in programs]
    try:
        for each in running:
            each.wait_until_ready()
        yield running
    finally:
        for each in running:
            each.close()


def answers(running: Sequence[Elsewhere]) -> list[Any]:
    """Let all begin at once; what each answered."""
    for each in running:
        each.go()
    return [each.answer() for each in running]


def elsewhere_knows(opener: Opener, job_id: UUID) -> bool:
    """True if a handle that another process opens finds this job."""
    with elsewhere(opener, (knows, job_id)) as running:
        return bool(answers(running)[0])


# -- programs -------------------------------------------------------------------------------------


def store_time(store: JobStore, *, tell: Program) -> datetime:
    return store.now()


def knows(store: JobStore, job_id: UUID, *, tell: Program) -> bool:
    return store.get(job_id) is not None


def drain(store: JobStore, incarnation: str, *, tell: Program) -> list[tuple[UUID, int]]:
    """Claim until nothing is left."""
    got: list[tuple[UUID, int]] = []
    while True:
        answer = store.claim(request(incarnation, 5))
        got += [(claim.job_id, claim.claim_seq) for claim in answer.claims]
        if not answer.claims and not answer.more:
            return got


def submit_keys(store: JobStore, kind: str, number: int, *, tell: Program) -> list[tuple[UUID, bool]]:
    """Submit a job under each of some keys; who holds each, and whether it was this call."""
    told = []
    for place in range(number):
        new = new_job(**{f"{kind}_key": f"k{place}"})
        try:
            (answer,) = store.insert([new])
            told.append((answer.id, answer.created))
        except DuplicateBusinessKey as error:
            told.append((error.conflicts[f"k{place}"], False))
    return told


def succeed_all(store: JobStore, held: Sequence[tuple[UUID, int]], *, tell: Program) -> list[UUID]:
    """End these claims; which were still this node's to end."""
    ended = []
    for job_id, claim_seq in held:
        change = Change(Trigger.SUCCEED, job_id, claim_seq, result="1")
        if isinstance(store.settle(Settlement(change)), Settled):
            ended.append(job_id)
    return ended


def sweep(store: JobStore, gone: str, *, tell: Program) -> list[UUID]:
    """Recover what this incarnation held, until nothing is left of it."""
    asked = RecoverRequest(
        grace=request().boost_interval,
        crash_budget=99,
        known_gone=frozenset({gone}),
        only_known_gone=True,
        limit=5,
    )
    got: list[UUID] = []
    while part := store.recover(asked).recovered:
        got += [orphan.job_id for orphan in part]
    return got


def work_until_killed(store: JobStore, incarnation: str, *, tell: Program) -> None:
    """Claim and settle until killed, telling of every job whose success was acknowledged.

    Whoever would kill it may be killed first: a process without its parent ends by itself.
    """
    parent = parent_process()
    while parent is None or parent.is_alive():
        for claim in store.claim(request(incarnation, 3)).claims:
            change = Change(Trigger.SUCCEED, claim.job_id, claim.claim_seq, result="1")
            if isinstance(store.settle(Settlement(change)), Settled):
                tell(claim.job_id)
