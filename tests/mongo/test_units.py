"""Submitting in a transaction of the application: its writes, conflicts, what is refused, and round trips."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import InvalidOperation, PyMongoError

from conformance_tests.driver import new_job, request
from ratchet import Status
from ratchet.domain.lifecycle import Trigger
from ratchet.domain.settlement import Change, Settlement
from ratchet.errors import (
    DuplicateBusinessKey,
    DuplicateIdempotencyKey,
    RatchetError,
    StoreTransientError,
    UsageError,
)
from ratchet.spi.store import Applied, Refused, Selection
from ratchet_mongo import MongoJobStore
from ratchet_mongo.translate import TransactionAborted
from tests.field_cases.stage import together
from tests.mongo.conftest import server_or_skip
from tests.mongo.test_round_trips import Counter
from tests.mongo.units import Undone, count, orders

pytestmark = pytest.mark.timeout(120)

AGAIN = "TransientTransactionError"
LONG = timedelta(seconds=60)


# -- the application's writes and the job ---------------------------------------------------------


def test_the_order_and_its_job_are_one(store: MongoJobStore, client: MongoClient[dict[str, Any]]) -> None:
    """With the commit both are there; with a rollback neither."""
    with client.start_session() as session, session.start_transaction():
        orders(client).insert_one({"_id": 1}, session=session)
        (kept,) = store.insert([new_job()], unit=session)
    with suppress(Undone), client.start_session() as session, session.start_transaction():
        orders(client).insert_one({"_id": 2}, session=session)
        store.insert([new_job() for _ in range(3)], unit=session)
        raise Undone
    assert [order["_id"] for order in orders(client).find()] == [1]
    assert [job.id for job in store.find(Selection()).jobs] == [kept.id]


def test_the_first_submission_ever(
    open_store: Callable[..., Any], client: MongoClient[dict[str, Any]]
) -> None:
    """A transaction that began before our collections were made does not see them; the driver runs it once more."""
    store: MongoJobStore = open_store()
    told: list[RatchetError] = []

    def callback(session: Any) -> None:
        orders(client).insert_one({"_id": 1}, session=session)
        try:
            store.insert([new_job(business_key="b", idempotency_key="i")], unit=session)
        except RatchetError as error:
            told.append(error)
            raise

    with client.start_session() as session:
        session.with_transaction(callback)
    assert count(store) == orders(client).count_documents({}) == 1
    assert [type(error) for error in told] == [TransactionAborted]


def test_a_long_list(store: MongoJobStore, client: MongoClient[dict[str, Any]]) -> None:
    """A list of several thousands goes into one transaction, and comes out of it in order and as a whole."""
    jobs = [new_job(business_key=f"b{number}", idempotency_key=f"i{number}") for number in range(2_100)]
    with suppress(Undone), client.start_session() as session, session.start_transaction():
        store.insert(jobs, unit=session)
        raise Undone
    assert count(store) == 0
    with client.start_session() as session, session.start_transaction():
        answers = store.insert(jobs, unit=session)
    assert [answer.id for answer in answers] == [job.id for job in jobs]
    assert count(store) == 2_100


def test_a_duplicate_leaves_the_transaction_usable(
    store: MongoJobStore, client: MongoClient[dict[str, Any]]
) -> None:
    """A held key is found by reading: the caller may catch the error, go on and commit the rest."""
    store.insert([new_job(business_key="b")])
    with client.start_session() as session, session.start_transaction():
        orders(client).insert_one({"_id": 1}, session=session)
        with pytest.raises(DuplicateBusinessKey):
            store.insert([new_job(business_key="a"), new_job(business_key="b")], unit=session)
        store.insert([new_job(business_key="a")], unit=session)
    assert orders(client).count_documents({}) == 1
    assert count(store) == 2


@pytest.mark.parametrize("committed", [True, False])
def test_what_fails_after_a_write_ends_the_transaction(
    store: MongoJobStore, client: MongoClient[dict[str, Any]], committed: bool
) -> None:
    """An id that is stored, or was submitted in this transaction, is refused, and nothing can be committed any more."""
    taken, other = new_job(), new_job(business_key="b")
    if committed:
        store.insert([taken])
    with client.start_session() as session:
        session.start_transaction()
        orders(client).insert_one({"_id": 1}, session=session)
        if not committed:
            store.insert([taken], unit=session)
        with pytest.raises(UsageError, match="already"):
            store.insert([other, taken], unit=session)
        with pytest.raises(InvalidOperation):
            session.commit_transaction()
    assert orders(client).count_documents({}) == 0
    assert store.find_by_key(business="b") is None
    assert count(store) == int(committed)


# -- conflicts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["business", "idempotency"])
def test_with_transaction_runs_again_after_a_conflict(
    store: MongoJobStore, client: MongoClient[dict[str, Any]], kind: str
) -> None:
    """Of two transactions of one key the driver runs the loser again, which is then told of the winner's job."""
    both, calls, told = threading.Barrier(2), [0, 0], [0, 0]

    def submit(place: int) -> tuple[bool, UUID]:
        new = new_job(**{f"{kind}_key": "K"})

        def callback(session: Any) -> tuple[bool, UUID]:
            calls[place] += 1
            orders(client).insert_one({"by": place}, session=session)
            if calls[place] == 1:
                both.wait(30)
            try:
                (answer,) = store.insert([new], unit=session)
            except DuplicateBusinessKey as error:
                return False, error.holder
            except RatchetError:
                told[place] += 1
                raise
            return answer.created, answer.id

        with client.start_session() as session:
            return session.with_transaction(callback)

    answers = together(lambda: submit(0), lambda: submit(1))
    assert sorted(created for created, _ in answers) == [False, True]
    assert len({job_id for _, job_id in answers}) == count(store) == 1
    assert sum(calls) == 2 + sum(told) > 2
    assert orders(client).count_documents({}) == 2


