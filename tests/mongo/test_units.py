"""Submitting in a transaction of the application: conflicts, errors, clients, flavours, wake-ups and round trips."""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import InvalidOperation, OperationFailure, PyMongoError

from conformance_tests.driver import new_job, request
from ratchet import AsyncScheduler, JobHandle, Scheduler, Status
from ratchet.domain.lifecycle import Trigger
from ratchet.domain.settlement import Change, Settlement
from ratchet.errors import (
    DuplicateBusinessKey,
    DuplicateIdempotencyKey,
    JobPurged,
    RatchetError,
    StorePermanentError,
    StoreTransientError,
    UsageError,
)
from ratchet.spi.store import Applied, Refused, Selection
from ratchet_mongo import MongoJobStore
from ratchet_mongo.translate import TransactionAborted
from tests.field_cases.kit import quick_settings, wait_until
from tests.field_cases.stage import together
from tests.mongo import servers
from tests.mongo.conftest import server_or_skip
from tests.mongo.test_round_trips import Counter
from tests.unit import scheduler_kit as kit

pytestmark = pytest.mark.timeout(120)

AGAIN = "TransientTransactionError"
LONG = timedelta(seconds=60)
SLOW = 25.0
PROMPT = 10.0
"""Seconds in which a busy machine runs a job whose node was woken, and would not if it was not."""
ROOT = Path(__file__).parents[2]


class Undone(Exception):
    """What ends a transaction that is to be rolled back."""


@pytest.fixture
def client(mongo_url: str) -> Iterator[MongoClient[dict[str, Any]]]:
    """The application's client; its orders are in the database of the jobs."""
    made: MongoClient[dict[str, Any]] = MongoClient(mongo_url)
    with made:
        if "setName" not in made.admin.command("hello"):
            pytest.skip("NOT OFFERED: this deployment has no transactions")
        made.get_default_database().create_collection("orders")
        yield made


@pytest.fixture
def store(open_store: Callable[..., Any], client: MongoClient[dict[str, Any]]) -> MongoJobStore:
    """A store with a client of its own, whose collections are there."""
    made: MongoJobStore = open_store()
    made.counts()
    return made


def orders(client: MongoClient[dict[str, Any]]) -> Any:
    return client.get_default_database()["orders"]


def count(store: MongoJobStore) -> int:
    return store.count(Selection())


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


