"""How many statements each hot operation sends, whatever the number of jobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from conformance_tests.driver import new_job, request
from ratchet.domain.lifecycle import Trigger
from ratchet.domain.settlement import Change, RunCallback, Settlement
from ratchet.plugins import open_store
from ratchet.spi.store import NodeInfo, RecoverRequest
from ratchet_sql.store import SqliteStore

IGNORED = ("PRAGMA", "--")  # opening a connection; what a statement does inside SQLite


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement that reaches SQLite, on any connection."""
    statements: list[str] = []
    connect = sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    return statements


@pytest.fixture
def counted(store: SqliteStore, sent: list[str]) -> Callable[[Callable[[], object]], list[str]]:
    """The verbs that a call sends, once connections are open."""
    store.counts()
    store.heartbeat(NodeInfo(incarnation="warm", name="warm"))

    def count(call: Callable[[], object]) -> list[str]:
        sent.clear()
        call()
        return [statement.split()[0] for statement in sent if not statement.startswith(IGNORED)]

    return count


def test_submit(store: SqliteStore, counted: Callable[..., list[str]]) -> None:
    """A plain job is one statement; keys and tags add one each, however many jobs."""
    assert counted(lambda: store.insert([new_job()])) == ["INSERT"]
    assert counted(lambda: store.insert([new_job(business_key="b")])) == ["INSERT"]
    many = [new_job() for _ in range(200)]
    assert counted(lambda: store.insert(many)) == ["BEGIN", "INSERT", "COMMIT"]
    tagged = [new_job(tags=frozenset({"a", "b"})) for _ in range(50)]
    assert counted(lambda: store.insert(tagged)) == ["BEGIN", "INSERT", "INSERT", "COMMIT"]
    full = [new_job(tags=frozenset({"a"}), idempotency_key=f"i{n}", business_key=f"b{n}") for n in range(50)]
    expected = ["BEGIN", "SELECT", "SELECT", "INSERT", "INSERT", "INSERT", "COMMIT"]
    assert counted(lambda: store.insert(full)) == expected


def test_claim_and_settle(store: SqliteStore, counted: Callable[..., list[str]]) -> None:
    """Claiming 50 takes six statements, five if work is known to be due; settling 50 takes five, six with callbacks."""
    elsewhere = open_store(f"sqlite:///{store.database.file.path}")
    elsewhere.insert([new_job() for _ in range(100)])
    elsewhere.close()
    claims: list[Any] = []

    def claim() -> None:
        claims[:] = store.claim(request()).claims

    assert counted(claim) == ["SELECT", "BEGIN", "SELECT", "UPDATE", "SELECT", "COMMIT"]
    assert len(claims) == 50
    changes = [
        Change(Trigger.SUCCEED, c.job_id, c.claim_seq, result="1", duration=timedelta()) for c in claims
    ]
    settlements = [Settlement(change) for change in changes]
    expected = ["BEGIN", "SELECT", "UPDATE", "INSERT", "COMMIT"]
    assert counted(lambda: store.settle_many(settlements)) == expected

    assert counted(claim) == ["BEGIN", "SELECT", "UPDATE", "SELECT", "COMMIT"]
    mixed = [
        Settlement(
            Change(
                Trigger.SUCCEED if n % 2 else Trigger.RETRY,
                claim.job_id,
                claim.claim_seq,
                error="e",
                delay=timedelta(hours=1),
            ),
            (RunCallback("on_success", "m:f", "1"),) if n % 2 else (),
        )
        for n, claim in enumerate(claims)
    ]
    expected = ["BEGIN", "SELECT", "UPDATE", "UPDATE", "INSERT", "INSERT", "COMMIT"]
    assert counted(lambda: store.settle_many(mixed)) == expected
    assert counted(lambda: store.settle(settlements[0])) == ["BEGIN", "SELECT", "SELECT", "COMMIT"], "refused"

    store.claim(request())
    store.insert([new_job(delay=timedelta(hours=1))])
    assert counted(claim) == ["SELECT"], "nothing due is known of"
    store.insert([new_job()])
    assert counted(claim) == ["BEGIN", "SELECT", "UPDATE", "SELECT", "COMMIT"], "submitted here, so it is due"


def test_idle(store: SqliteStore, counted: Callable[..., list[str]]) -> None:
    """An idle node writes nothing but its heartbeat: a poll, a look at its claims and a sweep are reads."""
    store.insert([new_job(delay=timedelta(days=1))])
    sweep = RecoverRequest(grace=timedelta(minutes=1), crash_budget=3)
    assert counted(lambda: store.claim(request())) == ["SELECT"]
    assert counted(lambda: store.held("node-1")) == ["SELECT"]
    assert counted(lambda: store.recover(sweep)) == ["WITH"]
    assert counted(lambda: store.take_callbacks("node-1", grace=timedelta(minutes=1), limit=9)) == ["WITH"]
    assert counted(lambda: store.heartbeat(NodeInfo(incarnation="node-1", name="n"))) == ["INSERT"]
    assert counted(lambda: store.get(new_job().id)) == ["SELECT"]


def test_control(store: SqliteStore, counted: Callable[..., list[str]]) -> None:
    """Pause takes five statements; recovering any number of claims of one dead node takes seven."""
    job = new_job(delay=timedelta(days=1))
    store.insert([job, *(new_job() for _ in range(20))])
    paused = counted(lambda: store.apply(Change(Trigger.PAUSE, job.id)))
    assert paused == ["BEGIN", "SELECT", "SELECT", "UPDATE", "COMMIT"]
    assert len(store.claim(request("dead")).claims) == 20
    gone = RecoverRequest(grace=timedelta(minutes=1), crash_budget=3, known_gone=frozenset({"dead"}))
    expected = ["WITH", "SELECT", "BEGIN", "SELECT", "UPDATE", "INSERT", "COMMIT"]
    assert counted(lambda: store.recover(gone)) == expected
