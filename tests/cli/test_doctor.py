"""``ratchet doctor``: what it finds in a store, sound or spoiled, and what a starting node says of it."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ratchet import Scheduler
from ratchet.cli import main
from ratchet.defaults.memory import MemoryStore
from ratchet.doctor import examine
from ratchet.engine import checkup
from ratchet.errors import StoreTransientError
from ratchet.spi.doctor import Finding, Level
from ratchet.spi.store import NodeInfo

GRACE = timedelta(seconds=60)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database with a schema and a live node."""
    path = tmp_path / "jobs.db"
    with closing(Scheduler.from_url(f"sqlite:///{path}")) as scheduler:
        scheduler.store.heartbeat(NodeInfo(incarnation="i1", name="n1"))
    return path


def doctor(capsys: pytest.CaptureFixture[str], url: str | Path) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit code, and check -> (level, sentence)."""
    capsys.readouterr()
    code = main(["doctor", "--json", "--url", url if isinstance(url, str) else f"sqlite:///{url}"])
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"level", "findings"}
    assert all(set(each) == {"name", "level", "told"} for each in document["findings"])
    return code, {each["name"]: (each["level"], each["told"]) for each in document["findings"]}


def spoil(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def test_a_sound_file_is_well(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every check of a sound database with a live node is ok, and the exit code is 0."""
    code, found = doctor(capsys, file)
    assert code == 0
    assert {name: level for name, (level, _) in found.items()} == dict.fromkeys(
        ("reachable", "schema", "journal", "synchronous", "integrity", "plans", "clock", "capabilities", "nodes"), "ok"
    )  # fmt: skip


def test_a_wrong_url_makes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is not there is an error with the remedy, and is not made by looking for it."""
    code, found = doctor(capsys, tmp_path / "typo.db")
    assert code == 1
    assert set(found) == {"schema"}
    assert "see that the URL is right" in found["schema"][1]
    assert not (tmp_path / "typo.db").exists()


@pytest.mark.parametrize(
    ("statement", "check", "words"),
    [
        ("PRAGMA journal_mode = DELETE", "journal", "PRAGMA journal_mode = WAL"),
        ("DROP INDEX ratchet_job_claim", "plans", "an index is missing"),
        ("UPDATE ratchet_schema SET version = 99", "schema", "upgrade ratchet-jobs"),
    ],
)
def test_what_others_spoiled_is_found(
    file: Path, capsys: pytest.CaptureFixture[str], statement: str, check: str, words: str
) -> None:
    """What another program did to the file is an error that says what to do, with exit code 1."""
    spoil(file, statement)
    code, found = doctor(
        capsys, f"sqlite:///{file}?mode=ro"
    )  # a writer would set the journal mode right itself
    assert code == 1
    assert found[check][0] == "error"
    assert words in found[check][1]


def test_damage_is_found(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pages overwritten with rubbish are found, told with the remedy, and never a traceback."""
    spoil(file, "PRAGMA wal_checkpoint(TRUNCATE)")
    with closing(sqlite3.connect(file)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'ratchet_job_created'"
        page = connection.execute(query).fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    with file.open("r+b") as raw:
        raw.seek((page - 1) * size)
        raw.write(b"\xff" * size)
    code, found = doctor(capsys, file)
    assert code == 1
    assert found["integrity"][0] == "error"
    assert "restore a backup" in found["integrity"][1]


def test_less_than_full_durability_is_a_warning(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``synchronous=NORMAL`` is a warning, which leaves the exit code 0."""
    code, found = doctor(capsys, f"sqlite:///{file}?synchronous=NORMAL")
    assert code == 0
    assert found["synchronous"][0] == "warning"


def test_a_store_that_does_not_answer_is_a_finding(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A database that cannot be opened is one finding, not an exception."""
    (tmp_path / "jobs.db").write_bytes(b"this is no database, whatever its name says" * 100)
    code, found = doctor(capsys, tmp_path / "jobs.db")
    assert code == 1
    assert found["reachable"][0] == "error"


def test_nodes_that_need_somebody_are_named(file: Path) -> None:
    """Silent and unhealthy nodes, and targets that nobody resolves, are warnings that name the node."""

    class Now:
        def now(self) -> datetime:
            return moment

    moment = datetime(2026, 3, 1, tzinfo=UTC)
    store = MemoryStore(clock=Now())
    assert _levels(examine(store, orphan_grace=GRACE))["nodes"] is Level.WARNING
    store.heartbeat(NodeInfo(incarnation="i1", name="silent"))
    moment += timedelta(minutes=5)
    store.heartbeat(NodeInfo(incarnation="i2", name="well"))
    store.heartbeat(
        NodeInfo(incarnation="i3", name="ill", state="unhealthy", detail={"reason": "slots stuck"})
    )
    store.heartbeat(NodeInfo(incarnation="i4", name="old", detail={"unresolved": "shop:new"}))
    told = sorted(each.told for each in examine(store, orphan_grace=GRACE) if each.name == "nodes")
    assert [each.split()[1] for each in told] == ["ill", "old", "silent"]
    assert "slots stuck" in told[0]
    assert "shop:new" in told[1]
    assert "0:05:00" in told[2]


def test_clocks_that_differ_are_told() -> None:
    """A store whose clock is off by more than a second is a warning with the difference."""

    class Later:
        def now(self) -> datetime:
            return datetime.now(UTC) + timedelta(seconds=90)

    found = {each.name: each for each in examine(MemoryStore(clock=Later()), orphan_grace=GRACE)}
    assert found["clock"].level is Level.WARNING
    assert "90.0 s" in found["clock"].told or "89.9 s" in found["clock"].told


def _levels(found: Sequence[Finding]) -> dict[str, Level]:
    return {each.name: each.level for each in found}


class Spoiled(MemoryStore):
    """A store that finds something wrong with itself, or cannot even look."""

    answer: Any = ()

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def checks(self, *, quick: bool = False) -> Sequence[Finding]:
        assert quick, "a start is not held up"
        self.asked.set()
        if isinstance(self.answer, Exception):
            raise self.answer
        return list(self.answer)


@pytest.mark.parametrize(
    ("answer", "logged"),
    [
        (
            (Finding("plans", Level.ERROR, "no index"), Finding("server", Level.OK, "fine")),
            ["plans: no index"],
        ),
        (StoreTransientError("not now"), []),
    ],
)
def test_a_node_starts_whatever_the_checks_say(
    caplog: pytest.LogCaptureFixture, answer: object, logged: list[str]
) -> None:
    """A starting node warns of what is not ok, one line each, and runs all the same."""
    store = Spoiled()
    store.answer = answer
    with (
        caplog.at_level(logging.WARNING, logger="ratchet.doctor"),
        Scheduler(store, allow=["json"]) as scheduler,
    ):
        handle = scheduler.enqueue(json.dumps, 1).submit()
        assert handle.result(timeout=20) == "1"
        assert store.asked.wait(20)
    told = [each.getMessage().partition(" (`")[0] for each in caplog.records if each.name == "ratchet.doctor"]
    assert told == logged


def test_a_store_without_checks_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The protocol is optional."""
    with caplog.at_level(logging.INFO, logger="ratchet.doctor"):
        assert checkup.check(MemoryStore()) == checkup.AGAIN_AFTER
    assert not caplog.records
