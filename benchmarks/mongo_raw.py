"""The reference on MongoDB: the same collection, indexes and document through PyMongo alone.

The collection and its indexes are the store's own, so that they are the same by construction, and the
inserted document is what the store itself writes for the same submission, with the same write concern. What
the raw loop leaves out makes it faster, never slower: it knows the one lane there is, and writes no history.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, cast
from uuid import UUID, uuid4

from benchmarks import bodies
from ratchet import Scheduler
from ratchet.domain.ids import new_id
from ratchet.domain.lifecycle import Status
from ratchet.plugins import open_store

_PENDING, _RUNNING, _SUCCEEDED = Status.PENDING.value, Status.RUNNING.value, Status.SUCCEEDED.value
BATCH: Final = 100
_ORDER: Final = [("scheduled_time", 1), ("_id", 1)]

Document = dict[str, Any]


class Raw:
    """The collection of jobs of one database.

    Args:
        url: of the database; the store makes its indexes there.

    Attributes:
        finished: by the loop so far.
    """

    def __init__(self, url: str) -> None:
        self.store = cast("Any", open_store(url))
        self._scheduler = Scheduler(self.store, allow=["benchmarks"])
        self.store.counts()  # makes the indexes
        self.jobs: Any = self.store.database.jobs  # with the store's own concerns
        self.finished = 0

    def close(self) -> None:
        """Let go of the client."""
        self._scheduler.close()

    def template(self) -> Document:
        """What the store writes for a no-op job."""
        handle = self._scheduler.enqueue(bodies.marked_noop).submit()
        found: Document = self.jobs.find_one_and_delete({"_id": handle.id})
        return found

    def documents(self, count: int) -> list[Document]:
        """`count` documents like it, each with an id of its own, ascending as the store's are."""
        template, now = self.template(), datetime.now(UTC)
        instants = {"scheduled_time": now, "created_at": now, "updated_at": now}
        return [{**template, **instants, "_id": new_id(), "write": uuid4()} for _ in range(count)]

    def fill(self, count: int) -> None:
        """Jobs that are due."""
        self.jobs.insert_many(self.documents(count), ordered=False)

    def succeeded(self) -> int:
        """How many have, by what is stored. To be asked afterwards: it costs the server as much as many jobs."""
        count: int = self.jobs.count_documents({"status": _SUCCEEDED})
        return count

    # -- the loop

    def drain(self) -> None:
        """Claim a hundred, run and finish them one by one, until nothing is left."""
        lane = self._lane()
        while claimed := self._claim(lane):
            for job in claimed:
                bodies.marked_noop()
                self._finish(job)
                self.finished += 1

    def _lane(self) -> str | None:
        first = self.jobs.find_one({"lane": {"$exists": True}}, {"lane": 1})
        return None if first is None else first["lane"]

    def _claim(self, lane: str | None) -> list[Document]:
        now = datetime.now(UTC)
        due = self.jobs.find({"lane": lane, "scheduled_time": {"$lte": now}}, {"_id": 1})
        ids: list[UUID] = [doc["_id"] for doc in due.sort(_ORDER).limit(BATCH)]
        if not ids:
            return []
        token = uuid4()
        held = {"status": _RUNNING, "picked_by": "raw", "picked_at": now, "updated_at": now}
        self.jobs.update_many(
            {"_id": {"$in": ids}, "status": _PENDING},
            {
                "$set": {**held, "claim_token": token},
                "$inc": {"claim_seq": 1, "version": 1},
                "$unset": {"lane": ""},
            },
        )
        return list(self.jobs.find({"_id": {"$in": ids}, "claim_token": token}))

    def _finish(self, job: Document) -> None:
        now = datetime.now(UTC)
        wait = (job["picked_at"] - job["scheduled_time"]).total_seconds()
        done = {"status": _SUCCEEDED, "updated_at": now, "started_at": job["picked_at"], "ended_at": now}
        self.jobs.update_one(
            {"_id": job["_id"], "status": _RUNNING, "claim_seq": job["claim_seq"]},
            {
                "$set": {**done, "duration": 0, "queue_wait": int(1e3 * wait), "result": "null"},
                "$inc": {"version": 1},
            },
        )
