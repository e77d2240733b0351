"""What a document can hold: sizes, names, text and numbers at the edge, refused before the server would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import bson
import pytest

from conformance_tests.driver import Driver, new_job, request
from conformance_tests.harness import SettableClock
from ratchet.domain.lifecycle import Status, Trigger
from ratchet.domain.settlement import Change, RunCallback, Settlement, Submit
from ratchet.errors import PayloadTooLarge, StorePermanentError, UsageError
from ratchet.settings import MOST_BYTES
from ratchet.spi.store import NodeInfo, Selection, Settled
from ratchet_mongo._sync.database import OPTIONS
from ratchet_mongo.documents import KEPT, MAX_ERROR, MAX_TEXT, Document
from tests.mongo.explaining import Recorder

SERVER_TAKES: Final = 16 * 1024 * 1024


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def store(mongo_url: str, recorder: Recorder) -> Iterator[Any]:
    """A store, warm, whose commands are recorded."""
    from pymongo import MongoClient

    from ratchet_mongo import MongoJobStore

    client: MongoClient[Document] = MongoClient(mongo_url, event_listeners=[recorder])
    made = MongoJobStore.from_client(client, mongo_url.rpartition("/")[2], clock=SettableClock())
    made.counts()
    yield made
    client.close()


@pytest.fixture
def driver(store: Any) -> Driver:
    return Driver(store, SettableClock())


def bytes_of(store: Any, job_id: UUID) -> int:
    return len(
        bson.encode(store.database.jobs.find_one({"_id": job_id}), codec_options=OPTIONS["codec_options"])
    )


# -- size -----------------------------------------------------------------------------------------


def test_history_moves_out_of_the_document(store: Any, driver: Driver) -> None:
    """After sixty claims the document holds the last twenty, the rest is beside it, and all are read in order."""
    job_id = driver.submit()
    for n in range(60):
        claim = driver.claim_one(job_id)
        driver.end(claim, Trigger.RETRY, delay=timedelta(), attempts=n + 1, error=f"error {n}")
    doc = store.database.jobs.find_one({"_id": job_id})
    assert len(doc["history"]) == KEPT
    assert store.database.executions.count_documents({}) == 60 - KEPT
    told = store.history(job_id)
    assert [each.claim_seq for each in told] == list(range(1, 61))
    assert [each.error for each in told] == [f"error {n}" for n in range(60)]


@pytest.mark.mongodb_needs("speed")
def test_the_largest_job_there_can_be_is_far_from_the_limit(store: Any, driver: Driver) -> None:
    """Everything as large as it is let in, twenty and more errors included, stays below what the server takes."""
    text = "x" * (MAX_TEXT - 10_000)
    error = "e" * MAX_ERROR
    job_id = driver.submit(payload=text, start=Status.WAITING, on_success="m:f")
    driver.apply(Trigger.SIGNAL, job_id, signal=text)
    for n in range(KEPT + 5):
        driver.end(driver.claim_one(job_id), Trigger.RETRY, delay=timedelta(), attempts=n + 1, error=error)
    claim = driver.claim_one(job_id)
    half = text[: len(text) // 2]
    done = Change(Trigger.SUCCEED, job_id, claim.claim_seq, result=half)
    assert isinstance(store.settle(Settlement(done, (RunCallback("on_success", "m:f", half),))), Settled)
    assert SERVER_TAKES * 0.9 < bytes_of(store, job_id) < SERVER_TAKES - 500_000
    assert store.get(job_id).result == half


def test_the_limits_of_the_settings_fit_into_a_document() -> None:
    """What the settings allow at most, arguments and params, or a result and its callback, the store takes."""
    assert 2 * MOST_BYTES + 100_000 < MAX_TEXT
    assert 3 * MAX_TEXT + (KEPT + 1) * MAX_ERROR + 100_000 < SERVER_TAKES


TOO_LONG = "x" * (MAX_TEXT + 1)
WIDE = "\N{SNOWMAN}" * (MAX_TEXT // 3 + 1)
"""As many characters as a third of the limit, and more bytes than it."""


@pytest.mark.parametrize(
    "fields",
    [
        {"payload": TOO_LONG},
        {"principal": WIDE},
        {"params": {"a": TOO_LONG}},
        {"tags": frozenset(f"{n:064}" for n in range(MAX_TEXT // 64 + 1))},
        {"metadata": {"m": TOO_LONG}},
    ],
    ids=lambda fields: next(iter(fields)),
)
@pytest.mark.parametrize("beside", [0, 1], ids=["alone", "in a list"])
def test_too_large_a_submission_is_refused_before_anything_is_sent(
    store: Any, recorder: Recorder, fields: dict[str, Any], beside: int
) -> None:
    """A job larger than a document may be is `PayloadTooLarge` with both figures, and nothing is sent."""
    jobs = [new_job(business_key="b", **fields)] + [new_job() for _ in range(beside)]
    with recorder.recording() as sent, pytest.raises(PayloadTooLarge, match=r"the limit is 4,718,592"):
        store.insert(jobs)
    assert sent == []


@pytest.mark.parametrize(
    ("fields", "effects"),
    [
        ({"result": TOO_LONG}, ()),
        ({"error": "e" * (MAX_ERROR + 1)}, ()),
        (
            {"result": TOO_LONG[: MAX_TEXT // 2 + 1]},
            (RunCallback("on_success", "m:f", TOO_LONG[: MAX_TEXT // 2 + 1]),),
        ),
        ({"result": TOO_LONG}, (Submit(new_job(business_key="s")),)),
    ],
    ids=["result", "error", "result and callback", "with a successor"],
)
def test_too_large_an_outcome_is_refused_before_anything_is_sent(
    store: Any, driver: Driver, recorder: Recorder, fields: dict[str, Any], effects: tuple[Any, ...]
) -> None:
    """An outcome that no document can take is `PayloadTooLarge`; nothing is sent, and the claim is still held."""
    claim = driver.claim_one(driver.submit())
    settlement = Settlement(Change(Trigger.SUCCEED, claim.job_id, claim.claim_seq, **fields), effects)
    for call in (store.settle, lambda one: store.settle_many([one])):
        with recorder.recording() as sent, pytest.raises(PayloadTooLarge, match="the limit is"):
            call(settlement)
        assert sent == []
    driver.end(claim, Trigger.SUCCEED)


def test_too_large_a_signal_is_refused_before_anything_is_sent(
    store: Any, driver: Driver, recorder: Recorder
) -> None:
    """A signal that no document can take is `PayloadTooLarge`; the job still waits."""
    job_id = driver.submit(start=Status.WAITING)
    with recorder.recording() as sent, pytest.raises(PayloadTooLarge):
        store.apply(Change(Trigger.SIGNAL, job_id, signal=TOO_LONG))
    assert sent == []
    assert store.get(job_id).status is Status.WAITING


def test_a_document_that_others_have_filled_is_told(store: Any, driver: Driver) -> None:
    """Where a document is full nevertheless, the server's refusal is a sentence about its size."""
    claim = driver.claim_one(driver.submit())
    store.database.jobs.update_one(
        {"_id": claim.job_id}, {"$set": {"foreign": "x" * (SERVER_TAKES - 10_000)}}
    )
    change = Change(Trigger.SUCCEED, claim.job_id, claim.claim_seq, result="r" * 100_000)
    with pytest.raises(StorePermanentError, match="make the job smaller"):
        store.settle(Settlement(change))


