"""Clients: whose they are, and when they are closed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from conformance_tests.driver import new_job
from ratchet.errors import ConfigurationError, StoreClosed
from ratchet_mongo import MongoJobStore
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
