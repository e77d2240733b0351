"""The conformance harness of the MongoDB store, found by ``ratchet conformance mongodb://host/``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import fields
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from inspect import isawaitable
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from conformance_tests.harness import SettableClock, StoreHarness
from ratchet.domain.job import Job, NewJob
from ratchet.domain.lifecycle import SETTLED
from ratchet.spi.async_store import AsyncJobStore
from ratchet.spi.store import JobStore
from ratchet_mongo import AsyncMongoJobStore, MongoJobStore
from ratchet_mongo._async.flavour import Client
from ratchet_mongo.documents import lane_of, stored
from ratchet_mongo.plugin import mongodb


class MongoHarness(StoreHarness):
    """A database of a new name on the server of the URL, emptied before each test and dropped at the end.

    Args:
        url: the server; the database that it names is not touched.
    """

    flavours = ("sync",)

    def __init__(self, url: str = "mongodb://127.0.0.1:27017/") -> None:
        mongodb.open(url).close()  # opens nothing, but tells what is wrong with the URL
        self.clock = SettableClock()
        self.name = f"ratchet_conformance_{uuid4().hex[:12]}"
        self.url = urlunsplit(urlsplit(url)._replace(path=f"/{self.name}"))
        self._keeper = MongoJobStore.from_url(self.url)

    def open(self) -> JobStore:
        """A further handle, with a client of its own."""
        return MongoJobStore.from_url(self.url, clock=self.clock)

    def open_async(self) -> AsyncJobStore:
        """The same for the async flavour."""
        return AsyncMongoJobStore.from_url(self.url, clock=self.clock)

    def reset(self) -> None:
        """Empty it; its indexes are made once."""
        self.clock = SettableClock()
        database = self._keeper.database
        for collection in (
            database.jobs,
            database.business,
            database.idempotency,
            database.operations,
            database.executions,
            database.nodes,
        ):
            collection.delete_many({})

    def close(self) -> None:
        """Drop it."""
        self._keeper.database.client.drop_database(self.name)
        self._keeper.close()

    def seed(self, job: Job) -> None:
        """Submit it, then write the fields that only transitions write."""
        shared = {each.name for each in fields(NewJob)} & {each.name for each in fields(Job)}
        written = {each.name for each in fields(Job)} - shared - {"id"}
        values = {name: stored(getattr(job, name)) for name in written}
        lane = lane_of(job.status, job.type, job.executor, job.priority, job.scheduled_time)
        values["lane"] = lane
        change: dict[str, Any] = {
            "$set": {name: value for name, value in values.items() if value is not None},
            "$unset": {name: "" for name, value in values.items() if value is None},
        }
        store = MongoJobStore.from_url(self.url, clock=self.clock)
        key = None if job.status in SETTLED else job.business_key
        given: dict[str, Any] = {name: getattr(job, name) for name in shared} | {"business_key": key}
        store.insert([NewJob(**given, at=job.scheduled_time)])
        if job.business_key is not None:
            change["$set"]["business_key"] = job.business_key
        store.database.jobs.update_one({"_id": job.id}, change)
        store.close()

    def crash_points(self, store: JobStore, reached: Callable[[str], None]) -> None:
        """The hook between the writes of one operation."""
        store.database.reached = reached  # type: ignore[attr-defined]

    def transaction(self, store: JobStore) -> Any:
        """A transaction on the store's own client."""
        database = store.database  # type: ignore[attr-defined]
        return (
            _transaction(database.client)
            if isinstance(store, MongoJobStore)
            else _async_transaction(database.client)
        )

    def offers(self, hook: str) -> bool:
        """A standalone server has no transactions, although a stand-in of one accepts them."""
        return super().offers(hook) and (hook != "transaction" or self._has_transactions())

    def _has_transactions(self) -> bool:
        told = self._keeper.database.client.admin.command("hello")
        return "setName" in told or told.get("msg") == "isdbgrid"

    def open_process(self) -> Callable[[], JobStore]:
        """Opens the database by the store's entry point."""
        return partial(mongodb.open, self.url)

    def versions(self) -> Mapping[str, str]:
        """Of the distribution, the server and the driver."""
        try:
            store = version("ratchet-jobs")
        except PackageNotFoundError:
            store = "not installed"
        server = self._keeper.database.server_version()
        return {
            "store": f"mongodb (ratchet-jobs {store})",
            "database": f"MongoDB {server}",
            "driver": f"PyMongo {version('pymongo')}",
        }


@contextmanager
def _transaction(client: Client) -> Iterator[object]:
    with client.start_session() as session, session.start_transaction():
        yield session


@asynccontextmanager
async def _async_transaction(client: Client) -> AsyncIterator[object]:
    opened = client.start_session()
    async with await opened if isawaitable(opened) else opened as session:  # Motor's is awaited
        started = session.start_transaction()
        async with await started if isawaitable(started) else started:  # PyMongo's is
            yield session


class AsyncMongoHarness(MongoHarness):
    """The async flavour, on PyMongo's client."""

    flavours = ("async",)
