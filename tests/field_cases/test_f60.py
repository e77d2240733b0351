"""F60: "already exists", but it was rolled back: keys are taken by stored jobs and by nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from conformance_tests.under_test import NOT_DECLARED
from ratchet import JobHandle, Scheduler, Status
from ratchet.errors import DuplicateBusinessKey, DuplicateIdempotencyKey, StoreTransientError
from ratchet.spi.capabilities import Capability
from ratchet_sql.store import SqliteStore
from tests.field_cases.faults import FaultyStore
from tests.field_cases.kit import wait_until
from tests.field_cases.stage import Stage, together

pytestmark = pytest.mark.field_case("F60")

ROOT = Path(__file__).parents[2]
CALLERS = 50
KEYS = ("idempotency", "business")


def work(number: int) -> int:
    """What all callers want done once."""
    return number


Answer = tuple[str, UUID]


def submit(
    scheduler: Scheduler, kind: str, number: int = 0, key: str = "K", unit: object | None = None
) -> Answer:
    """(how it was answered, which job it names): created, original or duplicate; anything else is an error."""
    builder = scheduler.enqueue(work, number)
    if kind == "idempotency":
        handle = builder.with_idempotency_key(key).submit(unit=unit)
        return ("created" if handle.created else "original"), handle.id
    try:
        return "created", builder.with_business_key(key).submit(unit=unit).id
    except DuplicateBusinessKey as error:
        return "duplicate", error.conflicts[key]


def check(scheduler: Scheduler, kind: str, answers: list[Answer]) -> None:
    """One job; one caller made it; all others were told of it, in the words of their key; it can be read."""
    (job_id,) = {job_id for _, job_id in answers}
    told = "original" if kind == "idempotency" else "duplicate"
    assert sorted(word for word, _ in answers) == sorted(["created", *[told] * (len(answers) - 1)])
    (job,) = scheduler.query.iterate()
    assert (job.id, job.status) == (job_id, Status.PENDING)
    assert scheduler.get(job_id) == job


# -- the first caller's transaction is rolled back


@contextmanager
def mongodb_transaction(url: str) -> Iterator[object]:
    """A transaction of an application that has a client of its own."""
    from pymongo import MongoClient

    client: MongoClient[Any] = MongoClient(url)
    with client, client.start_session() as session, session.start_transaction():
        yield session


TRANSACTIONS: Final[Mapping[str, Callable[[str], AbstractContextManager[object]]]] = {
    "mongodb": mongodb_transaction,
}
"""Scheme of a store that joins transactions of callers -> opens one."""


def joining(stage: Stage) -> list[Scheduler]:
    """Five schedulers, on a store that joins transactions of callers."""
    schedulers = [stage.node(start=False) for _ in range(5)]
    if Capability.TRANSACTIONAL_ENQUEUE not in schedulers[0].store.capabilities:
        pytest.skip(f"{NOT_DECLARED}{Capability.TRANSACTIONAL_ENQUEUE}")
    return schedulers


def begin(stage: Stage) -> AbstractContextManager[object]:
    """A transaction of a caller, committed at the end of its block."""
    return TRANSACTIONS[stage.url.partition(":")[0]](stage.url)


def in_a_transaction(stage: Stage, scheduler: Scheduler, kind: str, number: int) -> Answer:
    """`submit` in a transaction of the caller's own, which is repeated while it meets another one of the same key."""
    until = time.monotonic() + 30
    while True:
        try:
            with begin(stage) as unit:
                return submit(scheduler, kind, number, unit=unit)
        except (StoreTransientError, DuplicateIdempotencyKey):
            assert time.monotonic() < until
            time.sleep(0.02)


@pytest.mark.parametrize("others", ["alone", "in transactions"])
@pytest.mark.parametrize("kind", KEYS)
def test_f60_a_rolled_back_transaction_of_a_caller_leaves_no_phantom(
    stage: Stage, kind: str, others: str
) -> None:
    """Caller 1 rolls its own transaction back: exactly 1 job exists, and callers 2-5 all hold its id."""
    first, *rest = joining(stage)
    held, rolled_back = threading.Event(), threading.Event()
    began = [threading.Event() for _ in rest]

    def undone() -> None:
        with suppress(Undone), begin(stage) as unit:
            assert submit(first, kind, 1, unit=unit)[0] == "created"
            held.set()
            for each in began:
                assert each.wait(30)
            rolled_back.wait(0.5)  # nobody sets it: the others meet the open transaction meanwhile
            raise Undone

    def later(place: int) -> Answer:
        assert held.wait(30)
        began[place].set()
        if others == "alone":
            return submit(rest[place], kind, 2 + place)
        return in_a_transaction(stage, rest[place], kind, 2 + place)

    outcomes = together(undone, *[lambda place=place: later(place) for place in range(4)])
    check(rest[0], kind, [answer for answer in outcomes if answer is not None])


