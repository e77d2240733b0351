"""Selections, orders and cursors as filters and sorts. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from ratchet.domain.lifecycle import Status
from ratchet.errors import UsageError
from ratchet.spi.store import Order, Selection
from ratchet_mongo.documents import MS, Document, storable

MOST: Final = 1000
EVERY_STATUS: Final = sorted(s.value for s in Status)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

ORDERS: Final[dict[Order, tuple[str | None, int]]] = {
    "created_desc": ("created_at", -1),
    "created_asc": ("created_at", 1),
    "id_asc": (None, 1),
    "ended_desc": ("ended_at", -1),
    "scheduled_asc": ("scheduled_time", 1),
}
NOTHING: Final[Document] = {"_id": {"$in": []}}


def where(selection: Selection, statuses: frozenset[Status] | None = None) -> Document:
    """The filter of a selection; what is not decided upon has no status and is never of it.

    Args:
        selection: what is asked for.
        statuses: narrows it further.
    """
    s = selection
    wanted = s.statuses if statuses is None else (s.statuses & statuses if s.statuses else statuses)
    texts = (s.business_key, s.principal, s.target, s.error, *s.tags)
    if (statuses is not None and not wanted) or not all(storable(t) for t in texts if t is not None):
        return dict(NOTHING)  # nothing stored has such text
    found: Document = {}
    if s.ids:
        found["_id"] = {"$in": sorted(s.ids)}
    if len(wanted) == 1:
        found["status"] = next(iter(wanted)).value
    elif wanted:
        found["status"] = {"$in": sorted(status.value for status in wanted)}
    else:
        found["status"] = {"$exists": True}
    if s.types:
        found["type"] = {"$in": sorted(t.value for t in s.types)}
    if s.priorities:
        found["priority"] = {"$in": sorted(int(p) for p in s.priorities)}
    if s.tags:
        # By equality, which every planner looks up; of several tags the first is.
        found["tags"], *others = sorted(s.tags)
        if others:
            found["$and"] = [{"tags": tag} for tag in others]
    if s.business_key is not None:
        found["business_key"] = s.business_key
    if s.principal is not None:
        found["principal"] = s.principal
    if s.target is not None:
        found["target"] = {"$regex": re.escape(s.target)}
    if s.error is not None:
        found["last_error"] = {"$regex": re.escape(s.error)}
    for name, start, stop in (
        ("created_at", s.created_from, s.created_before),
        ("ended_at", s.ended_from, s.ended_before),
    ):
        bounds = {}
        if start is not None:
            bounds["$gte"] = _ms_up(start)
        if stop is not None:
            bounds["$lt"] = _ms_up(stop)
        if bounds:
            found[name] = bounds
    return found


def both(first: Document, second: Document) -> Document:
    """Both filters at once, also where they name the same field."""
    if not first.keys() & second.keys():
        return {**first, **second}
    return {"$and": [first, second]}


def _ms_up(instant: datetime) -> datetime:
    """The first whole millisecond that is not before `instant`: stored instants are whole."""
    odd = instant.microsecond % 1000
    if not odd:
        return instant
    down = instant - timedelta(microseconds=odd)
    return down if down > datetime.max.replace(tzinfo=UTC) - MS else down + MS


# -- cursors --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a page ended: the order, and the last job's place in it."""

    order: Order
    value: int | None
    job_id: UUID

    def encode(self) -> str:
        """As opaque text."""
        text = json.dumps(["mongo1", self.order, self.value, str(self.job_id)])
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str, order: Order) -> Cursor:
        """The cursor that `encode` made for this order."""
        try:
            padded = text + "=" * (-len(text) % 4)
            kind, its_order, value, job_id = json.loads(base64.urlsafe_b64decode(padded.encode("ascii")))
            well_formed = kind == "mongo1" and isinstance(value, int | None)
            made = UUID(job_id)
        except (ValueError, TypeError, AttributeError, binascii.Error) as error:
            raise UsageError("this cursor is not from this store; begin again without one") from error
        if not well_formed:
            raise UsageError("this cursor is not from this store; begin again without one")
        if its_order != order:
            raise UsageError(
                f"this cursor belongs to order {its_order!r}, not {order!r}; begin again without one"
            )
        return cls(order, value, made)

    @classmethod
    def after(cls, doc: Document, order: Order) -> Cursor:
        """The place of `doc` in the order."""
        name, _ = ORDERS[order]
        instant = None if name is None else doc.get(name)
        return cls(order, None if instant is None else (instant - _EPOCH) // MS, doc["_id"])


@dataclass(frozen=True, slots=True)
class Part:
    """One query of a page: a page by end is the settled jobs, then those that have no end.

    Attributes:
        where: its filter.
        sort: its order.
        ties: its order is that of an index read backwards, in which jobs of one instant come by id
            descending: see `in_order` and `last_ties`.
    """

    where: Document
    sort: list[tuple[str, int]]
    ties: bool = False


def parts(base: Document, order: Order, after: Cursor | None) -> list[Part]:
    """The queries that a page is read from, in order, each only if the ones before did not fill it."""
    name, direction = ORDERS[order]
    by_id = [("_id", 1)]
    if order == "created_asc":
        return _oldest_first(base, after)
    behind_id: Document = {"_id": {"$gt": after.job_id}} if after is not None else {}
    if name is None:
        return [Part(both(base, behind_id), by_id)]
    sort = [(name, direction), ("_id", 1)]
    without_end = order == "ended_desc"
    if after is None:
        first: Document = {name: {"$exists": True}} if without_end else {}
        found = [Part(both(base, first), sort)]
    elif after.value is None:
        return [Part(both(base, {name: None, **behind_id}), by_id)]
    else:
        value = _EPOCH + after.value * MS
        bound, beyond = ("$lte", "$lt") if direction < 0 else ("$gte", "$gt")
        # The bound stands beside the choice, so that the scan of the index begins there.
        place: Document = {
            name: {bound: value},
            "$or": [{name: {beyond: value}}, {name: value, **behind_id}],
        }
        found = [Part(both(base, place), sort)]
    if without_end:
        found.append(Part(both(base, {name: None}), by_id))
    return found


def _oldest_first(base: Document, after: Cursor | None) -> list[Part]:
    """Pages by creation, ascending, from the indexes that list the newest first: none is kept for this alone."""
    backwards = [("created_at", 1), ("_id", -1)]
    if after is None:
        return [Part(base, backwards, ties=True)]
    value = _EPOCH + (after.value or 0) * MS
    same: Document = {"created_at": value, "_id": {"$gt": after.job_id}}
    return [
        Part(both(base, same), [("_id", 1)]),
        Part(both(base, {"created_at": {"$gt": value}}), backwards, ties=True),
    ]


def in_order(docs: list[Document]) -> list[Document]:
    """What a part with `ties` answered, jobs of one instant by id ascending."""
    return sorted(docs, key=lambda doc: (doc["created_at"], doc["_id"]))


def last_ties(part: Part, docs: list[Document]) -> Part:
    """For a part with `ties` whose answer was cut off: the query for the jobs of the last instant, in order.

    Those that were answered are the highest ids of that instant, and the page needs the lowest.
    """
    return Part(both(part.where, {"created_at": docs[-1]["created_at"]}), [("_id", 1)])