@pytest.mark.parametrize(
    ("document", "error", "words"),
    [
        ({"a": "x" * (SERVER_TAKES + 100_000)}, StorePermanentError, "make the job smaller"),
        ({"a\0b": 1}, UsageError, "InvalidDocument"),
        ({"a": object()}, UsageError, "InvalidDocument"),
        ({"a": "\ud800"}, UsageError, "UnicodeEncodeError"),
        ({"a": 2**64}, UsageError, "64 bits"),
    ],
    ids=["size", "field name", "type", "text", "number"],
)
def test_whatever_the_driver_cannot_send_is_an_error_of_ours(
    store: Any, document: Document, error: type[Exception], words: str
) -> None:
    """What the driver refuses by exceptions that are none of its own ends at the same edge as all others."""
    database = store.database
    with pytest.raises(error, match=words):
        database.run(lambda: database.nodes.insert_one(document))


# -- names ----------------------------------------------------------------------------------------

NAMES = [
    "a.b",
    "$where",
    "$set",
    "",
    ".",
    "a..b",
    "$",
    "a$b",
    "_id",
    "0",
    "\N{SNOWMAN}",
    "x" * 255,
    "__proto__",
]


def test_any_name_is_only_text(store: Any, driver: Driver) -> None:
    """Names with dots, dollars and nothing in them come back as they were, from wherever names can stand."""
    info = NodeInfo(incarnation="$in.carnation", name="n.$", detail=dict.fromkeys(NAMES, "1"))
    store.heartbeat(info)
    assert store.nodes()[0].info == info
    for n, name in enumerate(NAMES):
        job_id = driver.submit(
            params=dict.fromkeys(NAMES, "1"),
            metadata=dict.fromkeys(NAMES, name),
            tags=frozenset({name, "t"}),
            idempotency_key=f"{name}i",
            business_key=f"{name}b",
            principal=name,
            target=f"m:{name}",
            resource=name,
            executor=f"{name}e",
        )
        job = store.get(job_id)
        assert (job.params, job.metadata) == (dict.fromkeys(NAMES, "1"), dict.fromkeys(NAMES, name))
        assert (job.tags, job.principal, job.resource) == (frozenset({name, "t"}), name, name)
        assert store.find_by_key(idempotency=f"{name}i").id == job_id
        assert store.find_by_key(business=f"{name}b").id == job_id
        assert [each.id for each in store.find(Selection(tags=frozenset({name, "t"}))).jobs] == [job_id]
        assert store.count(Selection(principal=name)) == 1
        assert store.count(Selection(target=f"m:{name}", business_key=f"{name}b")) == 1
        claims = store.claim(
            request("$in.carnation", limits={f"{name}e": 5}, require_tags=frozenset({name}))
        ).claims
        assert [claim.job_id for claim in claims] == [job_id]
        assert len(store.held("$in.carnation")) == n + 1
    assert store.forget_node("$in.carnation")


