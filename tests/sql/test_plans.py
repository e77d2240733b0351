"""The cost of hot statements: on an index, and not growing with what is settled or not yet due (F57)."""

from __future__ import annotations

import re
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from conformance_tests.driver import new_job
from ratchet.domain.lifecycle import Status, Trigger
from ratchet.domain.settlement import Change, Settlement
from ratchet.spi.store import ClaimRequest, NodeInfo, RecoverRequest, Selection
from ratchet_sql import migrations, queries, rendered
from ratchet_sql.store import SqliteStore

STATEMENTS = {name: text for name, text in vars(rendered).items() if name.isupper()}
# What may be read from end to end: small by nature, or a question about everything.
WHOLE = {"NODES", "COUNTS"}
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def empty() -> Iterator[sqlite3.Connection]:
    """The tables, without statistics: plans must not depend on anybody running ANALYZE."""
    connection = sqlite3.connect(":memory:")
    for step in migrations.STEPS:
        for statement in step.sqlite:
            connection.execute(statement)
    yield connection
    connection.close()


def _plan(connection: sqlite3.Connection, text: str, parameters: dict[str, Any]) -> list[str]:
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", parameters)]


@pytest.mark.field_case("F57")
@pytest.mark.parametrize("name", sorted(set(STATEMENTS) - WHOLE))
def test_every_statement_is_on_an_index(empty: sqlite3.Connection, name: str) -> None:
    """No hot statement scans a table or an index, and none sorts (F57)."""
    text = STATEMENTS[name]
    parameters: dict[str, Any] = {
        key: "[]" if f"json_each(:{key})" in text else 1 for key in re.findall(r":(\w+)", text)
    }
    for step in _plan(empty, text, parameters):
        assert not re.search(r"\bSCAN ratchet_", step), step
        assert "TEMP B-TREE" not in step, step


@pytest.mark.field_case("F57")
@pytest.mark.parametrize(
    ("selection", "order", "index"),
    [
        (Selection(statuses=frozenset({Status.FAILED})), "created_desc", "ratchet_job_exceptional"),
        (Selection(statuses=frozenset({Status.FAILED})), "ended_desc", "ratchet_job_failed_ended"),
        (Selection(statuses=frozenset({Status.FAILED})), "id_asc", "ratchet_job_failed "),
        (Selection(statuses=frozenset({Status.CANCELED})), "created_desc", "ratchet_job_exceptional"),
        (Selection(statuses=frozenset({Status.SUCCEEDED})), "ended_desc", "ratchet_job_ended"),
        (Selection(), "created_desc", "ratchet_job_created"),
        (Selection(), "id_asc", "ratchet_job_id"),
        (Selection(tags=frozenset({"a"})), "id_asc", "ratchet_job_tag USING PRIMARY KEY (tag=?)"),
        (
            Selection(
                tags=frozenset({"a"}), statuses=frozenset({Status.PENDING, Status.PAUSED, Status.WAITING})
            ),
            "id_asc",
            "ratchet_job_tag USING PRIMARY KEY (tag=?)",
        ),
        (Selection(business_key="k"), "id_asc", "ratchet_job_business_key"),
        (Selection(principal="p"), "id_asc", "ratchet_job_principal"),
    ],
)
@pytest.mark.parametrize("further", [False, True])
def test_listings_are_on_an_index(
    empty: sqlite3.Connection, selection: Selection, order: Any, index: str, further: bool
) -> None:
    """Listings of the dead-letter queue, by tag, key and principal, first page or later, walk their index."""
    after = queries.Cursor(order, None if order == "id_asc" else 5, str(new_job().id)) if further else None
    text, parameters = queries.compiled(queries.page(selection, order, 20, after))
    plan = _plan(empty, text, parameters)
    assert any(index in step + " " for step in plan), plan
    assert not any("TEMP B-TREE FOR ORDER BY" in step for step in plan), plan


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the instructions of SQLite's machine, in hundreds, on every connection opened from now on."""
    done = [0]
    connect = sqlite3.connect

    def counting(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)

        def tick() -> int:
            done[0] += 1
            return 0

        connection.set_progress_handler(tick, 100)
        return connection

    monkeypatch.setattr(sqlite3, "connect", counting)
    return done


