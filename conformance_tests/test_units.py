"""Inserting in the caller's transaction: the job exists exactly if that commits (``transactional-enqueue``)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any, Final, cast
from uuid import UUID

import pytest

from conformance_tests.bridge import meets
from conformance_tests.contract import contract
from conformance_tests.driver import Driver, new_job, request
from conformance_tests.under_test import NOT_DECLARED, UnderTest
from ratchet.domain.job import NewJob
from ratchet.domain.lifecycle import Status, Trigger
from ratchet.errors import DuplicateBusinessKey, DuplicateIdempotencyKey, StoreTransientError, UsageError
from ratchet.spi.capabilities import Capability, WakeUps
from ratchet.spi.store import Inserted, JobStore, Selection

UNITS: Final = "transactional-enqueue"
_PATIENCE: Final = 30.0
_MEETING: Final = 0.2
"""Seconds for which a transaction stays open beside a call that may wait for it, or give a wrong answer at once."""

Begin = Callable[..., Any]


class Undone(Exception):
    """What ends a transaction that is to be rolled back."""


@pytest.fixture
def begin(under_test: UnderTest, store: JobStore) -> Begin:
    """Opens a transaction on the database of `store`, or of another handle: a context manager."""
    return lambda handle=store: under_test.transaction(handle)


@pytest.fixture
def roll_back(begin: Begin) -> Begin:
    """The same, rolled back at the end of its block."""

    @contextmanager
    def rolled_back() -> Iterator[object]:
        with suppress(Undone), begin() as unit:
            yield unit
            raise Undone

    return rolled_back


def _is_nowhere(store: JobStore, new: NewJob) -> bool:
    return (
        store.get(new.id) is None
        and list(store.get_many([new.id])) == []
        and sum(store.counts().values()) == store.count(Selection()) == 0
        and list(store.find(Selection()).jobs) == []
        and store.find_by_key(business="b") is store.find_by_key(idempotency="i") is None
        and list(store.claim(request()).claims) == []
    )


@contract("UNIT-01", needs=("transaction",), capability=UNITS)
def test_nobody_sees_it_before_the_commit(
    under_test: UnderTest, store: JobStore, begin: Begin, driver: Driver
) -> None:
    """Before the commit nobody finds, counts or claims the job or its keys; after it the job is as any other."""
    other = under_test.open()
    new = new_job(business_key="b", idempotency_key="i", tags=frozenset({"t"}))
    with begin() as unit:
        (answer,) = store.insert([new], unit=unit)
        assert (answer.id, answer.created, answer.status) == (new.id, True, Status.PENDING)
        assert _is_nowhere(store, new)
        assert _is_nowhere(other, new)
    job = other.get(new.id)
    assert job is not None
    assert (job.status, job.version, job.tags, job.scheduled_time) == (
        Status.PENDING, 0, frozenset({"t"}), answer.scheduled_time,
    )  # fmt: skip
    claim = driver.claim_one(new.id)
    driver.end(claim, Trigger.SUCCEED, result="1")


@contract("UNIT-02", needs=("transaction",), capability=UNITS)
def test_a_rollback_leaves_no_job(store: JobStore, roll_back: Begin) -> None:
    """After a rollback there is no job, not even for a moment; its id can be submitted again."""
    new = new_job(business_key="b", idempotency_key="i")
    with roll_back() as unit:
        store.insert([new], unit=unit)
        store.insert([new_job(), new_job()], unit=unit)
    assert _is_nowhere(store, new)
    assert store.insert([new])[0].created


@contract("UNIT-03", needs=("transaction",), capability=UNITS)
def test_a_rollback_leaves_no_key(store: JobStore, begin: Begin, roll_back: Begin) -> None:
    """Keys of a transaction that was rolled back are free, for whoever comes next, inside a transaction or not."""
    for number in range(3):
        with roll_back() as unit:
            store.insert([new_job(business_key=f"b{number}", idempotency_key=f"i{number}")], unit=unit)
    alone, inside, again = (new_job(business_key=f"b{n}", idempotency_key=f"i{n}") for n in range(3))
    assert store.insert([alone])[0].created
    with begin() as unit:
        assert store.insert([inside], unit=unit)[0].created
    with roll_back() as unit:
        assert store.insert([again], unit=unit)[0].created
    for number, new in enumerate((alone, inside)):
        held = Inserted(new.id, created=False, status=Status.PENDING)
        assert store.find_by_key(business=f"b{number}") == held
        assert store.find_by_key(idempotency=f"i{number}") == held
    assert store.find_by_key(business="b2") is store.find_by_key(idempotency="i2") is None


@contract("UNIT-04", needs=("transaction",), capability=UNITS)
def test_a_commit_takes_the_keys(store: JobStore, begin: Begin) -> None:
    """With the commit its keys are taken like those of any submission."""
    new = new_job(business_key="b", idempotency_key="i")
    with begin() as unit:
        store.insert([new], unit=unit)
    held = Inserted(new.id, created=False, status=Status.PENDING)
    assert store.find_by_key(business="b") == store.find_by_key(idempotency="i") == held
    assert list(store.insert([new_job(idempotency_key="i")])) == [held]
    with pytest.raises(DuplicateBusinessKey) as told:
        store.insert([new_job(business_key="b")])
    assert told.value.conflicts == {"b": new.id}


@contract("UNIT-05", needs=("transaction",), capability=UNITS)
def test_a_transaction_sees_its_own_keys(store: JobStore, begin: Begin) -> None:
    """Keys that a transaction has taken are taken for its own further submissions, too."""
    new = new_job(business_key="b", idempotency_key="i")
    with begin() as unit:
        store.insert([new], unit=unit)
        (repeat,) = store.insert([new_job(business_key="b", idempotency_key="i")], unit=unit)
        assert (repeat.id, repeat.created) == (new.id, False)
    first, second = new_job(business_key="c"), new_job(business_key="c")
    told: pytest.ExceptionInfo[DuplicateBusinessKey] | None = None
    with suppress(Undone), begin() as unit:
        store.insert([first], unit=unit)
        with pytest.raises(DuplicateBusinessKey) as told:
            store.insert([second], unit=unit)
        raise Undone
    assert told is not None
    assert told.value.conflicts == {"c": first.id}
    assert store.find_by_key(business="c") is None
    assert store.count(Selection()) == 1


@contract("UNIT-06", needs=("transaction",), capability=UNITS)
def test_a_list_is_in_the_transaction_as_a_whole_or_not(store: JobStore, begin: Begin) -> None:
    """Of a list that is refused nothing is committed, even if the caller goes on; conflicts are all named."""
    holders = [new_job(business_key="b"), new_job(business_key="c")]
    store.insert(holders)
    wanted = [new_job(business_key=key) for key in "abc"]
    # Some databases refuse to commit after a conflict.
    with suppress(Exception), begin() as unit, pytest.raises(DuplicateBusinessKey) as told:
        store.insert(wanted, unit=unit)
    assert told.value.conflicts == {"b": holders[0].id, "c": holders[1].id}
    assert store.find_by_key(business="a") is None
    assert store.count(Selection()) == 2
    with begin() as unit:
        answers = store.insert([new_job(business_key="a"), new_job(), new_job()], unit=unit)
    assert [answer.created for answer in answers] == [True] * 3
    assert store.count(Selection()) == 5


@contract("UNIT-07", needs=("transaction",), capability=UNITS)
def test_keys_that_were_used_before(store: JobStore, begin: Begin, driver: Driver) -> None:
    """In a transaction, too, a used idempotency key answers its job, and a settled job's business key is free."""
    first = new_job(business_key="b", idempotency_key="i")
    store.insert([first])
    with begin() as unit:
        assert list(store.insert([new_job(business_key="b", idempotency_key="i")], unit=unit)) == [
            Inserted(first.id, created=False, status=Status.PENDING)
        ]
    driver.end(driver.claim_one(first.id), Trigger.SUCCEED)
    second = new_job(business_key="b")
    with begin() as unit:
        assert store.insert([second], unit=unit)[0].created
    assert store.find_by_key(business="b") == Inserted(second.id, created=False, status=Status.PENDING)
    assert store.delete([first.id]) == 1
    with begin() as unit:
        assert list(store.insert([new_job(idempotency_key="i")], unit=unit)) == [
            Inserted(first.id, created=False, status=None)
        ]
    assert store.count(Selection()) == 1