# -- text that cannot be stored -------------------------------------------------------------------

BAD = ["a\0b", "\ud800", "x\udfff\N{SNOWMAN}"]


@pytest.mark.parametrize("bad", BAD, ids=ascii)
@pytest.mark.parametrize(
    "field",
    ["idempotency_key", "business_key", "principal", "target", "tags", "resource", "executor", "payload"],
)
@pytest.mark.parametrize("beside", [0, 1], ids=["alone", "in a list"])
def test_names_and_keys_cannot_have_it(store: Any, field: str, bad: str, beside: int) -> None:
    """A NUL or a lone surrogate in a key, a tag or a name is a usage error, and nothing is inserted."""
    value: Any = frozenset({bad}) if field == "tags" else bad
    with pytest.raises(UsageError, match="NUL character or a lone surrogate"):
        store.insert([new_job(**{field: value})] + [new_job() for _ in range(beside)])
    assert sum(store.counts().values()) == 0


@pytest.mark.parametrize("bad", BAD, ids=ascii)
@pytest.mark.mongodb_needs("distinct in arrays")
def test_errors_have_it_replaced(store: Any, driver: Driver, bad: str) -> None:
    """In an error it becomes U+FFFD, in the job, in its history and for its callback; it is found as it is stored."""
    clean = "".join("\ufffd" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in bad)
    store.heartbeat(NodeInfo(incarnation=f"{bad}i", name=bad, host=bad, detail={"d": bad}))
    claim = driver.claim_one(driver.submit(on_failure="m:f"))
    change = Change(Trigger.FAIL, claim.job_id, claim.claim_seq, error=bad, attempts=1)
    assert isinstance(store.settle(Settlement(change, (RunCallback("on_failure", "m:f", bad),))), Settled)
    assert store.get(claim.job_id).last_error == clean
    assert store.history(claim.job_id)[0].error == clean
    (told,) = store.take_callbacks("other", grace=timedelta(seconds=60), limit=5)
    assert told.argument == clean
    assert store.count(Selection(error=clean)) == 1
    assert store.count(Selection(error=bad)) == 0


