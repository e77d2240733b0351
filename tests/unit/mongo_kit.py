"""Jobs for hypothesis, and documents as a server would have them: for mapping and filters only, never for races."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import bson
import mongomock
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from hypothesis import strategies as st

from ratchet.domain.job import MAX_TIMEOUT, JobType, NewJob
from ratchet.domain.lifecycle import UNSCHEDULED, Status
from ratchet.domain.priority import Priority
from ratchet.domain.retry import Backoff
from ratchet_mongo.documents import Document

OURS: Final[CodecOptions[Any]] = CodecOptions(
    tz_aware=True, tzinfo=UTC, uuid_representation=UuidRepresentation.STANDARD
)
# mongomock encodes what it is given without our options, and knows UUIDs only as what they are stored as.
_THEIRS: Final[CodecOptions[Any]] = CodecOptions(
    tz_aware=True, tzinfo=UTC, uuid_representation=UuidRepresentation.UNSPECIFIED
)
TOKEN: Final = UUID(int=77)
NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)


def over_the_wire(document: Document) -> Document:
    """A document, encoded and decoded as the store does it."""
    return bson.decode(bson.encode(document, codec_options=OURS), OURS)


def theirs(document: Document) -> Document:
    """A document or a filter as `mongomock` takes it."""
    return bson.decode(bson.encode(document, codec_options=OURS), _THEIRS)


def ours(document: Document) -> Document:
    """A document of `mongomock` as the store reads it."""
    return bson.decode(bson.encode(document, codec_options=_THEIRS), OURS)


def collection(documents: Iterable[Document]) -> Any:
    """A collection of `mongomock` with these documents."""
    client: Any = mongomock.MongoClient(tz_aware=True)
    made = client["test"]["jobs"]
    made.insert_many([theirs(doc) for doc in documents])
    return made


def whole(instant: datetime) -> datetime:
    """Whole milliseconds, as instants are when they reach a store."""
    return instant.replace(microsecond=instant.microsecond // 1000 * 1000)


text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
"""Whatever can be stored, names that look like operators included."""
names = st.one_of(text, st.sampled_from(["a.b", "$set", "$where", ".", "$", "", "_id"]))
instants = st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)).map(whole)  # noqa: DTZ001
durations = st.timedeltas(timedelta(), timedelta(days=400))


@st.composite
def new_jobs(draw: st.DrawFn) -> NewJob:
    """Any submitted job."""
    maps = st.dictionaries(names, text, max_size=3)
    keys = st.none() | names
    return NewJob(
        id=draw(st.uuids()),
        target=draw(names),
        payload=draw(text),
        format=draw(st.integers(0, 2**31)),
        params=draw(maps),
        type=draw(st.sampled_from(JobType)),
        executor=draw(names),
        priority=draw(st.sampled_from(Priority)),
        delay=draw(st.none() | durations),
        at=draw(st.none() | instants | st.just(UNSCHEDULED)),
        start=draw(st.sampled_from([Status.PENDING, Status.WAITING])),
        max_retries=draw(st.integers(0, 2**31 - 1)),
        backoff=draw(
            st.sampled_from(
                [
                    Backoff(),
                    Backoff.fixed(timedelta(seconds=3)),
                    Backoff.exponential(timedelta(seconds=2), jitter=0.5),
                ]
            )
        ),
        timeout=draw(st.timedeltas(timedelta(microseconds=1), MAX_TIMEOUT)),
        tags=draw(st.frozensets(names, max_size=3)),
        idempotency_key=draw(keys),
        business_key=draw(keys),
        principal=draw(keys),
        resource=draw(keys),
        on_success=draw(keys),
        on_failure=draw(keys),
        metadata=draw(maps),
    )