def test_a_server_without_transactions_says_so(
    store: MongoJobStore, client: MongoClient[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standalone server (its answer injected: the stand-in takes transactions) is told to become a replica set."""
    from pymongo.synchronous.collection import Collection

    told = "Transaction numbers are only allowed on a replica set member or mongos"
    real = Collection.insert_one

    def insert_one(self: Any, *args: Any, session: Any = None, **kwargs: Any) -> Any:
        if session is not None:
            raise OperationFailure(told, 20, {"errmsg": told, "code": 20})
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Collection, "insert_one", insert_one)
    with client.start_session() as session:
        session.start_transaction()
        with pytest.raises(StorePermanentError, match="make it a replica set"):
            store.insert([new_job()], unit=session)
    assert store.insert([new_job()])[0].created


# -- death ------------------------------------------------------------------------------------------


def test_a_process_that_dies_in_its_transaction(own_server: servers.Server) -> None:
    """A process killed in its open transaction leaves no job; with the transaction its key is free."""
    url = own_server.url("jobs")
    store = MongoJobStore.from_url(url)
    store.counts()
    process = subprocess.Popen(
        [sys.executable, "-c", "from tests.mongo.test_units import hold; hold()", url],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "inserted\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert count(store) == 0
    assert store.find_by_key(business="b") is None
    own_server.kill()  # and the server with it, whose transactions would otherwise live for a minute
    own_server.start()
    assert store.insert([new_job(business_key="b")])[0].created
    store.close()


def hold() -> None:
    """A process that inserts in a transaction and never ends it."""
    url = sys.argv[1]
    client: MongoClient[dict[str, Any]] = MongoClient(url)
    session = client.start_session()
    session.start_transaction()
    MongoJobStore.from_url(url).insert([new_job(business_key="b")], unit=session)
    print("inserted", flush=True)
    signal.pause()


# -- handles and wake-ups -----------------------------------------------------------------------------


@pytest.fixture
def scheduler(mongo_url: str, client: MongoClient[dict[str, Any]]) -> Iterator[Scheduler]:
    """A scheduler that polls every 25 s, and less often, when nothing wakes it."""
    made = Scheduler(
        MongoJobStore.from_url(mongo_url), allow=[kit.__name__], settings=quick_settings(poll=SLOW)
    )
    yield made
    made.close()


def _status(handle: JobHandle[Any]) -> Status | None:
    return handle.status


def test_a_handle_before_and_after(scheduler: Scheduler, client: MongoClient[dict[str, Any]]) -> None:
    """Before the commit, and after a rollback, a handle knows of no job; after the commit it is an ordinary one."""
    with client.start_session() as session, session.start_transaction():
        handle = scheduler.enqueue(kit.add, 1, b=2).submit(unit=session)
        assert handle.created
        assert _status(handle) is None
        assert handle.job() is None
        with pytest.raises(JobPurged):
            handle.result(1)
    assert _status(handle) is Status.PENDING
    with suppress(Undone), client.start_session() as session, session.start_transaction():
        undone = scheduler.enqueue(kit.add, 1, b=2).submit(unit=session)
        raise Undone
    assert _status(undone) is None
    with pytest.raises(JobPurged):
        undone.result(1)
    scheduler.start()
    assert handle.result(kit.WAIT) == 3


def asleep(scheduler: Scheduler) -> None:
    """Start the node and see it through its first jobs, to where it waits for a wake-up."""
    scheduler.start()
    coordinator: Any = scheduler._coordinator()
    wait_until(lambda: coordinator.streaming, kit.WAIT)
    assert scheduler.enqueue(kit.add, 1, b=1).submit().result(kit.WAIT) == 2


def test_a_commit_wakes_the_node(scheduler: Scheduler, client: MongoClient[dict[str, Any]]) -> None:
    """A job starts when its transaction is committed, also on the node that submitted it, long before the next poll."""
    asleep(scheduler)
    for _ in range(3):
        with client.start_session() as session, session.start_transaction():
            handles = [scheduler.enqueue(kit.add, 1, b=2).submit(unit=session) for _ in range(2)]
        assert [handle.result(PROMPT) for handle in handles] == [3, 3]


def test_a_job_that_was_due_before_the_commit(
    scheduler: Scheduler, client: MongoClient[dict[str, Any]]
) -> None:
    """A delay that ends in the open transaction lets a poll find nothing, and the commit wakes the node again."""
    asleep(scheduler)
    with client.start_session() as session, session.start_transaction():
        handle = scheduler.schedule(timedelta(milliseconds=30), kit.add, 1, b=2).submit(unit=session)
        due = scheduler.store.now() + timedelta(milliseconds=40)
        wait_until(lambda: scheduler.store.now() > due, kit.WAIT)
    assert handle.result(PROMPT) == 3


def test_a_delay_runs_from_the_submission(scheduler: Scheduler, client: MongoClient[dict[str, Any]]) -> None:
    """A job that is due after the commit starts then, although nobody is woken for it."""
    asleep(scheduler)
    with client.start_session() as session, session.start_transaction():
        handle = scheduler.schedule(timedelta(seconds=1), kit.add, 1, b=2).submit(unit=session)
    assert handle.status is Status.PENDING
    assert handle.result(PROMPT) == 3


def test_lists_and_several_builders(scheduler: Scheduler, client: MongoClient[dict[str, Any]]) -> None:
    """`enqueue_many` and `submit_many` take the transaction, too, and are rolled back with it."""

    def submit(session: Any) -> list[Any]:
        many = scheduler.enqueue_many(kit.add, [(1, 2), (3, 4)], business_key="{0}".format, unit=session)
        builders = [scheduler.enqueue(kit.add, n, b=n) for n in (5, 6)]
        return [*many, *scheduler.submit_many(builders, unit=session)]

    with suppress(Undone), client.start_session() as session, session.start_transaction():
        submit(session)
        raise Undone
    assert scheduler.query.count() == 0
    with client.start_session() as session:
        handles = session.with_transaction(submit)
    scheduler.start()
    assert [handle.result(kit.WAIT) for handle in handles] == [3, 7, 10, 12]


# -- asyncio ------------------------------------------------------------------------------------------


def pymongo_async(url: str) -> Any:
    return AsyncMongoClient(url)


def motor(url: str) -> Any:
    from motor.motor_asyncio import AsyncIOMotorClient

    client: Any = AsyncIOMotorClient(url)
    return client


@asynccontextmanager
async def transaction_of(client: Any) -> AsyncIterator[Any]:
    opened = client.start_session()
    async with await opened if inspect.isawaitable(opened) else opened as session:
        started = session.start_transaction()
        async with await started if inspect.isawaitable(started) else started:
            yield session


async def closed(client: Any) -> None:
    ended = client.close()
    if inspect.isawaitable(ended):
        await ended


@pytest.mark.parametrize("make", [pymongo_async, motor])
@pytest.mark.asyncio
async def test_from_asyncio(
    mongo_url: str, client: MongoClient[dict[str, Any]], make: Callable[[str], Any]
) -> None:
    """`AsyncScheduler` joins transactions of PyMongo's asynchronous client and of Motor's, however it submits."""
    scheduler = AsyncScheduler.from_url(mongo_url, allow=[kit.__name__])
    await scheduler.query.count()  # the first call of all makes collections
    theirs = make(mongo_url)

    async def submit(session: Any) -> list[Any]:
        one = await scheduler.enqueue(kit.add, 1, b=2).with_idempotency_key("i").submit(unit=session)
        many = await scheduler.enqueue_many(kit.add, [(3, 4)], business_key="{0}".format, unit=session)
        builders = [scheduler.enqueue(kit.add_later, 5)]
        return [one, *many, *await scheduler.submit_many(builders, unit=session)]

    with suppress(Undone):
        async with transaction_of(theirs) as session:
            await theirs.get_default_database()["orders"].insert_one({"_id": 1}, session=session)
            await submit(session)
            raise Undone
    assert await scheduler.query.count() == 0
    assert orders(client).count_documents({}) == 0
    async with scheduler:
        opened = theirs.start_session()
        async with await opened if inspect.isawaitable(opened) else opened as session:
            handles = await session.with_transaction(submit)
        assert [await handle.result(kit.WAIT) for handle in handles] == [3, 7, 6]
        with pytest.raises(UsageError, match="no open transaction"):
            await scheduler.enqueue(kit.add, 1, b=2).submit(unit=session)
    await closed(theirs)
    await scheduler.close()


@pytest.mark.asyncio
async def test_a_synchronous_session_from_asyncio(
    mongo_url: str, client: MongoClient[dict[str, Any]]
) -> None:
    """A session of the synchronous client is joined from asyncio code, too, off the loop."""
    scheduler = AsyncScheduler.from_url(mongo_url, allow=[kit.__name__])
    with client.start_session() as session, session.start_transaction():
        handle = await scheduler.enqueue(kit.add, 1, b=2).submit(unit=session)
        assert await handle.status() is None
    assert await handle.status() is Status.PENDING
    await scheduler.close()


@pytest.mark.asyncio
async def test_with_transaction_from_asyncio(mongo_url: str, client: MongoClient[dict[str, Any]]) -> None:
    """After a conflict the driver runs the asynchronous callback again, and the key is answered."""
    scheduler = AsyncScheduler.from_url(mongo_url, allow=[kit.__name__])
    theirs: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(mongo_url)
    original: list[UUID] = []
    calls = 0

    async def callback(session: Any) -> Any:
        nonlocal calls
        calls += 1
        await theirs.get_default_database()["orders"].insert_one({"by": calls}, session=session)
        if not original:
            other = await scheduler.enqueue(kit.add, 1, b=2).with_idempotency_key("i").submit()
            original.append(other.id)
        return await scheduler.enqueue(kit.add, 1, b=2).with_idempotency_key("i").submit(unit=session)

    async with theirs.start_session() as session:
        handle = await session.with_transaction(callback)
    assert (handle.id, handle.created, calls) == (original[0], False, 2)
    assert [order["by"] for order in orders(client).find()] == [2]
    await theirs.close()
    await scheduler.close()


@pytest.mark.asyncio
async def test_another_deployment_is_refused_from_asyncio(mongo_url: str) -> None:
    """An asynchronous session of a client that is connected elsewhere is refused."""
    scheduler = AsyncScheduler.from_url(mongo_url, allow=[kit.__name__])
    other: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(
        server_or_skip(standalone=True).url("elsewhere")
    )
    async with transaction_of(other) as session:
        for _ in range(2):
            with pytest.raises(UsageError, match="another deployment"):
                await scheduler.enqueue(kit.add, 1, b=2).submit(unit=session)
    assert await scheduler.query.count() == 0
    await other.close()
    await scheduler.close()


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
