"""What tests of submissions in a transaction share."""

from __future__ import annotations

from typing import Any

from pymongo import MongoClient

from ratchet.spi.store import JobStore, Selection


class Undone(Exception):
    """What ends a transaction that is to be rolled back."""


def orders(client: MongoClient[dict[str, Any]]) -> Any:
    """The application's orders, in the database of the jobs."""
    return client.get_default_database()["orders"]


def count(store: JobStore) -> int:
    """How many jobs there are."""
    return store.count(Selection())
