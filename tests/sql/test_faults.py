"""What goes wrong with files: told once, in one sentence that says what to do, and nothing acknowledged is lost."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from conformance_tests.driver import new_job, request
from ratchet.domain.lifecycle import Status, Trigger
from ratchet.domain.settlement import Change, Settlement
from ratchet.errors import StoreError, StorePermanentError, StoreTransientError
from ratchet.spi.store import NodeInfo, RecoverRequest, Settled
from ratchet_sql.store import SqliteStore

Program = Callable[..., subprocess.Popen[str]]
Opener = Callable[..., SqliteStore]
NODE = NodeInfo(incarnation="n-1", name="n")


def test_disk_full(store: SqliteStore, program: Program) -> None:
    """When the file cannot grow, submissions fail as transient and go on afterwards; what was answered is there."""
    output, _ = program("filling").communicate(timeout=60)
    lines = [line.split("\t") for line in output.splitlines()]
    kinds = [line[0] for line in lines]
    first = kinds.index("error")
    assert kinds == ["stored"] * first + ["error"] * 2 + ["stored"] * 5
    for _, name, message in (line for line in lines if line[0] == "error"):
        assert name == "StoreTransientError"
        assert "disk" in message
        assert "work then goes on by itself" in message
    stored = [UUID(line[1]) for line in lines if line[0] == "stored"]
    assert {job.id for job in store.get_many(stored)} == set(stored)
    assert store.counts()[Status.PENDING] == len(stored)


def test_read_only(open_store: Opener) -> None:
    """With mode=ro everything can be read, and every write is refused for good, by name."""
    job = new_job()
    open_store().insert([job])
    reading = open_store("?mode=ro")
    assert reading.get(job.id) is not None
    assert reading.counts()[Status.PENDING] == 1
    assert reading.health(window=timedelta(minutes=1)).by_status[Status.PENDING] == 1
    for write in (
        lambda: reading.insert([new_job()]),
        lambda: reading.claim(request()),
        lambda: reading.heartbeat(NODE),
    ):
        with pytest.raises(StorePermanentError, match="mode=ro"):
            write()
    assert reading.get(job.id) == open_store().get(job.id)


def test_read_only_file(path: Path, store: SqliteStore) -> None:
    """A database that turned read-only refuses writes as permanent and says what to make writable."""
    store.insert([new_job()])
    refusing = sqlite3.connect(
        f"file:{path}?mode=ro", uri=True, check_same_thread=False, isolation_level=None
    )
    original, store.database._writer = store.database._writer, refusing
    assert original is not None
    original.close()
    with pytest.raises(StorePermanentError, match="make the file and its folder writable"):
        store.insert([new_job()])
    assert store.insert([new_job()])[0].created, "the connection was not replaced"


def test_locked(path: Path, open_store: Opener, program: Program) -> None:
    """While another process holds the lock, writes fail as transient after the time-out, without spinning."""
    store = open_store("?timeout=0.5")
    job = new_job()
    store.insert([job])
    holder = program("holding")
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    for write in (
        lambda: store.insert([new_job()]),
        lambda: store.insert([new_job(), new_job()]),
        lambda: store.claim(request()),
        lambda: store.heartbeat(NODE),
    ):
        began, used = time.monotonic(), time.thread_time()
        with pytest.raises(StoreTransientError, match=r"locked by another process for 0\.5 s"):
            write()
        assert 0.5 <= time.monotonic() - began < 5
        assert time.thread_time() - used < 0.25, "it spins"
    assert store.get(job.id) is not None, "readers wait for nobody"
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "free\n"
    assert len(store.claim(request()).claims) == 1


def _lose(path: Path, how: str) -> None:
    if how == "deleted":
        for file in path.parent.glob(path.name + "*"):
            file.unlink()
    else:
        shutil.copy(path, path.with_suffix(".copy"))
        path.with_suffix(".copy").replace(path)


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_file_gone(path: Path, store: SqliteStore, how: str) -> None:
    """A file deleted or replaced under way is noticed by the next heartbeat; then every write and claim says so.

    No new file is made, and when the original is back, so is the store.
    """
    store.insert([new_job()])
    store.heartbeat(NODE)
    keep = path.parent / "keep"
    keep.mkdir()
    (keep / path.name).hardlink_to(path)
    _lose(path, how)
    calls: list[Callable[[], object]] = [
        lambda: store.heartbeat(NODE),
        lambda: store.insert([new_job()]),
        lambda: store.insert([new_job(), new_job()]),
        lambda: store.claim(request()),
        lambda: store.settle(Settlement(Change(Trigger.CANCEL, new_job().id))),
    ]
    for call in calls:
        with pytest.raises(StorePermanentError, match=f"was {how}") as caught:
            call()
        assert str(path) in str(caught.value)
    assert path.exists() == (how == "replaced")
    path.unlink(missing_ok=True)
    (keep / path.name).rename(path)
    assert store.heartbeat(NODE).tzinfo is not None


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_file_gone_is_noticed_without_a_heartbeat(path: Path, store: SqliteStore, how: str) -> None:
    """The first submission after the file was deleted or replaced is refused: accepted, it would be lost."""
    store.insert([new_job()])
    _lose(path, how)
    with pytest.raises(StorePermanentError, match=f"was {how}"):
        store.insert([new_job()])
    assert path.exists() == (how == "replaced")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path.write_bytes(b"no database at all" * 100), "not an SQLite database"),
        (lambda path: path.mkdir(), "cannot be opened"),
    ],
)
def test_not_a_database(path: Path, store: SqliteStore, make: Callable[[Path], None], says: str) -> None:
    """A path that is something else is a permanent error that says so, for reading and for writing."""
    make(path)
    for call in (store.counts, lambda: store.insert([new_job()]), store.schema_upgrade):
        with pytest.raises(StorePermanentError, match=says) as caught:
            call()
        assert isinstance(caught.value.__cause__, sqlite3.Error)


def test_missing_folder(tmp_path: Path, open_store: Opener) -> None:
    """A missing folder is a permanent error that names the folder's absence as the thing to see to."""
    tmp_path.rmdir()
    with pytest.raises(StorePermanentError, match="its folder exists"):
        open_store().counts()
    tmp_path.mkdir()