@pytest.mark.parametrize("kind", KEYS)
def test_f60_a_committed_transaction_of_a_caller_is_what_others_are_told_of(stage: Stage, kind: str) -> None:
    """Caller 1 commits: exactly 1 job exists, and callers 2-5, who met its open transaction, all hold its id."""
    first, *rest = joining(stage)
    held = threading.Event()
    began = [threading.Event() for _ in rest]

    def committed() -> Answer:
        with begin(stage) as unit:
            answer = submit(first, kind, 1, unit=unit)
            held.set()
            for each in began:
                assert each.wait(30)
            return answer

    def later(place: int) -> Answer:
        assert held.wait(30)
        began[place].set()
        return submit(rest[place], kind, 2 + place)

    answers = together(committed, *[lambda place=place: later(place) for place in range(4)])
    check(rest[0], kind, answers)
    assert answers[0][0] == "created"


class Undone(Exception):
    """What ends the first caller's unit before it is committed."""


@pytest.mark.stores("sqlite")
@pytest.mark.parametrize("kind", KEYS)
def test_f60_a_unit_that_was_undone_leaves_no_phantom(stage: Stage, kind: str) -> None:
    """The store's own unit of caller 1 is undone while callers 2-5 wait: 1 job, and they all hold its id."""
    first = stage.node(start=False)
    assert isinstance(first.store, SqliteStore)
    held, go_on = threading.Event(), threading.Event()

    def stop(step: str) -> None:
        if step == "before commit":
            held.set()
            assert go_on.wait(30)
            raise Undone

    first.store.database.step = stop
    others = [stage.node(start=False) for _ in range(4)]
    began = [threading.Event() for _ in others]

    def undone() -> Answer | None:
        # Tags make it a unit of several statements, all of which have been done when it stops.
        builder = first.enqueue(work, 1).with_tags("first")
        key = builder.with_idempotency_key("K") if kind == "idempotency" else builder.with_business_key("K")
        with pytest.raises(Undone):
            key.submit()
        return None

    def later(place: int) -> Answer:
        assert held.wait(30)
        began[place].set()
        return submit(others[place], kind, 2 + place)

    def release() -> None:
        for each in began:
            assert each.wait(30)
        go_on.set()

    outcomes = together(undone, release, *[lambda place=place: later(place) for place in range(4)])
    check(others[0], kind, [answer for answer in outcomes if answer is not None])
    (job,) = others[0].query.iterate()
    assert job.tags == frozenset()


# -- many callers at once, no transaction


@pytest.mark.parametrize("kind", KEYS)
def test_f60_fifty_callers_at_once_make_one_job(stage: Stage, kind: str) -> None:
    """50 callers submit K at once: 1 job, and 50 equal ids (or 49 typed duplicates); no other error."""
    handles = [stage.node(start=False) for _ in range(5)]
    barrier = threading.Barrier(CALLERS)

    def call(number: int) -> Answer:
        barrier.wait(30)
        return submit(handles[number % len(handles)], kind, number)

    check(handles[0], kind, together(*[lambda n=n: call(n) for n in range(CALLERS)]))


@pytest.mark.parametrize("kind", KEYS)
def test_f60_fifty_callers_of_a_key_whose_holder_has_ended(stage: Stage, kind: str) -> None:
    """The same after an earlier holder has succeeded: an idempotency key is his for ever, a business key is free."""
    node = stage.node()
    word, earlier = submit(node, kind)
    node.handle(earlier).result(30)
    node.stop()
    barrier = threading.Barrier(CALLERS)

    def call(number: int) -> Answer:
        barrier.wait(30)
        return submit(node, kind, number)

    answers = together(*[lambda n=n: call(n) for n in range(CALLERS)])
    if kind == "idempotency":
        assert set(answers) == {("original", earlier)}
        assert node.query.count() == 1
    else:
        assert word == "created"
        (new,) = {job_id for _, job_id in answers}
        assert new != earlier
        assert [word for word, _ in answers].count("created") == 1
        assert node.query.counts()[Status.PENDING] == 1


@pytest.mark.stores("sqlite")
@pytest.mark.parametrize("kind", KEYS)
def test_f60_fifty_callers_in_five_processes_make_one_job(stage: Stage, kind: str) -> None:
    """The same with 5 processes of 10 threads on one file: 1 job, everybody holds its id."""
    gate = stage.folder / "go"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", "from tests.field_cases.test_f60 import main; main()",
             stage.url, str(gate), kind, str(CALLERS // 5)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(5)
    ]  # fmt: skip
    try:
        for each in processes:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        gate.touch()
        answers: list[Answer] = []
        for each in processes:
            out, _ = each.communicate(timeout=60)
            answers += [(word, UUID(job_id)) for word, job_id in json.loads(out)]
    finally:
        for each in processes:
            each.kill()
            each.wait()
    assert len(answers) == CALLERS
    check(stage.node(start=False), kind, answers)


