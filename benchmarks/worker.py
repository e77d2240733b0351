"""One worker process of a benchmark: gets ready, says so, starts when told, ends when its input closes.

    python -m benchmarks.worker ratchet|raw|huey|mongo-raw|apscheduler|celery FILE-OR-URL [options]

It writes `ready` when everything is imported and opened, waits for a line on standard input, and runs
until that is closed, so that it never outlives the benchmark. Imports and start-up are thus never timed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, Final


def main() -> None:
    """Run one worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("url")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--synchronous", default="FULL")
    parser.add_argument("--idle-after", type=float, default=300.0)
    arguments = parser.parse_args()
    KINDS[arguments.kind](arguments)
    os._exit(0)  # a peer's background threads are not waited for


def _wait_for_start() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def _ratchet(arguments: argparse.Namespace) -> None:
    from ratchet import ExecutionSettings, PollingSettings, Scheduler, Settings

    settings = Settings(
        execution=ExecutionSettings(threads=arguments.threads, batch_size=arguments.batch),
        polling=PollingSettings(idle_after=arguments.idle_after),
    )
    scheduler = Scheduler.from_url(arguments.url, allow=["benchmarks"], settings=settings)
    scheduler.store.now()
    scheduler.store.counts()
    _wait_for_start()
    scheduler.start()
    used, since = time.process_time(), time.monotonic()
    for line in sys.stdin:
        if line.strip() == "cpu":  # what this process used since it was last asked
            now_used, now = time.process_time(), time.monotonic()
            print(json.dumps({"cpu": now_used - used, "seconds": now - since}), flush=True)
            used, since = now_used, now
        elif line.strip() == "mode":
            node = scheduler.node
            print(json.dumps({"mode": "" if node is None else str(node.parts.poller.state.mode)}), flush=True)
        elif line.strip() == "settled" and scheduler.node is not None:
            print(json.dumps({"settled": scheduler.node.parts.endings.tally.settled}), flush=True)
    scheduler.stop(timedelta(seconds=2))


def _raw(arguments: argparse.Namespace) -> None:
    from benchmarks import raw

    connection = raw.connect(Path(arguments.url), arguments.synchronous)
    _wait_for_start()
    raw.drain(connection)
    sys.stdin.read()


def _huey(arguments: argparse.Namespace) -> None:
    from benchmarks.huey_peer import Peer

    fsync = None if arguments.synchronous == "FULL" else False
    consumer = Peer(Path(arguments.url), fsync=fsync).consumer(arguments.threads)
    _wait_for_start()
    consumer.start()
    sys.stdin.read()


def _mongo_raw(arguments: argparse.Namespace) -> None:
    from benchmarks.mongo_raw import Raw

    raw = Raw(arguments.url)
    _wait_for_start()
    threading.Thread(target=raw.drain, daemon=True).start()
    _tell_settled(lambda: raw.finished)


def _apscheduler(arguments: argparse.Namespace) -> None:
    from benchmarks.mongo_peers import AlarmClock

    peer = AlarmClock(arguments.url, arguments.threads)
    _wait_for_start()
    peer.begin()
    _tell_settled(lambda: peer.executed)


def _celery(arguments: argparse.Namespace) -> None:
    from benchmarks.mongo_peers import Celery

    os.setpgrp()
    peer = Celery(arguments.url)
    _wait_for_start()
    threading.Thread(target=_end_with_input, daemon=True).start()
    peer.work(arguments.threads)


def _tell_settled(count: Callable[[], int]) -> None:
    for line in sys.stdin:
        if line.strip() == "settled":
            print(json.dumps({"settled": count()}), flush=True)


def _end_with_input() -> None:
    while os.read(0, 1):  # not by `sys.stdin`, whose lock a forked child would find taken
        pass
    os.killpg(0, signal.SIGKILL)  # with the children of the pool


KINDS: Final[dict[str, Callable[[argparse.Namespace], None]]] = {
    "ratchet": _ratchet,
    "raw": _raw,
    "huey": _huey,
    "mongo-raw": _mongo_raw,
    "apscheduler": _apscheduler,
    "celery": _celery,
}


class Worker:
    """A worker process, from the benchmark's side."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._log: IO[bytes] = (folder / "worker.log").open("ab")
        self._folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "RATCHET_BENCH_DIR": str(folder)},
            text=True,
        )

    def wait_until_ready(self) -> None:
        """Until it has imported and opened everything."""
        if self._read() != "ready":
            raise RuntimeError(f"a worker did not start:\n{self._complaint()}")

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, line: str) -> None:
        """Write one line to it."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, question: str) -> dict[str, Any]:
        """Write a line and read its answer."""
        self.tell(question)
        answer: dict[str, Any] = json.loads(self._read())
        return answer

    def check(self) -> None:
        """Raise if it has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"a worker ended early:\n{self._complaint()}")

    def _complaint(self) -> str:
        return (self._folder / "worker.log").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """End it: by closing its input, then by force."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()


@contextmanager
def workers(folder: Path, count: int, *arguments: str) -> Iterator[list[Worker]]:
    """`count` workers that are ready, told to start together; ended with the block."""
    made = [Worker(folder, *arguments) for _ in range(count)]
    try:
        for worker in made:
            worker.wait_until_ready()
        for worker in made:
            worker.tell("go")
        yield made
    finally:
        for worker in made:
            worker.close()


if __name__ == "__main__":
    main()
