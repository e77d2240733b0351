"""F37: user data whose keys look like structure arrives as it was, and is matched literally."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final
from uuid import uuid4

import pytest

from ratchet import Status, current_job
from ratchet.domain.job import Job, NewJob
from ratchet.errors import UsageError
from ratchet.spi.store import ClaimRequest, JobStore, Selection
from tests.conftest import not_yet
from tests.field_cases.exact import KINDS, same, slots, submitter

pytestmark = pytest.mark.field_case("F37")

ODD: Final[dict[str, Any]] = {
    "a.b": 1,
    "$set": {"x": 2},
    "": 3,
    "_id": 4,
    "a": {"b": 5},
    "k\0": 6,
    "__proto__": 7,
    # The codec's own mark and the engine's marker are user data like any other.
    "$": ["tuple", [1]],
    "__ratchet__": "result-too-large",
}
PLAIN: Final[dict[str, Any]] = {"a": 1}

LITERAL: Final = (
    "a.b", "$set", "_id", "__proto__", "100%", "%", "a_b", "_", "a*", "*", ".*", "^a$", "[ab]", "(a|b)", "a\\b", "\\",
    "\\%", "a?b", "{a}", "'", '"', "''; drop table jobs; --", "a b", "k=v&x", "ключ", "null", "[]", "\x01",
)  # fmt: skip
DECOYS: Final = (
    "axb",
    "set",
    "xid",
    "1000",
    "anything",
    "a%b",
    "aab",
    "b",
    "ab",
    "a/b",
    "aXb",
    "A.C",
    "a.bc",
)


def look(value: Any, *, keyword: Any, expected: str) -> Any:
    """Compares what arrived with what was meant, and gives it back."""
    meant = ODD if expected == "odd" else PLAIN
    assert same(value, meant)
    assert same(keyword, [meant])
    assert same(dict(current_job().params), {"p": meant, "a.b": meant, "$where": 1, "": 2})
    return {"value": value, "keyword": keyword}


async def look_async(value: Any, *, keyword: Any, expected: str) -> Any:
    """The same on the loop."""
    return look(value, keyword=keyword, expected=expected)


def take_apart(**pieces: Any) -> Any:
    """Every key of the value as the name of a keyword argument."""
    return pieces


def submit(node: Any, kind: str, value: Any, expected: str) -> Any:
    builder = submitter(node, kind)(look, look_async, value, keyword=[value], expected=expected)
    return (
        builder.with_param("p", value)
        .with_param("a.b", value)
        .with_param("$where", 1)
        .with_param("", 2)
        .submit()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_f37_arguments_keywords_params_and_result_are_equal(make_node: Any, kind: str) -> None:
    """The job sees equal arguments, keyword arguments and params, and the result read back is equal."""
    node = make_node(**slots(kind, 1))
    handle = submit(node, kind, ODD, "odd")
    assert same(handle.result(30), {"value": ODD, "keyword": [ODD]})


def test_f37_result_read_by_another_scheduler_is_equal(
    make_node: Any, open_here: Callable[..., JobStore]
) -> None:
    """A handle made in another scheduler on the same store reads the same result."""
    handle = submit(make_node(), "threads", ODD, "odd")
    handle.wait(30)
    reader = make_node(open_here(), start=False)
    assert same(reader.handle(handle.id).result(1), {"value": ODD, "keyword": [ODD]})
    assert same(reader.query.arguments(reader.get(handle.id))[0], (ODD,))


def test_f37_keys_may_be_names_of_keyword_arguments(make_node: Any) -> None:
    """Keys with dots, dollars and nothing arrive also as the names of keyword arguments."""
    assert same(make_node().enqueue(take_apart, **ODD).submit().result(30), ODD)


def test_f37_metadata_is_equal(open_here: Callable[..., JobStore]) -> None:
    """Metadata (text to text, set by stores' callers) comes back equal from the row and from the claim."""
    store = open_here()
    metadata = {key: str(value) for key, value in ODD.items()}
    job = NewJob(id=uuid4(), target="m:f", payload="[[],{}]", metadata=metadata)
    store.insert([job])
    stored = store.get(job.id)
    assert stored is not None
    assert same(dict(stored.metadata), metadata)
    (claim,) = store.claim(ClaimRequest(incarnation="n", limits={"threads": 1})).claims
    assert same(dict(claim.metadata), metadata)


def test_f37_signal_payload_is_equal() -> None:
    """The payload of a signal arrives as it was sent."""
    not_yet("signal")


def test_f37_no_other_field_of_the_job_changes(make_node: Any) -> None:
    """Beside the data itself the row of an odd job is that of a plain one."""
    node = make_node()
    odd, plain = (submit(node, "threads", *case).wait(30) for case in ((ODD, "odd"), (PLAIN, "plain")))
    assert (odd.status, plain.status) == (Status.SUCCEEDED, Status.SUCCEEDED), odd.last_error
    own = {"id", "payload", "params", "result"}
    times = {f.name for f in dataclasses.fields(Job) if f.name.endswith("_at")} | {
        "scheduled_time", "duration", "queue_wait",
    }  # fmt: skip
    for each in dataclasses.fields(Job):
        if each.name not in own | times:
            assert getattr(odd, each.name) == getattr(plain, each.name), each.name


@pytest.fixture
def crowd(make_node: Any) -> Any:
    """One job per odd text and per decoy, with that text as tag, business key and part of the error."""
    node = make_node(start=False)
    handles = {
        text: node.enqueue(take_apart).with_tags(text, "all").with_business_key(text).submit()
        for text in (*LITERAL, *DECOYS)
    }
    return node, {text: handle.id for text, handle in handles.items()}


def test_f37_tags_are_matched_literally_by_search(crowd: Any) -> None:
    """A search for a tag finds the one job that carries it, whatever its characters mean elsewhere."""
    node, ids = crowd
    for text in LITERAL:
        page = node.query.find(Selection(tags=frozenset({text.lower(), "all"})))
        assert [job.id for job in page.jobs] == [ids[text]], text
        assert node.query.count(Selection(tags=frozenset({text.lower()}))) == 1, text


def test_f37_business_keys_are_matched_literally_by_search(crowd: Any) -> None:
    """A search for a business key finds the one job that has it, and so does the look-up of its holder."""
    node, ids = crowd
    for text in LITERAL:
        assert [job.id for job in node.query.find(Selection(business_key=text)).jobs] == [ids[text]], text
        assert node.store.find_by_key(business=text).id == ids[text], text


def test_f37_tags_are_matched_literally_by_cancel_by_tag(crowd: Any) -> None:
    """Cancel by tag cancels the one job that carries the tag and leaves all others."""
    node, ids = crowd
    for text in LITERAL:
        assert node.cancel_tagged(text) == 1, text
        assert node.get(ids[text]).status is Status.CANCELED
    assert node.query.counts()[Status.PENDING] == len(DECOYS)


def fail_with(text: str) -> None:
    """An error that contains the text."""
    raise RuntimeError(f"<<{text}>>")


def test_f37_text_searches_are_literal(make_node: Any) -> None:
    """Texts looked for in targets and errors are contained literally; no character stands for others."""
    node = make_node()
    texts = [text for text in LITERAL if "k=v" not in text]
    ids = {text: node.enqueue(fail_with, text).submit() for text in (*texts, *DECOYS)}
    for handle in ids.values():
        handle.wait(30)
    for text in texts:
        found = node.query.find(Selection(error=f"<<{text}>>"), limit=1000).jobs
        assert [job.id for job in found] == [ids[text].id], text
    assert node.query.count(Selection(target="fail_with")) == len(ids)
    for text in ("fail%with", "fail.with", "*", "fail?with", "^tests", "f_il_with"):
        assert node.query.count(Selection(target=text)) == 0, text


def test_f37_what_keys_cannot_carry_is_refused_by_name(make_node: Any) -> None:
    """NUL and lone surrogates are refused in tags and keys when they are named, on every store, and store nothing."""
    node = make_node(start=False)
    builder = node.enqueue(take_apart)
    for bad in ("k\0", "\ud800"):
        with pytest.raises(UsageError, match="tag"):
            builder.with_tags(bad)
        with pytest.raises(UsageError, match="business key"):
            builder.with_business_key(bad)
        with pytest.raises(UsageError, match="idempotency key"):
            builder.with_idempotency_key(bad)
    with pytest.raises(UsageError, match="business key"):
        builder.with_business_key("")
    assert builder.with_tags("", " ").submit().job().tags == frozenset()
    assert node.query.count() == 1
