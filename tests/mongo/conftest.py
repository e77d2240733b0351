"""Fixtures of the MongoDB store's own tests: a server, a database of this test's own, and stores on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.conftest import NOT_RUN
from tests.mongo import servers

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this folder is about MongoDB: `--stores` chooses it like a test that takes `store_url`."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.stores("mongodb"))


def needs(ability: servers.Ability) -> None:
    """Go on only with a server that is able to; else the test is NOT RUN (see also the mark `mongodb_needs`)."""
    with suppress(servers.NoServer):  # which is told by whoever asks for the server
        if reason := servers.lacking(ability):
            pytest.skip(f"{NOT_RUN}mongodb: {reason}")


def server_or_skip(*, standalone: bool = False) -> servers.Server:
    """The shared server; without one the test is NOT RUN, with the reason."""
    try:
        return servers.shared(standalone=standalone)
    except servers.NoServer as reason:
        pytest.skip(f"{NOT_RUN}mongodb: {reason}")


@pytest.fixture
def mongo_url() -> str:
    """The URL of an empty database."""
    try:
        return servers.database_url(f"t{uuid4().hex}")
    except servers.NoServer as reason:
        pytest.skip(f"{NOT_RUN}mongodb: {reason}")


@pytest.fixture
def own_server() -> Iterator[servers.Server]:
    """A server of this test's own, to be killed; the fast stand-in, whose commits survive that."""
    if os.environ.get(servers.DEPLOYMENT):
        pytest.skip(f"{NOT_RUN}mongodb: a deployment of others is not killed")
    if servers.rust_server() is None:
        pytest.skip(f"{NOT_RUN}mongodb: {servers.LACKING['kill']}")
    server = servers.Server().start()
    yield server
    server.remove()


@pytest.fixture
def open_store(mongo_url: str) -> Iterator[Callable[..., Any]]:
    """Opens handles on the test's database, closed at its end."""
    from ratchet_mongo import MongoJobStore

    opened: list[Any] = []

    def make(**options: Any) -> Any:
        store = MongoJobStore.from_url(options.pop("url", mongo_url), **options)
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def client(mongo_url: str) -> Iterator[Any]:
    """The application's client; its orders are in the database of the jobs."""
    from pymongo import MongoClient

    made: MongoClient[dict[str, Any]] = MongoClient(mongo_url)
    with made:
        if "setName" not in made.admin.command("hello"):
            pytest.skip("NOT OFFERED: this deployment has no transactions")
        made.get_default_database().create_collection("orders")
        yield made


@pytest.fixture
def store(open_store: Callable[..., Any], client: Any) -> Any:
    """A store with a client of its own, whose collections are there."""
    made = open_store()
    made.counts()
    return made
