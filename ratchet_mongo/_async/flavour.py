"""What differs between the drivers: PyMongo's async client and Motor's. Its sync twin is written by hand."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, TypeAlias

from ratchet.errors import ConfigurationError, UsageError
from ratchet.spi.capabilities import Capability

_CAPABILITIES = frozenset({str(Capability.TRANSACTIONAL_ENQUEUE)})

Client: TypeAlias = Any
"""`pymongo.AsyncMongoClient`, or `motor.motor_asyncio.AsyncIOMotorClient`, which has no types."""
Collection: TypeAlias = Any
Database: TypeAlias = Any
Session: TypeAlias = Any
"""`pymongo.asynchronous.client_session.AsyncClientSession`, or Motor's, which wraps a synchronous one."""

Lock = asyncio.Lock
sleep = asyncio.sleep


def make_client(url: str, **options: Any) -> Client:
    """A client of our own; it connects at its first use."""
    from pymongo import AsyncMongoClient

    return AsyncMongoClient(url, **options)


def check_client(client: object) -> None:
    """See that a store can work with the client.

    Raises:
        ConfigurationError: it is none, or one of another flavour.
    """
    from pymongo.asynchronous.mongo_client import AsyncMongoClient
    from pymongo.synchronous.mongo_client import MongoClient

    if isinstance(client, AsyncMongoClient) or isinstance(getattr(client, "delegate", None), MongoClient):
        return
    raise ConfigurationError(
        "AsyncMongoJobStore.from_client takes an AsyncMongoClient or Motor's client, not a "
        f"{type(client).__name__}; a MongoClient goes to MongoJobStore.from_client, a URL to from_url"
    )


async def close_client(client: Client) -> None:
    """Close a client of our own."""
    await client.close()


def close_with(owner: object, client: Client) -> None:
    """Close the client when its owner is collected unclosed: not without a loop to await it on."""


async def aggregate(source: Any, pipeline: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    """All that an aggregate answers. PyMongo's is awaited for its cursor, Motor's is not."""
    cursor = source.aggregate(pipeline, **options)
    if inspect.isawaitable(cursor):
        cursor = await cursor
    found: list[dict[str, Any]] = await cursor.to_list(None)
    return found


async def find(
    collection: Collection, where: dict[str, Any], *arguments: Any, **options: Any
) -> list[dict[str, Any]]:
    """All that a query answers."""
    found: list[dict[str, Any]] = await collection.find(where, *arguments, **options).to_list(None)
    return found


def check_session(unit: object) -> Session:
    """The session of the caller's transaction; `UsageError` for anything else."""
    from pymongo.asynchronous.client_session import AsyncClientSession
    from pymongo.synchronous.client_session import ClientSession

    if isinstance(unit, AsyncClientSession) or isinstance(getattr(unit, "delegate", None), ClientSession):
        return unit
    kind = (
        "a synchronous session"
        if isinstance(unit, ClientSession)
        else f"an object of type {type(unit).__name__}"
    )
    raise UsageError(
        f"unit= of an asynchronous store is a session of AsyncMongoClient, or of Motor's client, not {kind}"
    )


class Extras:
    """What differs between the flavours: nothing is told to listeners by the async one."""

    @property
    def capabilities(self) -> frozenset[str]:
        """Names of the optional groups that this store declares."""
        return _CAPABILITIES