@pytest.mark.parametrize(
    ("kind", "error"), [("business", StoreTransientError), ("idempotency", DuplicateIdempotencyKey)]
)
@pytest.mark.parametrize("ended", ["committed", "open"])
def test_a_conflict_by_hand(
    store: MongoJobStore,
    client: MongoClient[dict[str, Any]],
    kind: str,
    error: type[RatchetError],
    ended: str,
) -> None:
    """Without `with_transaction` the loser of a key is told to run it again, in our words and the driver's."""
    theirs, mine = (new_job(**{f"{kind}_key": "K"}) for _ in range(2))
    with client.start_session() as first, client.start_session() as second:
        second.start_transaction()
        orders(client).find_one(session=second)  # from here on it sees nothing that is committed later
        first.start_transaction()
        store.insert([theirs], unit=first)
        if ended == "committed":
            first.commit_transaction()
        with pytest.raises(error, match="run") as told:
            store.insert([mine], unit=second)
        assert isinstance(told.value, PyMongoError)
        assert told.value.has_error_label(AGAIN)
        assert not second.in_transaction
    assert store.get(mine.id) is None


def test_a_requeue_and_a_transaction_want_one_key(
    store: MongoJobStore, client: MongoClient[dict[str, Any]], open_store: Callable[..., Any]
) -> None:
    """Of a requeue and a submission in a transaction at the same moment exactly one gets the business key."""
    requeuer: MongoJobStore = open_store()
    won: set[str] = set()
    for number in range(24):
        key = f"K{number}"
        failed = new_job(business_key=key)
        store.insert([failed])
        (claim,) = store.claim(request()).claims
        fail = Change(
            Trigger.FAIL, failed.id, claim_seq=claim.claim_seq, attempts=1, error="e", duration=LONG
        )
        store.settle(Settlement(fail))
        start = threading.Barrier(2)

        def requeue(failed: Any = failed, start: Any = start) -> UUID | None:
            start.wait(30)
            try:
                answer = requeuer.apply(Change(Trigger.REQUEUE, failed.id))
            except DuplicateBusinessKey:
                return None
            assert isinstance(answer, Applied | Refused)
            return failed.id if isinstance(answer, Applied) else None

        def submit(key: str = key, start: Any = start) -> UUID | None:
            new = new_job(business_key=key)

            def callback(session: Any) -> UUID | None:
                try:
                    return store.insert([new], unit=session)[0].id
                except DuplicateBusinessKey:
                    return None

            with client.start_session() as session:
                start.wait(30)
                return session.with_transaction(callback)

        answers = together(requeue, submit)
        (holder,) = [each for each in answers if each is not None]
        found = store.find_by_key(business=key)
        assert found is not None
        assert found.id == holder
        won.add("requeue" if holder == failed.id else "transaction")
        store.settle(Settlement(Change(Trigger.CANCEL, holder)))
    assert won


