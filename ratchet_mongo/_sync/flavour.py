"""What differs between the drivers: PyMongo's sync client. The twin of `ratchet_mongo._async.flavour`."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

from ratchet.errors import ConfigurationError, UsageError
from ratchet.spi.capabilities import Capability

if TYPE_CHECKING:
    from ratchet.spi.coordinator import ClusterCoordinator
    from ratchet_mongo._async.store import AsyncMongoJobStore
    from ratchet_mongo._sync.database import MongoDatabase

_CAPABILITIES = frozenset({str(Capability.WAKE_UPS), str(Capability.TRANSACTIONAL_ENQUEUE)})

Client: TypeAlias = Any
"""`pymongo.MongoClient`."""
Collection: TypeAlias = Any
Database: TypeAlias = Any
Session: TypeAlias = Any
"""`pymongo.client_session.ClientSession`."""

Lock = threading.Lock
sleep = time.sleep


def make_client(url: str, **options: Any) -> Client:
    """A client of our own; it connects at its first use."""
    from pymongo import MongoClient

    return MongoClient(url, **options)


def check_client(client: object) -> None:
    """See that a store can work with the client.

    Raises:
        ConfigurationError: it is none, or one of another flavour.
    """
    from pymongo.synchronous.mongo_client import MongoClient

    if not isinstance(client, MongoClient):
        raise ConfigurationError(
            f"MongoJobStore.from_client takes a MongoClient, not a {type(client).__name__}; an AsyncMongoClient "
            "or Motor's goes to AsyncMongoJobStore.from_client, a URL to from_url"
        )


def close_client(client: Client) -> None:
    """Close a client of our own."""
    client.close()


def close_with(owner: object, client: Client) -> None:
    """Close the client when its owner is collected unclosed: its connections and threads go with it."""
    weakref.finalize(owner, client.close).atexit = False


def aggregate(source: Any, pipeline: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    """All that an aggregate answers."""
    return list(source.aggregate(pipeline, **options))


def find(
    collection: Collection, where: dict[str, Any], *arguments: Any, **options: Any
) -> list[dict[str, Any]]:
    """All that a query answers."""
    return list(collection.find(where, *arguments, **options))


def is_asynchronous(unit: object) -> bool:
    """True for a session of `AsyncMongoClient` or of Motor's client."""
    from pymongo.asynchronous.client_session import AsyncClientSession
    from pymongo.synchronous.client_session import ClientSession

    return isinstance(unit, AsyncClientSession) or isinstance(getattr(unit, "delegate", None), ClientSession)


def check_session(unit: object) -> Session:
    """The session of the caller's transaction; `UsageError` for anything else."""
    from pymongo.synchronous.client_session import ClientSession

    if isinstance(unit, ClientSession):
        return unit
    if is_asynchronous(unit):
        raise UsageError("the session given as unit= is an asynchronous one; submit with AsyncScheduler")
    raise UsageError(f"unit= is a session of MongoClient, not an object of type {type(unit).__name__}")


class Extras:
    """What only one of the flavours has: the sync one can tell of work of other processes."""

    database: MongoDatabase
    _twin: AsyncMongoJobStore | None = None
    """Of the asynchronous client that was seen last; most applications have one."""

    @property
    def capabilities(self) -> frozenset[str]:
        """Names of the optional groups that this store declares."""
        return _CAPABILITIES

    def coordinator(self) -> ClusterCoordinator:
        """A new coordinator that follows the collection of jobs."""
        from ratchet_mongo.coordinator import MongoCoordinator

        return MongoCoordinator(self.database)

    def async_store_for(self, unit: object) -> AsyncMongoJobStore | None:
        """The same jobs on the client of an asynchronous session; see `ratchet.spi.capabilities.AsyncUnits`."""
        if not is_asynchronous(unit):
            return None
        client, ours = unit.client, self.database  # type: ignore[attr-defined]
        _ = ours.client  # a closed store says so
        twin = self._twin
        if twin is None or twin.database.client is not client:
            from ratchet_mongo._async.database import MongoDatabase
            from ratchet_mongo._async.store import AsyncMongoJobStore

            database = MongoDatabase(ours.name, client=client, clock=ours.clock, prefix=ours.prefix)
            database.expected = ours.leave_probe()
            self._twin = twin = AsyncMongoJobStore(database)
        return twin