def _fill(store: SqliteStore, scaled: Callable[..., int]) -> None:
    """F57's database: many due in 30 days, many settled either way, some running, and 100 due now."""
    succeeded, failed, running = scaled(50_000), scaled(50_000), scaled(2_000)
    for trigger, number in ((Trigger.SUCCEED, succeeded), (Trigger.FAIL, failed)):
        for start in range(0, number, 1000):
            some = [new_job() for _ in range(min(1000, number - start))]
            store.insert(some)
            claims = store.claim(
                ClaimRequest(incarnation="past", limits={"threads": 1000}, limit=1000)
            ).claims
            assert len(claims) == len(some)
            ends = [Change(trigger, c.job_id, c.claim_seq, result="1", error="e", attempts=1) for c in claims]
            store.settle_many([Settlement(change) for change in ends])
    for start in range(0, running, 1000):
        store.insert([new_job() for _ in range(min(1000, running - start))])
        store.claim(ClaimRequest(incarnation=f"busy-{start}", limits={"threads": 1000}, limit=1000))
    future = scaled(200_000)
    for start in range(0, future, 1000):
        number = min(1000, future - start)
        store.insert([new_job(delay=timedelta(days=30), priority=n % 5) for n in range(number)])
    store.insert([new_job(tags=frozenset({"five"}), delay=timedelta(days=30)) for _ in range(5)])


@pytest.mark.field_case("F57")
@pytest.mark.timeout(600)
def test_cost_does_not_grow(store: SqliteStore, work: list[int], scaled: Callable[..., int]) -> None:
    """With a great many jobs settled and not yet due, each claim of 10 and each sweep stays as small as ever.

    An examined row takes some 20 instructions; 200 rows, the case's bound, take 4,000; an empty look 1,000.
    """
    _fill(store, scaled)
    for number in range(0, scaled(2_000), 1000):
        store.heartbeat(NodeInfo(incarnation=f"busy-{number}", name="busy"))
    store.insert([new_job() for _ in range(100)])
    claimed: list[Any] = []
    times: list[float] = []
    claims = 0
    while True:
        work[0], began = 0, time.perf_counter()
        answer = store.claim(ClaimRequest(incarnation="now", limits={"threads": 10}, limit=10))
        times.append(time.perf_counter() - began)
        # Beyond the look, ten rows are updated in their indexes and read for the workers.
        assert work[0] * 100 <= 4_000 + 10 * 500
        if not answer.claims:
            break
        claims += 1
        claimed += [claim.job_id for claim in answer.claims]
    assert (len(claimed), len(set(claimed)), claims) == (100, 100, 10)
    assert answer.next_due is not None
    assert statistics.median(times) < 10 * 0.05

    bounded: dict[str, tuple[int, Callable[[], object]]] = {
        "an empty claim": (
            1_000,
            lambda: store.claim(ClaimRequest(incarnation="now", limits={"threads": 10})),
        ),
        "a sweep": (4_000, lambda: store.recover(RecoverRequest(grace=MINUTE, crash_budget=3))),
        "five by tag": (
            4_000,
            lambda: store.find(Selection(tags=frozenset({"five"}), statuses=frozenset({Status.PENDING}))),
        ),
        "twenty of the dead-letter queue": (
            8_000,
            lambda: store.find(Selection(statuses=frozenset({Status.FAILED})), order="ended_desc", limit=20),
        ),
        "an owner's claims": (4_000, lambda: store.held("now")),
    }
    for name, (most, call) in bounded.items():
        call()
        work[0] = 0
        call()
        assert work[0] * 100 <= most, (name, work[0] * 100)


def test_a_claim_looks_no_further_than_its_limit(store: SqliteStore, work: list[int]) -> None:
    """The same claim costs the same with ten and with a thousand times as many due jobs behind it."""

    def cost(behind: int) -> int:
        for _ in range(0, behind, 500):
            store.insert([new_job() for _ in range(500)])
        work[0] = 0
        assert len(store.claim(ClaimRequest(incarnation="n", limits={"threads": 10}, limit=10)).claims) == 10
        return work[0]

    first = cost(500)
    assert cost(10_000) <= first * 1.5 + 5
