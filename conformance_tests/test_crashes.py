"""Stopped between two steps of its own: what a store had begun is there as a whole, or not at all, or row by row.

The harness's `crash_points` tells the store to call back between its steps; the call raises at the
first, second, third... of them, the handle is given up, and another one looks at what is there. Then the
operation is repeated, as whoever called it would, and must lead where it leads undisturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID

import pytest

from conformance_tests.contract import contract
from conformance_tests.driver import MINUTE, Driver, new_job, request
from conformance_tests.under_test import UnderTest
from ratchet.domain.job import NewJob
from ratchet.domain.lifecycle import Status, Trigger
from ratchet.domain.settlement import Change, RunCallback, Settlement, Submit
from ratchet.errors import RatchetError, StoreTransientError
from ratchet.spi.store import JobStore, RecoverRequest, Selection, Settled

Operation: TypeAlias = Callable[[JobStore], object]

JOBS = [UUID(int=0x0190_0000_0000_7000_8000_0000_0000_0000 + number) for number in range(1, 5)]
NEW = [UUID(int=0x0190_0000_0000_7000_8000_0000_0000_0100 + number) for number in range(1, 4)]
TAG = frozenset({"crash"})
MOST_STEPS = 60


class Stopped(BaseException):
    """Stands for the sudden end of the process."""


def _new(number: int, **fields: Any) -> NewJob:
    return new_job(**{"id": NEW[number], "executor": "none", "tags": TAG, **fields})


def _jobs(driver: Driver, status: Status, *, keys: bool = True) -> None:
    for number, job_id in enumerate(JOBS):
        driver.drive(
            status,
            id=job_id,
            business_key=f"b{number}" if keys else None,
            idempotency_key=f"i{number}",
            tags=TAG,
        )


# -- what is stopped ------------------------------------------------------------------------------


def insert(driver: Driver) -> Operation:
    driver.submit(id=JOBS[0])
    new = [_new(n, idempotency_key=f"new-i{n}", business_key=f"new-b{n}") for n in range(3)]
    return lambda store: store.insert(new)


def insert_one(driver: Driver) -> Operation:
    new = _new(0, idempotency_key="new-i0", business_key="new-b0")
    return lambda store: store.insert([new])


def settle_with_effects(driver: Driver) -> Operation:
    _jobs(driver, Status.RUNNING)
    effects = (
        RunCallback("on_success", "m:f", "1"),
        Submit(_new(0, idempotency_key="new-i0", business_key="new-b0")),
        Submit(_new(1)),
    )
    done = Settlement(Change(Trigger.SUCCEED, JOBS[0], claim_seq=1, result="1"), effects)
    return lambda store: store.settle(done)


def replace_job(driver: Driver) -> Operation:
    _jobs(driver, Status.PAUSED)
    done = Settlement(Change(Trigger.REPLACE, JOBS[0], superseded_by=NEW[0]), (Submit(_new(0)),))
    return lambda store: store.settle(done)


def settle_many(driver: Driver) -> Operation:
    _jobs(driver, Status.RUNNING)
    ends = [
        Change(Trigger.SUCCEED, JOBS[0], claim_seq=1, result="1"),
        Change(Trigger.RETRY, JOBS[1], claim_seq=1, error="e", delay=MINUTE),
        Change(Trigger.FAIL, JOBS[2], claim_seq=1, error="e", attempts=1),
        Change(Trigger.SUCCEED, JOBS[3], claim_seq=7, result="stale"),
    ]
    effects = (RunCallback("on_failure", "m:f", "e"), Submit(_new(0)))
    sent = [Settlement(each, effects if each.trigger is Trigger.FAIL else ()) for each in ends]
    return lambda store: store.settle_many(sent)


def requeue(driver: Driver) -> Operation:
    _jobs(driver, Status.FAILED)
    return lambda store: store.apply(Change(Trigger.REQUEUE, JOBS[0], version=2))


def requeue_where(driver: Driver) -> Operation:
    _jobs(driver, Status.FAILED)
    return lambda store: store.apply_where(Selection(tags=TAG), Trigger.REQUEUE, limit=len(JOBS))


def claim(driver: Driver) -> Operation:
    _jobs(driver, Status.PENDING)
    return lambda store: store.claim(request("victim", 3)) if not store.held("victim") else None


def recover(driver: Driver) -> Operation:
    _jobs(driver, Status.RUNNING)
    gone = RecoverRequest(grace=MINUTE, crash_budget=3, known_gone=frozenset({"node-1"}))
    return lambda store: store.recover(gone)


def take_callbacks(driver: Driver) -> Operation:
    _jobs(driver, Status.RUNNING)
    for job_id in JOBS:
        change = Change(Trigger.SUCCEED, job_id, claim_seq=1, result="1")
        driver.store.settle(Settlement(change, (RunCallback("on_success", "m:f", "1"),)))
    return lambda store: store.take_callbacks("victim", grace=timedelta(), limit=9)


def delete(driver: Driver) -> Operation:
    _jobs(driver, Status.FAILED)
    for job_id in JOBS:
        driver.apply(Trigger.REQUEUE, job_id)
        driver.end(driver.claim_one(job_id), Trigger.FAIL, RunCallback("on_failure", "m:f", "e"))
    return lambda store: store.delete(JOBS)


WHOLE = [insert, insert_one, settle_with_effects, replace_job, settle_many, requeue, requeue_where]
BY_ROW = [claim, recover, take_callbacks, delete]


# -- how it is stopped and looked at --------------------------------------------------------------


@dataclass
class Seen:
    """All that can be seen of a store: row by row, and beside the rows."""

    rows: dict[object, object]
    beside: dict[str, object]


def look(store: JobStore) -> Seen:
    """Everything; pending callbacks are taken by nobody in particular."""
    rows: dict[object, object] = {}
    for job_id in (*JOBS, *NEW):
        rows[job_id] = (store.get(job_id), list(store.history(job_id)))
    for kind in ("b", "i", "new-b", "new-i"):
        for number in range(len(JOBS)):
            key = f"{kind}{number}"
            asked = {"business": key} if kind.endswith("b") else {"idempotency": key}
            rows[key] = store.find_by_key(**asked)
    for incarnation in ("node-1", "victim"):
        for held in store.held(incarnation):
            rows["held", held[0]] = (incarnation, held)
    beside: dict[str, object] = {
        "counts": dict(store.counts()),
        "tagged": sorted(job.id for job in store.find(Selection(tags=TAG), limit=1000).jobs),
        "callbacks": sorted(
            (call.job_id, call.claim_seq, call.name, call.argument)
            for call in store.take_callbacks("looking", grace=timedelta(), limit=99)
        ),
    }
    return Seen(rows, beside)


def stopped_at(
    under_test: UnderTest, prepare: Callable[[Driver], Operation], step: int
) -> tuple[Operation, str | None]:
    """Prepare an empty store, stop the operation at that step; the operation, and the step's name (or None)."""
    under_test.reset()
    store = under_test.open()
    operation = prepare(Driver(store, under_test.time(store)))
    victim = under_test.open()
    victim.counts()  # whatever the first use of a handle does is not part of the operation
    reached: list[str] = []

    def reach(name: str) -> None:
        reached.append(name)
        if len(reached) == step:
            raise Stopped(name)

    under_test.harness.crash_points(under_test.behind(victim), reach)
    stopped = True
    try:
        operation(victim)
        stopped = False
    except Stopped:
        pass
    with suppress(BaseException):  # it is as good as dead
        victim.close()
    under_test.forget(victim)
    return operation, reached[-1] if stopped else None


