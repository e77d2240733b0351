"""Conformance harnesses on the server of these tests: sync, async, and on a Motor client."""

from __future__ import annotations

from typing import Any

from ratchet.spi.async_store import AsyncJobStore
from ratchet_mongo import AsyncMongoJobStore
from ratchet_mongo import harness as shipped
from tests.mongo import servers


class MongoHarness(shipped.MongoHarness):
    """Sync."""

    def __init__(self) -> None:
        super().__init__(servers.database_url(""))


class AsyncMongoHarness(MongoHarness):
    """Async, on PyMongo's client."""

    flavours = ("async",)


class MotorHarness(MongoHarness):
    """Async, on a Motor client that the application has and closes."""

    flavours = ("async",)

    def __init__(self) -> None:
        super().__init__()
        self._clients: list[Any] = []

    def open_async(self) -> AsyncJobStore:
        from motor.motor_asyncio import AsyncIOMotorClient

        client: Any = AsyncIOMotorClient(self.url)
        self._clients.append(client)
        return AsyncMongoJobStore.from_client(client, self.name, clock=self.clock)

    def reset(self) -> None:
        self._close_clients()
        super().reset()

    def close(self) -> None:
        self._close_clients()
        super().close()

    def _close_clients(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()
