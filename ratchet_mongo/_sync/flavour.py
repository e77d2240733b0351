"""What differs between the drivers: PyMongo's sync client. The twin of `ratchet_mongo._async.flavour`."""

from __future__ import annotations

import threading
import time
from typing import Any, TypeAlias

Client: TypeAlias = Any
"""`pymongo.MongoClient`."""
Collection: TypeAlias = Any
Database: TypeAlias = Any

Lock = threading.Lock
sleep = time.sleep


def make_client(url: str, **options: Any) -> Client:
    """A client of our own; it connects at its first use."""
    from pymongo import MongoClient

    return MongoClient(url, **options)


def close_client(client: Client) -> None:
    """Close a client of our own."""
    client.close()


def aggregate(source: Any, pipeline: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    """All that an aggregate answers."""
    return list(source.aggregate(pipeline, **options))


def find(
    collection: Collection, where: dict[str, Any], *arguments: Any, **options: Any
) -> list[dict[str, Any]]:
    """All that a query answers."""
    return list(collection.find(where, *arguments, **options))