def undisturbed(under_test: UnderTest, prepare: Callable[[Driver], Operation]) -> tuple[Seen, Seen]:
    """What is there before the operation, and after."""
    seen = []
    for done in (False, True):
        under_test.reset()
        store = under_test.open()
        operation = prepare(Driver(store, under_test.time(store)))
        if done:
            operation(store)
        seen.append(look(store))
    return seen[0], seen[1]


def stops(
    under_test: UnderTest, prepare: Callable[[Driver], Operation]
) -> Iterator[tuple[str, Operation, JobStore]]:
    """Stop at the first step, the second, and so on until the operation ends; what is found by another handle."""
    for step in range(1, MOST_STEPS):
        operation, name = stopped_at(under_test, prepare, step)
        if name is None:
            assert step > 1, "the operation called no crash point at all"
            return
        yield name, operation, under_test.open()
    pytest.fail(f"more than {MOST_STEPS} steps in {prepare.__name__}")


def again(operation: Operation, store: JobStore) -> None:
    """Repeat it, as its caller would; a refusal because it was applied is an answer."""
    with suppress(RatchetError):
        operation(store)


def name_of(operation: object) -> str:
    return str(getattr(operation, "__name__", operation))


@contract("CRASH-01", needs=("crash_points", "clock"))
@pytest.mark.parametrize("prepare", WHOLE, ids=name_of)
def test_a_unit_is_whole(under_test: UnderTest, prepare: Callable[[Driver], Operation]) -> None:
    """Stopped after any step, an atomic operation has left everything it writes or nothing at all."""
    before, after = undisturbed(under_test, prepare)
    for step, _, store in stops(under_test, prepare):
        seen = look(store)
        assert seen in (before, after), f"stopped at {step!r}"


