"""Submitting in a transaction of the application through schedulers: handles, wake-ups, asyncio."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from pymongo import AsyncMongoClient, MongoClient

from ratchet import AsyncScheduler, JobHandle, Scheduler, Status
from ratchet.engine.polling import PollMode
from ratchet.errors import (
    JobPurged,
    UsageError,
)
from ratchet.settings import PollingSettings
from ratchet_mongo import MongoJobStore
from tests.field_cases.kit import quick_settings, wait_until
from tests.field_cases.stage import running
from tests.mongo.conftest import server_or_skip
from tests.mongo.units import Undone, orders
from tests.unit import scheduler_kit as kit

pytestmark = pytest.mark.timeout(120)

SLOW = 25.0
PROMPT = 10.0
"""Seconds in which a busy machine runs a job whose node was woken, and would not if it was not."""


# -- handles and wake-ups -----------------------------------------------------------------------------


@pytest.fixture
def scheduler(mongo_url: str, client: MongoClient[dict[str, Any]]) -> Iterator[Scheduler]:
    """A scheduler that polls every 25 s, and less often, when nothing wakes it."""
    polling = PollingSettings(burst=0.2, fastest=SLOW, slowest=2 * SLOW, idle=2 * SLOW)
    made = Scheduler(
        MongoJobStore.from_url(mongo_url),
        allow=[kit.__name__],
        settings=replace(quick_settings(), polling=polling),
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
    poller = running(scheduler).parts.poller
    wait_until(lambda: poller.state.mode is not PollMode.BURST, kit.WAIT)


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