@contract("UNIT-08", needs=("transaction",), capability=UNITS)
@pytest.mark.field_case("F60")
@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("kind", ["business", "idempotency"])
@pytest.mark.parametrize("other", ["alone", "in a transaction"])
def test_f60_a_key_of_an_open_transaction_is_not_taken_yet(
    under_test: UnderTest, store: JobStore, begin: Begin, end: str, kind: str, other: str
) -> None:
    """Whoever submits a key that an open transaction has used is told of a job that exists (F60)."""
    second = under_test.open()
    mine, theirs = (new_job(**{f"{kind}_key": "K"}) for _ in range(2))
    began, answered = threading.Event(), threading.Event()
    outcome: list[UUID | BaseException] = []

    def submit() -> None:
        try:
            outcome.append(_until_told(second, theirs, begin if other != "alone" else None, began))
        except BaseException as error:
            outcome.append(error)
        answered.set()

    thread = threading.Thread(target=submit, daemon=True)
    with suppress(Undone), begin() as unit:
        store.insert([mine], unit=unit)
        thread.start()
        assert began.wait(_PATIENCE)
        answered.wait(_MEETING)
        if end == "rollback":
            raise Undone
    assert answered.wait(_PATIENCE * 2)
    thread.join(_PATIENCE)
    expected = mine.id if end == "commit" else theirs.id
    assert outcome == [expected]
    assert [job.id for job in store.find(Selection()).jobs] == [expected]