@pytest.mark.parametrize("bad", BAD, ids=ascii)
def test_nothing_is_found_by_it(store: Any, bad: str) -> None:
    """A look-up by text that nothing stored can have finds nothing, and is no error."""
    store.insert([new_job(tags=frozenset({"t"}), business_key="b", idempotency_key="i", principal="p")])
    assert store.find_by_key(idempotency=bad) is None
    assert store.find_by_key(business=bad) is None
    for selection in (
        Selection(tags=frozenset({bad})),
        Selection(business_key=bad),
        Selection(principal=bad),
        Selection(target=bad),
    ):
        assert store.find(selection).jobs == []
        assert store.count(selection) == 0
    assert store.claim(request(require_tags=frozenset({bad}))).claims == []
    assert len(store.claim(request(bad, exclude_tags=frozenset({bad}))).claims) == 1
    assert len(store.held(bad)) == 1


# -- numbers and instants -------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**100])
@pytest.mark.parametrize("field", ["format", "max_retries"])
@pytest.mark.parametrize("beside", [0, 1], ids=["alone", "in a list"])
def test_a_field_holds_64_bits(store: Any, field: str, number: int, beside: int) -> None:
    """An integer field beyond 64 bits is a usage error that says so; nothing is inserted, and keys stay free."""
    with pytest.raises(UsageError, match="at most 64 bits"):
        store.insert(
            [new_job(business_key="b", idempotency_key="i", **{field: number})]
            + [new_job() for _ in range(beside)]
        )
    assert sum(store.counts().values()) == 0
    assert store.insert([new_job(business_key="b")])[0].created


def test_a_huge_attempt_count_is_refused(store: Any, driver: Driver) -> None:
    """A count beyond 64 bits in an outcome is a usage error; the claim can still be settled."""
    claim = driver.claim_one(driver.submit())
    change = Change(Trigger.FAIL, claim.job_id, claim.claim_seq, attempts=2**63)
    with pytest.raises(UsageError, match="at most 64 bits"):
        store.settle(Settlement(change))
    driver.end(claim, Trigger.FAIL, attempts=1)


@pytest.mark.parametrize(
    "due",
    [
        datetime(1, 1, 2, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999000, UTC),
        datetime.max.replace(tzinfo=UTC),
    ],
)
def test_instants_from_year_1_to_9999(store: Any, driver: Driver, due: datetime) -> None:
    """Due times at both ends of the calendar are stored, sorted and read."""
    job_id = driver.submit(at=due)
    other = driver.submit()
    page = store.find(Selection(), order="scheduled_asc").jobs
    assert {job.id for job in page} == {job_id, other}
    assert [job.scheduled_time for job in page] == sorted(job.scheduled_time for job in page)


def test_ids_keep_their_order(store: Any, open_store: Callable[..., Any]) -> None:
    """Ids sort in the database as they do here, whatever their bits."""
    ids = [UUID(int=n) for n in (0, 1, 2**63, 2**64 + 1, 2**127 - 1, 2**127, 2**128 - 1)]
    store.insert([new_job(id=job_id) for job_id in ids[::-1]])
    assert [job.id for job in store.find(Selection(), order="id_asc").jobs] == ids
    assert [job.id for job in store.find(Selection(), order="created_asc").jobs] == ids