@pytest.mark.parametrize("called_off", [False, True])
def test_what_a_dead_submission_left_is_completed(
    store: MongoJobStore, client: MongoClient[dict[str, Any]], called_off: bool
) -> None:
    """A key that was reserved by a submission that died gets its job, under the promised id, from a transaction."""
    promised = uuid4()
    store.counts()
    database = store.database
    database.business.insert_one({"_id": "b", "holder": promised, "token": uuid4()})
    database.idempotency.insert_one({"_id": "i", "job": promised, "token": uuid4()})
    if called_off:
        database.jobs.insert_one({"_id": promised, "void": True, "fence": 0})

    def submit(session: Any) -> None:
        (answer,) = store.insert([new_job(business_key="b", idempotency_key="i")], unit=session)
        assert (answer.id, answer.created) == (promised, True)
        assert store.insert([new_job(idempotency_key="i")], unit=session)[0].id == promised

    def undone(session: Any) -> None:
        submit(session)
        raise Undone

    with client.start_session() as session:
        with pytest.raises(Undone):
            session.with_transaction(undone)
        assert store.get(promised) is None
        session.with_transaction(submit)
    found = store.get(promised)
    assert found is not None
    assert (found.business_key, found.idempotency_key, found.status) == ("b", "i", Status.PENDING)
    assert count(store) == 1


# -- what is no unit --------------------------------------------------------------------------------


def test_what_is_refused(store: MongoJobStore, client: MongoClient[dict[str, Any]]) -> None:
    """A session without a transaction, an ended one, an asynchronous one and anything else: a sentence that helps."""
    with client.start_session() as session:
        with pytest.raises(UsageError, match="no open transaction"):
            store.insert([new_job()], unit=session)
        session.start_transaction()
        store.insert([new_job()], unit=session)
        session.abort_transaction()
        with pytest.raises(UsageError, match="no open transaction"):
            store.insert([new_job()], unit=session)
    with pytest.raises(UsageError, match="no open transaction"):
        store.insert([new_job()], unit=session)
    for unit in (client, "session", 1):
        with pytest.raises(UsageError, match="is a session of MongoClient, not"):
            store.insert([new_job()], unit=unit)
    apart: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(store.database.client.address[0])
    with pytest.raises(UsageError, match="AsyncScheduler"):
        store.insert([new_job()], unit=apart.start_session())
    asyncio.run(apart.close())
    assert count(store) == 0


def test_another_deployment_is_refused(
    store: MongoJobStore, client: MongoClient[dict[str, Any]], mongo_url: str
) -> None:
    """A session of a client that is connected elsewhere is refused, also where the database has the same name."""
    name = mongo_url.rpartition("/")[2]
    other: MongoClient[dict[str, Any]] = MongoClient(server_or_skip(standalone=True).url(name))
    with other, other.start_session() as session:
        for _ in range(2):
            session.start_transaction()
            with pytest.raises(UsageError, match="another deployment"):
                store.insert([new_job()], unit=session)
            session.abort_transaction()
        assert name not in other.list_database_names()
    assert count(store) == 0
    assert store.database.probes.count_documents({}) == 0


def test_any_client_of_the_deployment_will_do(
    mongo_url: str, store: MongoJobStore, client: MongoClient[dict[str, Any]]
) -> None:
    """The session may be of the store's client, of another one, or of one that has another name for the server."""
    aliased: MongoClient[dict[str, Any]] = MongoClient(
        mongo_url.replace("127.0.0.1", "localhost"), directConnection=True
    )
    own = MongoJobStore.from_client(client, mongo_url.rpartition("/")[2])
    with aliased:
        for each, made in ((store, client), (store, aliased), (own, client), (own, aliased)):
            for _ in range(2):
                with made.start_session() as session, session.start_transaction():
                    each.insert([new_job()], unit=session)
    assert count(store) == 8
    assert store.database.probes.count_documents({}) == 0
    own.close()


# -- round trips --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, 1),
        ({"idempotency_key": "i"}, 3),
        ({"business_key": "b"}, 3),
        ({"idempotency_key": "i", "business_key": "b"}, 5),
    ],
)
def test_round_trips(mongo_url: str, fields: dict[str, str], most: int) -> None:
    """One round trip for a job, two more for each kind of key, as the documentation says; a list takes no more."""
    server_or_skip()
    counter = Counter()
    client: MongoClient[dict[str, Any]] = MongoClient(mongo_url, event_listeners=[counter])
    with client:
        store = MongoJobStore.from_client(client, mongo_url.rpartition("/")[2])
        store.now()
        with client.start_session() as session:
            for number in range(3):
                several = [
                    new_job(**{name: f"{key}{number}.{place}" for name, key in fields.items()})
                    for place in range(1 if number < 2 else 50)
                ]
                session.start_transaction()
                with counter.counting() as commands:
                    store.insert(several, unit=session)
                    sent = list(commands)
                session.commit_transaction()
                if number:  # the first one makes collections
                    assert len(sent) == most, sent
