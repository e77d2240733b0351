"""Values that a codec must carry exactly, and classes that it must carry exactly or refuse."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Final
from uuid import UUID
from zoneinfo import ZoneInfo


class Colour(Enum):
    """A plain enumeration."""

    RED = "red"


class Size(IntEnum):
    """One whose members are integers."""

    BIG = 3


class Word(StrEnum):
    """One whose members are texts."""

    YES = "yes"


@dataclass(frozen=True)
class Point:
    """A dataclass."""

    x: int
    y: tuple[int, ...] = ()


EXACT: Final[dict[str, object]] = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "one, not true": 1,
    "negative": -1,
    "53 bits and one": 2**53 + 1,
    "64 bits and one": 2**64 + 1,
    "5000 digits": 10**5000 - 1,
    "float": 0.1,
    "whole float": 1.0,
    "negative zero": -0.0,
    "infinity": math.inf,
    "negative infinity": -math.inf,
    "smallest float": 5e-324,
    "text": "plain",
    "empty text": "",
    "text of other scripts": "Grüße, 日本語, \U0001f600",
    "control characters": "a\x00b\x1f\x7f\u2028",
    "lone surrogate": "\ud800",
    "text like JSON": '{"$": ["tuple", []]}',
    "bytes": b"\x00\xff",
    "empty bytes": b"",
    "list": [1, "a", None, [2.5]],
    "empty list": [],
    "tuple": (1, (2,), ()),
    "set": {1, 2},
    "empty set": set(),
    "frozenset": frozenset({"a"}),
    "dict": {"a": 1, "b": [{}]},
    "strange keys": {"": 1, "$": 2, "a.b": 3, "$set": {"$": [1]}, "\x00": 4, "__class__": 5},
    "date": date(2024, 2, 29),
    "naive datetime": datetime(2024, 2, 29, 1, 2, 3, 456789),  # noqa: DTZ001 - must stay naive
    "datetime in UTC": datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC),
    "datetime with an offset": datetime(2024, 2, 29, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    "datetime in a zone, second pass": datetime(
        2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")
    ),
    "time": time(1, 2, 3, 4),
    "timedelta": timedelta(days=-1, microseconds=1),
    "decimal": Decimal("1.10"),
    "decimal infinity": Decimal("-Infinity"),
    "uuid": UUID("018f3a5e-0000-7000-8000-000000000001"),
    "everything at once": {"k": [(1, {2}), {"x": Decimal("0.0")}, b"b", None]},
}

EXACT_OR_REFUSED: Final[dict[str, object]] = {
    "enum": Colour.RED,
    "int enum": Size.BIG,
    "str enum": Word.YES,
    "dataclass": Point(1, (2, 3)),
    "inside a list": [Colour.RED, Point(0)],
}


class Text(str):
    """A subclass of a builtin, which would lose its class on the way."""

    __slots__ = ()


REFUSED: Final[dict[str, object]] = {
    "object": object(),
    "function": len,
    "class": int,
    "generator": iter(()),
    "integer key": {1: "a"},
    "tuple key": {(1, 2): "a"},
    "subclass of str": Text("a"),
    "deep inside": {"a": [1, (2, {"b": object()})]},
}


def same(left: object, right: object) -> bool:
    """True if equal and of the same type, all the way down; a NaN is itself, and -0.0 is not 0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float) and isinstance(right, float):
        both = math.isnan(left) and math.isnan(right)
        return both or (left == right and math.copysign(1, left) == math.copysign(1, right))
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, datetime) and isinstance(right, datetime):
        return (left, left.fold, str(left.tzinfo)) == (right, right.fold, str(right.tzinfo))
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return str(left) == str(right)
    return left == right
