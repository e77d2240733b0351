"""Several processes and threads on one file: nobody starves, nobody fails, readers wait for nobody."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from conformance_tests.driver import new_job, request
from ratchet.domain.lifecycle import Status
from ratchet.spi.store import Selection
from ratchet_sql.connection import Execute
from ratchet_sql.store import SqliteStore

Program = Callable[..., subprocess.Popen[str]]


@pytest.mark.storm
@pytest.mark.parametrize("processes", [2, 4])
def test_processes_that_write_without_pause(
    store: SqliteStore, program: Program, scaled: Callable[..., int], processes: int
) -> None:
    """Processes that never pause all get on: no error, no job claimed twice, no write waits for seconds."""
    number = scaled(2_000, least=100)
    racers = [program("racing", f"racer-{n}", number) for n in range(processes)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    settled: list[str] = []
    for racer in racers:
        output, _ = racer.communicate(timeout=100)
        assert racer.returncode == 0
        longest, *ids = output.split()
        assert float(longest) < 3.0
        settled += ids
    assert len(settled) == len(set(settled)) == store.counts()[Status.SUCCEEDED]
    assert store.count(Selection()) == processes * number
    assert {execution.claim_seq for job in settled for execution in store.history(UUID(job))} == {1}


def test_a_slow_reader_keeps_nobody_waiting(store: SqliteStore) -> None:
    """While a reader is in the middle of one unchanging state, threads submit, claim and see what is new."""
    store.insert([new_job()])
    reading, done = threading.Event(), threading.Event()
    seen: list[int] = []

    def read(execute: Execute) -> None:
        count = "SELECT count(*) FROM ratchet_job"
        seen.append(execute(count).fetchone()[0])
        reading.set()
        assert done.wait(30)
        seen.append(execute(count).fetchone()[0])

    reader = threading.Thread(target=store.database.reading, args=(read,))
    reader.start()
    assert reading.wait(30)
    store.insert([new_job()])
    assert store.counts()[Status.PENDING] == 2
    assert len(store.claim(request()).claims) == 2
    assert store.health(window=timedelta(minutes=1)).by_status[Status.RUNNING] == 2
    done.set()
    reader.join(30)
    assert not reader.is_alive()
    assert seen == [1, 1]


def test_many_threads_few_connections(path: Path, store: SqliteStore) -> None:
    """Readers of forty threads leave no more than nine connections open."""
    store.insert([new_job()])
    barrier = threading.Barrier(40)
    errors: list[BaseException] = []

    def read() -> None:
        try:
            barrier.wait(30)
            for _ in range(20):
                assert store.counts()[Status.PENDING] == 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    files = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert len([file for file in files if file == path]) <= 9
