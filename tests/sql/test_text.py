"""Text that a row cannot hold never gets into one: it would spoil every answer that the row is part of."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance_tests.driver import new_job, request
from ratchet.domain.lifecycle import Trigger
from ratchet.domain.settlement import Change, RunCallback, Settlement
from ratchet.errors import UsageError
from ratchet.spi.store import NodeInfo, Selection
from ratchet_sql.store import SqliteStore

BAD = ["a\0b", "a\ud800b", "\udfff"]
GOOD = [
    "",
    "é",
    "😀",
    "\\ud800",
    'x"\\y\n\x01\x7f',
    "\u2028",
    "\ufffd",
    "'; DROP TABLE ratchet_job; --",
    "%_*",
]


@pytest.mark.parametrize("text", BAD)
@pytest.mark.parametrize("beside", [0, 1])
def test_refused_at_insertion(store: SqliteStore, text: str, beside: int) -> None:
    """A job with unstorable text in a field is a usage error, alone or in a list, and nothing is inserted."""
    good = [new_job() for _ in range(beside)]
    for field in (
        "target",
        "payload",
        "principal",
        "business_key",
        "idempotency_key",
        "resource",
        "on_success",
    ):
        with pytest.raises(UsageError, match="lone surrogate"):
            store.insert([*good, new_job(**{field: text})])
    with pytest.raises(UsageError, match="lone surrogate"):
        store.insert([*good, new_job(tags=frozenset({text}))])
    assert store.count(Selection()) == 0


@pytest.mark.parametrize("text", BAD)
def test_replaced_in_errors(store: SqliteStore, text: str) -> None:
    """In a stored error they are U+FFFD, in the job, its history and its callback, and all stays readable."""
    jobs = [new_job(metadata={"k": text}, params={"p": text}) for _ in range(2)]
    store.insert(jobs)
    claims = store.claim(request()).claims
    assert [claim.metadata for claim in claims] == [{"k": text}] * 2
    change = Change(Trigger.FAIL, jobs[0].id, 1, error=text, attempts=1)
    store.settle(Settlement(change, (RunCallback("on_failure", "m:f", text),)))
    expected = "".join("\ufffd" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in text)
    failed = store.get(jobs[0].id)
    assert failed is not None
    assert failed.last_error == expected
    assert failed.params == {"p": text}
    assert [execution.error for execution in store.history(failed.id)] == [expected]
    (pending,) = store.take_callbacks("heir", grace=timedelta(), limit=9)
    assert pending.argument == expected
    assert len(store.find(Selection()).jobs) == 2


@pytest.mark.parametrize("text", GOOD)
def test_any_other_text(store: SqliteStore, text: str) -> None:
    """Every other text comes back as it went in, from every field, alone and in a list."""
    for count in (1, 2):
        jobs = [
            new_job(
                target=text,
                payload=text,
                principal=text,
                resource=text,
                tags=frozenset({text}),
                idempotency_key=f"i{count}{n}{text}",
                business_key=f"b{count}{n}{text}",
                metadata={text: text},
                params={text: text},
            )
            for n in range(count)
        ]
        store.insert(jobs)
        for job in store.get_many([job.id for job in jobs]):
            assert (job.target, job.payload, job.principal, job.resource) == (text,) * 4
            assert (set(job.tags), dict(job.metadata), dict(job.params)) == (
                {text},
                {text: text},
                {text: text},
            )
    claims = store.claim(request()).claims
    assert {claim.payload for claim in claims} == {text}
    for claim in claims:
        store.settle(Settlement(Change(Trigger.FAIL, claim.job_id, 1, error=text, attempts=1)))
    found = store.find(Selection(tags=frozenset({text}), target=text or None, error=text or None))
    assert {job.last_error for job in found.jobs} == {text}
    assert len(found.jobs) == 3


def test_names_of_nodes(store: SqliteStore) -> None:
    """A host name that is not text to a database does not stop the heartbeat."""
    store.heartbeat(NodeInfo(incarnation="n", name="a\udce4", host="b\0", detail={"k": "\udce4"}))
    (node,) = store.nodes()
    assert (node.info.name, node.info.host, node.info.detail) == ("a\ufffd", "b\ufffd", {"k": "\udce4"})


def test_looking_for_it(store: SqliteStore) -> None:
    """Looking for what cannot be stored is a usage error or finds nothing; the store goes on."""
    store.insert([new_job()])
    with pytest.raises(UsageError, match="lone surrogate"):
        store.find(Selection(principal="\ud800"))
    assert store.find_by_key(business="\ud800") is None
    assert store.find(Selection(principal="\0")).jobs == []
    assert store.counts()
