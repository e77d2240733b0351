"""Clients: whose they are, and when they are closed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from conformance_tests.driver import new_job
from ratchet.errors import ConfigurationError, StoreClosed, StorePermanentError
from ratchet_mongo import AsyncMongoJobStore, MongoJobStore
from ratchet_mongo.plugin import mongodb


def test_a_client_of_the_application_is_never_closed(mongo_url: str) -> None:
    """Closing the store leaves the client that it was given open, and refuses further calls."""
    from pymongo import MongoClient

    client: MongoClient[dict[str, Any]] = MongoClient(mongo_url)
    with client:
        store = MongoJobStore.from_client(client, mongo_url.rpartition("/")[2])
        store.insert([new_job()])
        store.close()
        with pytest.raises(StoreClosed):
            store.counts()
        assert client.admin.command("ping")["ok"] == 1


def test_a_store_that_is_forgotten_leaves_no_connection(mongo_url: str) -> None:
    """A store that nobody closed closes its own client when it is collected (a warning would be an error)."""
    store = MongoJobStore.from_url(mongo_url)
    store.insert([new_job()])
    del store
    gc.collect()


@pytest.mark.parametrize("url", ["mongodb://", "mongodb:///jobs", "mongo://host", "mongodb+srv://"])
def test_malformed_urls_are_refused(url: str) -> None:
    """A URL without a host, or of another scheme, is a configuration error, and nothing is opened."""
    with pytest.raises(ConfigurationError):
        mongodb.open(url)


def test_the_url_names_the_database(open_store: Callable[..., Any]) -> None:
    """The path of the URL is the database; without one it is `ratchet`."""
    assert open_store(url="mongodb://h/shop?w=1").database.name == "shop"
    assert open_store(url="mongodb://h").database.name == "ratchet"
    assert open_store(url="mongodb://h/?w=1").database.name == "ratchet"


def test_a_closed_client_is_permanent(mongo_url: str) -> None:
    """A client that its owner has closed never answers again: a permanent error says so."""
    from pymongo import MongoClient

    client: MongoClient[dict[str, Any]] = MongoClient(mongo_url)
    store = MongoJobStore.from_client(client, mongo_url.rpartition("/")[2])
    store.counts()
    client.close()
    with pytest.raises(StorePermanentError, match="owner has closed"):
        store.insert([new_job()])


async def _async_client(url: str) -> Any:
    from pymongo import AsyncMongoClient

    return AsyncMongoClient(url)


def test_a_client_of_another_flavour_is_refused(mongo_url: str) -> None:
    """What is no client, or one of another flavour, is refused at once, with the name of what takes it."""
    from pymongo import MongoClient

    for wrong in (asyncio.run(_async_client(mongo_url)), mongo_url, None):
        with pytest.raises(ConfigurationError, match="MongoJobStore"):
            MongoJobStore.from_client(wrong, "x")
    with MongoClient[dict[str, Any]](mongo_url) as client:
        with pytest.raises(ConfigurationError, match="AsyncMongoClient"):
            AsyncMongoJobStore.from_client(client, "x")
        with pytest.raises(ConfigurationError, match="named by a text"):
            MongoJobStore.from_client(client, client["x"])  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["tlsCAFile", "tlsCertificateKeyFile"])
def test_a_certificate_that_cannot_be_read_is_permanent(option: str) -> None:
    """A file that is not there makes a URL from which no client can be made."""
    store = MongoJobStore.from_url(f"mongodb://localhost:1/shop?tls=true&{option}=/no/such/file")
    with pytest.raises(StorePermanentError, match="no client can be made"):
        store.counts()
