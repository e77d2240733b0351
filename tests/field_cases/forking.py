"""The program of F51: opens the store, works, and forks (`python -m tests.field_cases.forking JSON`)."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from ratchet import Backoff, JobCompleted, JobRetrying, Scheduler, current_job
from tests.field_cases.kit import Ledger, holds, quick_settings

MODULE = "tests.field_cases.forking"
SECONDS = 60.0


def work(owner: str, folder: str, flaky: bool = False) -> int:
    """Writes its row; a flaky one fails once."""
    with Ledger(folder).entry():
        if flaky and current_job().attempt == 1:
            raise ValueError("once")
        return os.getpid()


async def work_async(owner: str, folder: str) -> int:
    """The same on the loop."""
    return work(owner, folder)


class Forking:
    """The parent, and (after the fork) each child.

    Args:
        words: what the test says: url, folder, children, jobs, started (the parent runs a node when it forks).
    """

    def __init__(self, words: dict[str, Any]) -> None:
        self.folder, self.children, self.jobs = words["folder"], words["children"], words["jobs"]
        self.started = words["started"]
        self.scheduler = Scheduler.from_url(words["url"], allow=[MODULE], settings=quick_settings(threads=2))
        self.events: list[Any] = []
        self.scheduler.add_listener(self.events.append)
        self.stop = threading.Event()
        self.looped: list[UUID] = []

    def report(self, name: str, **facts: Any) -> None:
        """Tell the test, in a file of its own, whole or not at all."""
        beside = Path(self.folder) / f"new-{name}"
        beside.write_text(json.dumps(facts))
        beside.rename(Path(self.folder) / f"report-{name}")

    def parent(self) -> int:
        """Submit, loop, fork, wait; answers the exit code."""
        random.seed(42)  # a copy of this state in each child would give all of them the same jitter
        first = self.scheduler.enqueue_now(work, "parent", self.folder)
        if self.started:
            self.scheduler.start()
            first.result(SECONDS)
            self.scheduler.enqueue_now(work_async, "parent", self.folder).result(SECONDS)
        self.scheduler.pause(
            first.id
        )  # False or not: the listeners' threads exist when the first event is told
        self.scheduler.resume(first.id)
        loop = threading.Thread(target=self.submit_in_a_loop)
        loop.start()
        holds(lambda: len(self.looped) > 5, SECONDS)
        pids = [self.fork(number) for number in range(self.children)]
        codes = [self.wait(pid) for pid in pids]
        self.stop.set()
        loop.join(SECONDS)
        if not self.started:
            self.scheduler.start()
        last = self.scheduler.enqueue_now(work, "parent", self.folder)
        pid = last.result(SECONDS)
        assert self.scheduler.enqueue_now(work_async, "parent", self.folder).result(SECONDS) == pid
        looped = sum(self.scheduler.handle(each).wait(SECONDS).status == "SUCCEEDED" for each in self.looped)
        told = holds(
            lambda: any(e.job_id == last.id and isinstance(e, JobCompleted) for e in self.events), 10.0
        )
        stopped = self.scheduler.stop(10)
        self.report(
            "parent", pid=os.getpid(), ran_by=pid, codes=codes, looped=looped, submitted=len(self.looped), told=told,
            drained=stopped.drained, jitter=self.jitter(self.events),
        )  # fmt: skip
        return 0

    @staticmethod
    def jitter(events: list[Any]) -> list[float]:
        """The delays of the retries that were told."""
        return [(e.scheduled_time - e.at).total_seconds() for e in events if isinstance(e, JobRetrying)]

    def submit_in_a_loop(self) -> None:
        while not self.stop.wait(
            0.01 if len(self.looped) < 200 else 0.5
        ):  # a slow machine need not run thousands
            self.looped.append(self.scheduler.enqueue_now(work, "loop", self.folder).id)

    def fork(self, number: int) -> int:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self.child(number)
                code = 0
            except BaseException as error:
                self.report(f"error-{number}", error=f"{type(error).__name__}: {error}")
            finally:
                os._exit(code)
        return pid

    def child(self, number: int) -> None:
        """Submit and run jobs on the scheduler that was inherited."""
        scheduler = self.scheduler
        inherited = len(self.events)
        handles = [
            scheduler.enqueue(work, f"child {number}", self.folder, each == 0)
            .with_max_retries(1)
            .with_backoff(Backoff.fixed(timedelta(milliseconds=50), jitter=10.0))
            .submit()
            for each in range(self.jobs)
        ]
        scheduler.start()
        node = scheduler.node
        assert node is not None
        results = [handle.result(SECONDS) for handle in handles]
        scheduler.enqueue_now(work, f"extra {number}", self.folder).result(SECONDS)
        scheduler.enqueue_now(work_async, f"extra {number}", self.folder).result(SECONDS)
        scheduler.stop(10)
        events = self.events[inherited:]
        self.report(
            f"child-{number}",
            pid=os.getpid(),
            ids=[str(handle.id) for handle in handles],
            results=results,
            node=node.info.name,
            incarnation=node.info.incarnation,
            node_pid=node.info.pid,
            jitter=self.jitter(events),
            draw=random.random(),
            heard=[str(e.job_id) for e in events if isinstance(e, JobCompleted)],
        )

    @staticmethod
    def wait(pid: int) -> int | None:
        """The exit code; None if the child hung."""
        answer: Callable[[], tuple[int, int]] = lambda: os.waitpid(pid, os.WNOHANG)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            found, status = answer()
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        return None


if __name__ == "__main__":
    from tests.field_cases.forking import Forking as Importable

    sys.exit(Importable(json.loads(sys.argv[1])).parent())