@contract("CRASH-02", needs=("crash_points", "clock"))
@pytest.mark.parametrize("prepare", BY_ROW, ids=name_of)
def test_a_row_is_whole(under_test: UnderTest, prepare: Callable[[Driver], Operation]) -> None:
    """Stopped after any step, an operation on many jobs has left each as it was or as it should be."""
    before, after = undisturbed(under_test, prepare)
    for step, _, store in stops(under_test, prepare):
        seen = look(store)
        for row in {*before.rows, *after.rows}:
            allowed = (before.rows.get(row), after.rows.get(row))
            assert seen.rows.get(row) in allowed, f"{row} stopped at {step!r}"


@contract("CRASH-03", needs=("crash_points", "clock"))
@pytest.mark.parametrize("prepare", [*WHOLE, *BY_ROW], ids=name_of)
def test_repeated_it_is_done(under_test: UnderTest, prepare: Callable[[Driver], Operation]) -> None:
    """After a stop at any step the repeated operation leads where it leads undisturbed: eventually all."""
    _, after = undisturbed(under_test, prepare)
    for step, operation, store in stops(under_test, prepare):
        again(operation, store)
        seen = look(store)
        assert seen == after, f"stopped at {step!r}"


@contract("MANY-03", needs=("crash_points", "clock"))
def test_a_list_that_raised_is_repeated(under_test: UnderTest) -> None:
    """A settle_many that raised at any step, repeated on its handle, is applied once, and says so or history does."""
    _, after = undisturbed(under_test, settle_many)
    for step in range(1, MOST_STEPS):
        under_test.reset()
        store = under_test.open()
        operation = settle_many(Driver(store, under_test.time(store)))
        store.counts()
        reached: list[str] = []

        def reach(name: str, reached: list[str] = reached, step: int = step) -> None:
            reached.append(name)
            if len(reached) == step:
                raise StoreTransientError(f"the connection was lost at {name!r}")

        under_test.harness.crash_points(under_test.behind(store), reach)
        with suppress(StoreTransientError):
            operation(store)
        if len(reached) < step:
            assert step > 1, "the operation called no crash point at all"
            return
        answers: Any = operation(store)
        told = [isinstance(answer, Settled) or _has_ended(store, answer.job_id) for answer in answers]
        assert told == [True, True, True, False], (step, reached)
        assert look(store) == after, (step, reached)
    pytest.fail(f"more than {MOST_STEPS} steps")


def _has_ended(store: JobStore, job_id: UUID) -> bool:
    """True if history says that the first claim of the job is over."""
    return [entry.claim_seq for entry in store.history(job_id)] == [1]


@contract("CRASH-04", needs=("crash_points", "clock"))
@pytest.mark.parametrize("prepare", [*WHOLE, *BY_ROW], ids=name_of)
def test_a_stop_holds_up_nobody(under_test: UnderTest, prepare: Callable[[Driver], Operation]) -> None:
    """After a stop at any step other nodes go on at once: they submit, claim, settle and sweep."""
    for step, _, store in stops(under_test, prepare):
        driver = Driver(store, under_test.time(store))
        job_id = driver.submit(executor="spare", business_key="other", idempotency_key="other")
        (held,) = driver.claim("other", limits={"spare": 1}).claims
        assert held.job_id == job_id, f"stopped at {step!r}"
        driver.end(held, Trigger.SUCCEED, result="1")
        nobody = RecoverRequest(grace=MINUTE, crash_budget=3, known_gone=frozenset({"nobody"}))
        assert list(store.recover(replace(nobody, only_known_gone=True)).recovered) == []
