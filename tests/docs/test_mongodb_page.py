"""The page about MongoDB runs, as a reader would run it, on a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pymongo
import pytest

from ratchet import Status
from ratchet_mongo import MongoJobStore
from tests.docs.test_snippets import ROOT, page_folder, run_page  # noqa: F401 - a fixture
from tests.mongo import servers
from tests.mongo.conftest import server_or_skip

PAGE = ROOT / "docs/how-to/mongodb.md"
NEEDS_A_SERVER = "<!-- no-run: needs a server -->\n"


def test_every_block_of_the_page_runs(
    page_folder: Path,  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the server's address in place of localhost every block runs, and the transactions have left both jobs."""
    server_or_skip()
    name = f"t{uuid4().hex}"
    clients: list[Any] = []
    make = pymongo.MongoClient

    def recorded(*arguments: Any, **options: Any) -> Any:
        clients.append(make(*arguments, **options))
        return clients[-1]

    monkeypatch.setattr(pymongo, "MongoClient", recorded)
    text = PAGE.read_text(encoding="utf-8")
    there = text.count("```python")
    text = (
        text.replace(NEEDS_A_SERVER, "")
        .replace("mongodb://localhost:27017/shop", servers.database_url(name))
        .replace("mongodb://localhost:27017", servers.database_url(""))
        .replace('"shop")', f'"{name}")')
    )
    ran = run_page(text, str(PAGE), page_folder)
    store = MongoJobStore.from_url(servers.database_url(name))
    counts, orders = store.counts(), store.database.db["orders"].count_documents({})
    store.close()
    for client in clients:
        client.close()
    assert ran == there
    assert (counts[Status.PENDING], orders) == (2, 2)