def _until_told(store: JobStore, new: NewJob, begin: Begin | None, began: threading.Event) -> UUID:
    """The job that has the key; conflicts with a transaction that is open are tried again, in a new one."""
    until = time.monotonic() + _PATIENCE
    while True:
        began.set()
        try:
            with ExitStack() as stack:
                unit = stack.enter_context(begin(store)) if begin is not None else None
                (answer,) = store.insert([new], unit=unit)
            return answer.id
        except DuplicateBusinessKey as error:
            return error.holder
        except (StoreTransientError, DuplicateIdempotencyKey):
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


@contract("UNIT-09", needs=("transaction",), capability=UNITS)
def test_a_transaction_that_has_ended_is_refused(store: JobStore, begin: Begin) -> None:
    """After its end a transaction takes no job: the call is refused, and nothing is inserted."""
    with begin() as unit:
        store.insert([new_job()], unit=unit)
    with pytest.raises(UsageError):
        store.insert([new_job()], unit=unit)
    assert store.count(Selection()) == 1


@contract("UNIT-10", needs=("transaction",), capability=UNITS)
def test_no_first_claim_in_a_transaction(store: JobStore, begin: Begin, driver: Driver) -> None:
    """A job of a transaction comes without a claim, whoever asked for it."""
    new = new_job(claim_for="node-1")
    with begin() as unit:
        (answer,) = store.insert([new], unit=unit)
        assert (answer.claim, answer.status) == (None, Status.PENDING)
        assert list(store.held("node-1")) == []
    assert driver.claim_one(new.id, "node-2").claim_seq == 1


@contract("UNIT-11", needs=("transaction",), capability=UNITS)
def test_the_commit_wakes_everybody(under_test: UnderTest, store: JobStore, begin: Begin) -> None:
    """Where the store has wake-ups, a listener is woken after the commit, also one of the handle that inserted."""
    if Capability.WAKE_UPS not in store.capabilities or not meets(store, WakeUps):
        pytest.skip(NOT_DECLARED + Capability.WAKE_UPS)
    listening, heard = threading.Event(), threading.Event()
    known: list[UUID] = []

    def listen(hint: object) -> None:
        listening.set()
        if store.get_many(known):
            heard.set()

    with closing(cast("WakeUps", store).coordinator()) as coordinator:
        coordinator.start("a", listen)
        coordinator.watch(True)
        _hear_something(under_test.open(), listening)
        for _ in range(int(_PATIENCE * 2)):  # a single hint may get lost
            new = new_job()
            with begin() as unit:
                store.insert([new], unit=unit)
                known.append(new.id)
            if heard.wait(0.5):
                break
            known.clear()
        assert heard.is_set()


def _hear_something(store: JobStore, heard: threading.Event) -> None:
    """Submit until the listener hears: from then on it is there."""
    for _ in range(int(_PATIENCE * 2)):
        store.insert([new_job()])
        if heard.wait(0.5):
            return
    raise AssertionError("no listener was woken by what another handle has submitted")
