"""Changes that share a statement are written exactly as each by itself would be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pymongo import UpdateMany, UpdateOne

from conformance_tests.driver import new_job, request
from ratchet.domain.lifecycle import Status, Trigger
from ratchet.domain.settlement import Change, RunCallback, Settlement
from ratchet.spi.store import Refused, Settled
from ratchet_mongo import statements
from ratchet_mongo.moves import Guard, move
from ratchet_mongo.statements import MOST, SMALL

AWKWARD = ("$status", "$$ROOT", "", "a.b", "ü" * 10, '{"$literal": 1}')
"""Results that an expression would take for something else."""


def claimed(store: Any, count: int, **options: Any) -> list[Any]:
    for _ in range(count):
        store.insert([new_job(**options)])
    return list(store.claim(request(limit=count)).claims)


def outcomes(claims: list[Any]) -> list[Settlement]:
    """Successes with awkward results and callbacks, failures with different delays, one big result."""
    return [_outcome(n, claim) for n, claim in enumerate(claims)]


def _outcome(n: int, claim: Any) -> Settlement:
    ended = Change(
        Trigger.SUCCEED, claim.job_id, claim_seq=claim.claim_seq, duration=timedelta(milliseconds=n)
    )
    if n % 3 == 0:
        again = {"trigger": Trigger.FAIL, "target": Status.PENDING, "attempts": 1, "error": f"e{n}"}
        return Settlement(replace(ended, **again, delay=timedelta(hours=n + 1)))  # type: ignore[arg-type]
    result = "x" * (SMALL + 1) if n == 1 else AWKWARD[n % len(AWKWARD)]
    told = (RunCallback("on_success", "m:f", result),) if n % 3 == 1 else ()
    return Settlement(replace(ended, result=result), told)


def test_each_job_gets_what_is_its_own(open_store: Callable[..., Any]) -> None:
    """Jobs settled in one call look as jobs settled one by one do, document by document."""
    documents = []
    for together in (True, False):
        store = open_store()
        claims = claimed(store, 20)
        made = outcomes(claims)
        answers = store.settle_many(made) if together else [store.settle(one) for one in made]
        assert all(isinstance(answer, Settled) for answer in answers)
        found = {doc["_id"]: doc for doc in store.database.jobs.find()}
        documents.append([bare(found[c.job_id]) for c in claims])
    assert documents[0] == documents[1]


def bare(document: dict[str, Any]) -> dict[str, Any]:
    """A document without what differs from run to run: ids, tokens, instants."""
    kept = {name: value for name, value in document.items() if not name.endswith(("_at", "_token", "_time"))}
    for name in ("_id", "write", "queue_wait", "picked_by"):
        kept.pop(name, None)
    kept["history"] = [
        {name: value for name, value in entry.items() if not name.endswith("_at")}
        for entry in document.get("history", ())
    ]
    return kept


def test_a_job_that_has_changed_is_left_alone_by_its_statement(open_store: Callable[..., Any]) -> None:
    """One of those settled together that was taken back meanwhile is refused and stays as it is."""
    store, other = open_store(), open_store()
    claims = claimed(store, 5)
    lost = claims[2].job_id
    taken_back = Change(Trigger.RELEASE, lost, claim_seq=1, error="taken back")
    assert isinstance(other.settle(Settlement(taken_back)), Settled)
    made = [Settlement(Change(Trigger.SUCCEED, c.job_id, claim_seq=c.claim_seq, result="1")) for c in claims]
    answers = store.settle_many(made)
    assert [type(answer) for answer in answers] == [Settled, Settled, Refused, Settled, Settled]
    assert other.get(lost).status is Status.PENDING
    assert other.get(lost).result is None


def test_history_keeps_its_latest_entries(open_store: Callable[..., Any]) -> None:
    """Ended claims beyond those a document keeps are moved out of it by a shared statement too, none lost."""
    store = open_store()
    ids = []
    for _ in range(3):
        store.insert([new := new_job()])
        ids.append(new.id)
    for _ in range(23):
        claims = store.claim(request(limit=3)).claims
        back = [
            Settlement(Change(Trigger.RELEASE, c.job_id, claim_seq=c.claim_seq, error="r")) for c in claims
        ]
        assert all(isinstance(answer, Settled) for answer in store.settle_many(back))
    for job_id in ids:
        assert [entry.claim_seq for entry in store.history(job_id)] == list(range(1, 24))


def guard(store: Any, job_id: Any) -> Guard:
    return Guard(store.database.jobs.find_one({"_id": job_id}))


def test_statements_are_as_few_as_shapes(open_store: Callable[..., Any]) -> None:
    """Changes of one shape are one statement, up to a number; a big or a lonely one is a statement of its own."""
    store = open_store()
    first, *rest = claimed(store, 5)
    now = store.now()

    def succeed(claim: Any, result: str) -> Any:
        change = Change(Trigger.SUCCEED, claim.job_id, claim_seq=claim.claim_seq, result=result)
        return move(guard(store, claim.job_id), change, now, store.database.token())

    small = [succeed(claim, "1") for claim in rest]
    big = succeed(first, "x" * (SMALL + 1))
    made = statements.statements([big, *small])
    assert sorted(type(one) is UpdateMany for one in made) == [False, True]
    (alone,) = statements.statements([small[0]])
    assert isinstance(alone, UpdateOne)
    assert len(statements.statements(small * MOST)) == len(small)
