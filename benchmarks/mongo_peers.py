"""Peers on MongoDB: APScheduler's job store and Celery's broker, as their manuals set them up.

APScheduler deletes a job when it hands it to its pool, and writes nothing about its end. Celery acknowledges a
message before its body runs; that a task has ended is recorded in its result backend, as ours is in the job.
"""

from __future__ import annotations

import threading
from typing import Any

from benchmarks import bodies


def _durable(url: str) -> str:
    """The URL with our own write concern: the same durability for everybody."""
    return f"{url}{'&' if '?' in url else '?'}w=majority&journal=true"


class AlarmClock:
    """An `APScheduler` whose jobs lie in one MongoDB database.

    Args:
        url: of the database.
        threads: of its pool.
    """

    def __init__(self, url: str, threads: int) -> None:
        from apscheduler.events import EVENT_JOB_EXECUTED  # type: ignore[import-untyped]
        from apscheduler.executors.pool import ThreadPoolExecutor  # type: ignore[import-untyped]
        from apscheduler.jobstores.mongodb import MongoDBJobStore  # type: ignore[import-untyped]
        from apscheduler.schedulers.background import BackgroundScheduler  # type: ignore[import-untyped]
        from pymongo import MongoClient

        client: MongoClient[dict[str, Any]] = MongoClient(_durable(url))
        self._jobs = client.get_default_database()["jobs"]
        self._lock = threading.Lock()
        self.executed = 0
        self.scheduler: Any = BackgroundScheduler(
            jobstores={"default": MongoDBJobStore(database=self._jobs.database.name, client=client)},
            executors={"default": ThreadPoolExecutor(threads)},
            job_defaults={"misfire_grace_time": None},  # or what is late by a second would be left out
            timezone="UTC",
        )
        self.scheduler.add_listener(self._saw, EVENT_JOB_EXECUTED)
        self.scheduler.start(paused=True)

    def _saw(self, _: object) -> None:
        with self._lock:
            self.executed += 1

    def submit(self, count: int) -> None:
        """One by one, due at once; it has no bulk submission."""
        for _ in range(count):
            self.scheduler.add_job(bodies.marked_noop)

    def begin(self) -> None:
        """Run what is due."""
        self.scheduler.resume()

    def is_empty(self) -> bool:
        """True once it holds no job."""
        return self._jobs.find_one({}, {"_id": 1}) is None

    def close(self) -> None:
        """End it, and its client."""
        self.scheduler.shutdown()


class Celery:
    """Broker and results in one MongoDB database.

    Args:
        url: of the database.
    """

    def __init__(self, url: str) -> None:
        from celery import Celery as App  # type: ignore[import-untyped]

        where = _durable(url)
        self.app: Any = App("bench", broker=where, backend=where, set_as_current=False)
        self.app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)

        @self.app.task(name="noop")  # type: ignore[untyped-decorator]
        def noop() -> None:
            bodies.marked_noop()

        self.noop = noop

    def submit(self, count: int) -> None:
        """One by one; Celery has no bulk submission."""
        for _ in range(count):
            self.noop.delay()

    def work(self, processes: int) -> None:
        """Be a worker with its shipped pool; does not return."""
        self.app.worker_main(
            ["worker", "-c", str(processes), "-P", "prefork", "-l", "WARNING", "-n", "bench@local",
             "--without-gossip", "--without-mingle"]
        )  # fmt: skip
