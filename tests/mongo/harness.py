"""The conformance harness of the MongoDB store: sync by default, further flavours as subclasses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from conformance_tests.harness import SettableClock, StoreHarness
from ratchet.domain.job import Job
from ratchet.domain.lifecycle import SETTLED
from ratchet.spi.async_store import AsyncJobStore
from ratchet.spi.store import JobStore
from ratchet_mongo import AsyncMongoJobStore, MongoJobStore
from ratchet_mongo.documents import lane_of, stored
from tests.mongo import servers


class MongoHarness(StoreHarness):
    """One database of a name of its own; emptied, not dropped, so that its indexes are made once."""

    def __init__(self) -> None:
        self.clock = SettableClock()
        self._name = f"ratchet_test_{uuid4().hex[:12]}"
        self.url = servers.database_url(self._name)
        self._keeper = MongoJobStore.from_url(self.url)

    def open(self) -> JobStore:
        return MongoJobStore.from_url(self.url, clock=self.clock)

    def open_async(self) -> AsyncJobStore:
        return AsyncMongoJobStore.from_url(self.url, clock=self.clock)

    def reset(self) -> None:
        self.clock = SettableClock()
        database = self._keeper.database
        collections = (
            database.jobs, database.business, database.idempotency, database.operations, database.executions,
            database.nodes,
        )  # fmt: skip
        for collection in collections:
            collection.delete_many({})

    def close(self) -> None:
        self._keeper.close()
        servers.drop(self.url)

    def seed(self, job: Job) -> None:
        fields: dict[str, Any] = {
            name: getattr(job, name)
            for name in Job.__dataclass_fields__
            if name not in {"id", "params", "metadata", "tags", "timeout", "backoff", "priority", "type"}
        }
        from ratchet_mongo.documents import encode_map

        doc = {
            "_id": job.id,
            **{name: stored(value) for name, value in fields.items()},
            "type": job.type.value,
            "priority": int(job.priority),
            "params": encode_map(job.params),
            "metadata": encode_map(job.metadata),
            "tags": sorted(job.tags) or None,
            "timeout": int(job.timeout.total_seconds() * 1_000_000),
            "backoff": job.backoff.encode() or None,
            "lane": lane_of(job.status, job.type, job.executor, job.priority, job.scheduled_time),
            "fence": 0,
        }
        database = self._keeper.database
        database.jobs.insert_one({name: value for name, value in doc.items() if value is not None})
        if job.business_key is not None and job.status not in SETTLED:
            database.business.replace_one(
                {"_id": job.business_key}, {"holder": job.id, "token": uuid4()}, upsert=True
            )
        if job.idempotency_key is not None:
            database.idempotency.insert_one({"_id": job.idempotency_key, "job": job.id, "token": uuid4()})

    def crash_points(self, store: JobStore, reached: Callable[[str], None]) -> None:
        store.database.reached = reached  # type: ignore[attr-defined]

    def open_process(self) -> Callable[[], JobStore]:
        return _Opener(self.url)

    def versions(self) -> Mapping[str, str]:
        import pymongo

        return {
            "store": "ratchet_mongo",
            "database": f"MongoDB {self._keeper.database.server_version()}",
            "driver": f"PyMongo {pymongo.version}",
        }


class _Opener:
    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self) -> JobStore:
        return MongoJobStore.from_url(self.url)


class AsyncMongoHarness(MongoHarness):
    """PyMongo's async client."""

    flavours = ("async",)


class MotorHarness(MongoHarness):
    """A Motor client that the application has."""

    flavours = ("async",)

    def open_async(self) -> AsyncJobStore:
        from motor.motor_asyncio import AsyncIOMotorClient

        client: Any = AsyncIOMotorClient(self.url)
        return AsyncMongoJobStore.from_client(client, self._name, clock=self.clock)