def main() -> None:
    """A process of callers: says ready, waits for the gate, submits from several threads, says the answers."""
    url, gate, kind, threads = sys.argv[1:5]
    scheduler = Scheduler.from_url(url, allow=["tests.field_cases.test_f60"])
    print("ready", flush=True)
    wait_until(Path(gate).exists, 60)
    answers = together(*[lambda n=n: submit(scheduler, kind, n) for n in range(int(threads))])
    print(json.dumps([(word, str(job_id)) for word, job_id in answers]))


# -- the reply is lost


def _with_key(scheduler: Scheduler, kind: str) -> Any:
    builder = scheduler.enqueue(work, 1)
    return builder.with_idempotency_key("K") if kind == "idempotency" else builder.with_business_key("K")


@pytest.mark.parametrize("kind", [*KEYS, "none"])
def test_f60_the_same_builder_retried_after_a_lost_reply_is_the_same_job(
    faulty: FaultyStore, make_node: Callable[..., Scheduler], kind: str
) -> None:
    """The connection drops after the commit and the caller submits the builder again: the same id, one job."""
    node = make_node(faulty.store, start=False)
    builder = node.enqueue(work, 1) if kind == "none" else _with_key(node, kind)
    faulty.fail("insert", when="after")
    with pytest.raises(StoreTransientError):
        builder.submit()
    (stored,) = node.query.iterate()
    handle: JobHandle[int] = builder.submit()
    assert handle.id == stored.id
    assert [job.id for job in node.query.iterate()] == [stored.id]


@pytest.mark.parametrize("kind", KEYS)
def test_f60_a_new_call_after_a_lost_reply_is_told_of_the_same_job(
    faulty: FaultyStore, make_node: Callable[..., Scheduler], kind: str
) -> None:
    """The connection drops after the commit and the caller starts over with the same key: told of the same id."""
    node = make_node(faulty.store, start=False)
    faulty.fail("insert", when="after")
    with pytest.raises(StoreTransientError):
        _with_key(node, kind).submit()
    (stored,) = node.query.iterate()
    told = "original" if kind == "idempotency" else "duplicate"
    assert submit(node, kind) == (told, stored.id)
    assert node.query.count() == 1


@pytest.mark.parametrize("kind", KEYS)
def test_f60_a_list_submitted_again_after_a_lost_reply_is_the_same_jobs(
    faulty: FaultyStore, make_node: Callable[..., Scheduler], kind: str
) -> None:
    """A bulk submission whose reply was lost is tried again: the same ids in the same order, nothing doubled."""
    node = make_node(faulty.store, start=False)
    builders = [node.enqueue(work, number) for number in range(5)]
    for number, builder in enumerate(builders):
        if kind == "idempotency":
            builder.with_idempotency_key(f"K{number}")
        else:
            builder.with_business_key(f"K{number}")
    faulty.fail("insert", when="after")
    with pytest.raises(StoreTransientError):
        node.submit_many(builders)
    stored = [job.id for job in node.query.iterate()]
    assert len(stored) == 5
    assert [handle.id for handle in node.submit_many(builders)] == stored
    assert node.query.count() == 5


@pytest.mark.parametrize("when", ["before", "after"])
def test_f60_a_lost_reply_of_a_replacement_is_the_same_job(
    faulty: FaultyStore, make_node: Callable[..., Scheduler], when: Any
) -> None:
    """`replace` whose call or reply was lost, tried again with the same builder: one new job, which has the key."""
    node = make_node(faulty.store, start=False)
    old = node.enqueue(work, 1).with_business_key("K").submit()
    builder = node.enqueue(work, 2)
    faulty.fail("settle", when=when)
    with pytest.raises(StoreTransientError):
        node.replace(old.id, builder)
    new = node.replace(old.id, builder)
    assert old.status is Status.CANCELED
    assert [job.id for job in node.query.iterate() if job.status is Status.PENDING] == [new.id]
    assert submit(node, "business") == ("duplicate", new.id)


@pytest.mark.parametrize("kind", KEYS)
def test_f60_a_call_that_never_arrived_takes_no_key(
    faulty: FaultyStore, make_node: Callable[..., Scheduler], kind: str
) -> None:
    """The connection drops before the call is applied: the key is free, and whoever comes next creates the job."""
    node = make_node(faulty.store, start=False)
    faulty.fail("insert")
    with pytest.raises(StoreTransientError):
        _with_key(node, kind).submit()
    assert node.query.count() == 0
    assert submit(node, kind)[0] == "created"
    assert node.query.count() == 1