def test_corrupt(path: Path, open_store: Opener) -> None:
    """A damaged file is a permanent error, and no driver exception comes out."""
    store = open_store()
    store.insert([new_job() for _ in range(500)])
    store.close()
    content = bytearray(path.read_bytes())
    content[8192:] = bytes(len(content) - 8192)
    path.write_bytes(content)
    damaged = open_store()
    raised = []
    for call in (lambda: damaged.claim(request()), damaged.counts, lambda: damaged.insert([new_job()])):
        try:
            call()
        except StoreError as error:
            raised.append(error)
    assert raised
    assert {type(error) for error in raised} == {StorePermanentError}


@pytest.mark.field_case("F21")
def test_one_bad_row_costs_no_other(store: SqliteStore) -> None:
    """A row whose recovery the database refuses is reported, and every other orphan is recovered (F21)."""
    jobs = [new_job() for _ in range(5)]
    store.insert(jobs)
    assert len(store.claim(request("dead")).claims) == 5
    bad = jobs[1].id
    store.database.write(
        lambda execute, _: execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON ratchet_execution "
            f"WHEN NEW.job_id = '{bad}' BEGIN SELECT raise(ABORT, 'this row is bad'); END"
        )
    )
    gone = RecoverRequest(grace=timedelta(minutes=1), crash_budget=3, known_gone=frozenset({"dead"}))
    answer = store.recover(gone)
    assert {orphan.job_id for orphan in answer.recovered} == {job.id for job in jobs} - {bad}
    assert len(answer.errors) == 1
    assert str(bad) in answer.errors[0]
    assert {job.crash_count for job in store.get_many([job.id for job in jobs])} == {0, 1}
    store.database.write(lambda execute, _: execute("DROP TRIGGER refuse"))
    again = store.recover(gone)
    assert [orphan.job_id for orphan in again.recovered] == [bad]
    assert [job.crash_count for job in store.get_many([job.id for job in jobs])] == [1] * 5


@pytest.mark.field_case("F19")
def test_a_sweep_that_was_overtaken(open_store: Opener, store: SqliteStore) -> None:
    """A sweep stopped between its reading and its writing changes nothing of what settled meanwhile (F19)."""
    (job,) = [new_job()]
    store.insert([job])
    (claim,) = store.claim(request("slow")).claims
    sweeping = open_store()
    settled: list[object] = []

    def overtake(name: str) -> None:
        if name == "orphans selected":
            change = Change(Trigger.SUCCEED, claim.job_id, claim.claim_seq, result="1")
            settled.append(store.settle(Settlement(change)))

    sweeping.database.step = overtake
    answer = sweeping.recover(
        RecoverRequest(grace=timedelta(minutes=1), crash_budget=3, known_gone=frozenset({"slow"}))
    )
    assert isinstance(settled[0], Settled)
    assert (list(answer.recovered), list(answer.exhausted), list(answer.errors)) == ([], [], [])
    after = store.get(job.id)
    assert after is not None
    assert (after.status, after.crash_count, len(store.history(job.id))) == (Status.SUCCEEDED, 0, 1)
