"""Selections, orders and cursors as filters and sorts, against what the memory store would choose."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import cmp_to_key
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.domain.job import JobType
from ratchet.domain.lifecycle import SETTLED, Status
from ratchet.domain.priority import Priority
from ratchet.errors import UsageError
from ratchet.spi.store import Order, Selection
from ratchet_mongo.documents import Document
from ratchet_mongo.selections import ORDERS, Cursor, both, in_order, last_ties, parts, where
from tests.unit.mongo_kit import NOW, collection, ours, theirs

TAGS = ["t", "u", "a.b", "$x"]
KEYS = ["k", "$set", ""]
TARGETS = ["shop:pay", "shop.*:pay", "a(b", "$end"]
IDS = [UUID(int=n) for n in (0, 1, 2**64, 2**127, 2**128 - 1)]
MOMENTS = [NOW + timedelta(milliseconds=n) for n in range(4)]


@st.composite
def stored_jobs(draw: st.DrawFn) -> list[Document]:
    """A few documents, many of them alike, some of which nobody has decided upon."""
    docs = []
    for job_id in draw(st.lists(st.sampled_from(IDS) | st.uuids(), max_size=8, unique=True)):
        status = draw(st.sampled_from(Status))
        doc: Document = {
            "_id": job_id,
            "status": status.value,
            "type": draw(st.sampled_from(JobType)).value,
            "priority": int(draw(st.sampled_from(Priority))),
            "target": draw(st.sampled_from(TARGETS)),
            "created_at": draw(st.sampled_from(MOMENTS)),
            "scheduled_time": draw(st.sampled_from(MOMENTS)),
        }
        if status in SETTLED:
            doc["ended_at"] = draw(st.sampled_from(MOMENTS))
        optional: dict[str, Any] = {
            "tags": draw(st.lists(st.sampled_from(TAGS), max_size=3, unique=True).map(sorted)) or None,
            "business_key": draw(st.none() | st.sampled_from(KEYS)),
            "principal": draw(st.none() | st.sampled_from(KEYS)),
            "last_error": draw(st.none() | st.sampled_from(TARGETS)),
        }
        doc |= {name: value for name, value in optional.items() if value is not None}
        if draw(st.integers(0, 5)) == 0:
            del doc["status"]
        docs.append(doc)
    return docs


def some(values: Sequence[Any]) -> st.SearchStrategy[frozenset[Any]]:
    return st.frozensets(st.sampled_from(values), max_size=2)


bounds = (
    st.none()
    | st.sampled_from(MOMENTS)
    | st.sampled_from(MOMENTS).map(lambda at: at + timedelta(microseconds=1))
)
selections = st.builds(
    Selection,
    ids=some(IDS),
    statuses=some(list(Status)),
    types=some(list(JobType)),
    priorities=some(list(Priority)),
    tags=some([*TAGS, "\0"]),
    business_key=st.none() | st.sampled_from([*KEYS, "\ud800"]),
    principal=st.none() | st.sampled_from(KEYS),
    target=st.none() | st.sampled_from([*TARGETS, "shop", ".", "(", "$"]),
    error=st.none() | st.sampled_from([*TARGETS, "shop", "\0"]),
    created_from=bounds,
    created_before=bounds,
    ended_from=bounds,
    ended_before=bounds,
)


def chosen(doc: Document, s: Selection) -> bool:
    """What `Selection` says, word by word."""

    def within(name: str, start: Any, before: Any) -> bool:
        at = doc.get(name)
        if start is None and before is None:
            return True
        return at is not None and (start is None or start <= at) and (before is None or at < before)

    return (
        "status" in doc
        and (not s.ids or doc["_id"] in s.ids)
        and (not s.statuses or doc["status"] in s.statuses)
        and (not s.types or doc["type"] in s.types)
        and (not s.priorities or doc["priority"] in s.priorities)
        and s.tags <= set(doc.get("tags", ()))
        and (s.business_key is None or doc.get("business_key") == s.business_key)
        and (s.principal is None or doc.get("principal") == s.principal)
        and (s.target is None or s.target in doc["target"])
        and (s.error is None or s.error in doc.get("last_error", ""))
        and (s.error is None or "last_error" in doc)
        and within("created_at", s.created_from, s.created_before)
        and within("ended_at", s.ended_from, s.ended_before)
    )


@given(stored_jobs(), selections)
def test_a_filter_finds_what_the_selection_says(docs: list[Document], selection: Selection) -> None:
    """The filter of a selection finds exactly its jobs, and nothing that is not decided upon."""
    found = {ours(doc)["_id"] for doc in collection(docs).find(theirs(where(selection)))} if docs else set()
    assert found == {doc["_id"] for doc in docs if chosen(doc, selection)}


@given(stored_jobs(), selections, some(list(Status)))
def test_a_filter_can_be_narrowed(
    docs: list[Document], selection: Selection, statuses: frozenset[Status]
) -> None:
    """Narrowed to some states, none included, it finds those of its jobs that are in them."""
    narrowed = theirs(where(selection, statuses))
    found = {ours(doc)["_id"] for doc in collection(docs).find(narrowed)} if docs else set()
    assert found == {doc["_id"] for doc in docs if chosen(doc, selection) and doc["status"] in statuses}


def before(order: Order) -> Any:
    """The order of the protocol: by its field, jobs without an end last, ties by id ascending."""
    name, way = ORDERS[order]

    def compared(one: Document, other: Document) -> int:
        if name is not None:
            first, second = one.get(name), other.get(name)
            if (first is None) != (second is None):
                return 1 if first is None else -1
            if first is not None and second is not None and first != second:
                return way if first > second else -way
        return -1 if one["_id"].int < other["_id"].int else 1

    return cmp_to_key(compared)


def pages(jobs: Any, order: Order, limit: int, selection: Selection) -> list[UUID]:
    """All pages, read as `ratchet_mongo._async.reading.find` reads them."""
    found: list[UUID] = []
    after = None
    while True:
        docs: list[Document] = []
        for part in parts(where(selection), order, after):
            some = query(jobs, part, limit - len(docs))
            if part.ties:
                if len(some) == limit - len(docs):
                    tied = last_ties(part, some)
                    some = [doc for doc in some if doc["created_at"] != some[-1]["created_at"]]
                    some += query(jobs, tied, limit - len(docs) - len(some))
                some = in_order(some)
            docs += some
            if len(docs) == limit:
                break
        if not docs:
            return found
        found += [doc["_id"] for doc in docs]
        after = Cursor.decode(Cursor.after(docs[-1], order).encode(), order)


def query(jobs: Any, part: Any, limit: int) -> list[Document]:
    return [ours(doc) for doc in jobs.find(theirs(part.where)).sort(part.sort).limit(limit)]


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=40)
@given(docs=stored_jobs(), limit=st.integers(1, 4), statuses=some(list(Status)))
def test_pages_give_every_job_once_in_order(
    docs: list[Document], order: Order, limit: int, statuses: frozenset[Status]
) -> None:
    """Pages of any size, each begun where its cursor says, give exactly the jobs of the selection in their order."""
    selection = Selection(statuses=statuses)
    wanted = sorted((doc for doc in docs if chosen(doc, selection)), key=before(order))
    if docs:
        assert pages(collection(docs), order, limit, selection) == [doc["_id"] for doc in wanted]


def test_no_order_needs_a_sort_that_no_index_has() -> None:
    """Every part of a page is sorted as an index of its collection is, forwards or backwards."""
    from ratchet_mongo.indexes import INDEXES

    keys = [[("_id", 1)], [("_id", -1)]]
    for index in INDEXES:
        if index.collection == "jobs":
            keys += [list(index.keys), [(name, -way) for name, way in index.keys]]
    for order in ORDERS:
        for part in parts(where(Selection()), order, None):
            assert part.sort in keys


@given(
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 2)),
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 2)),
)
def test_both_is_both(first: Document, second: Document) -> None:
    """Two filters at once find what both find, also where they name the same field."""
    jobs = collection([{"_id": 9 * a + b, "a": a, "b": b} for a in range(3) for b in range(3)])

    def ids(wanted: Document) -> set[int]:
        return {doc["_id"] for doc in jobs.find(wanted)}

    assert ids(both(first, second)) == ids(first) & ids(second)


@pytest.mark.parametrize(
    "text",
    ["", "x", "!!!!", "W10", "WyJtb25nbzEiXQ", "WyJzcWwxIiwgImlkX2FzYyIsIG51bGwsICJ4Il0", "\N{SNOWMAN}"],
)
def test_a_foreign_cursor_is_refused(text: str) -> None:
    """Text that is no cursor of this store is a usage error that says to begin again."""
    with pytest.raises(UsageError, match="begin again"):
        Cursor.decode(text, "id_asc")


def test_a_cursor_belongs_to_its_order() -> None:
    """A cursor of one order is refused for another."""
    text = Cursor("created_asc", 5, IDS[0]).encode()
    with pytest.raises(UsageError, match="belongs to order"):
        Cursor.decode(text, "created_desc")
