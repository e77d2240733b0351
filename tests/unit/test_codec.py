"""The JSON codec: what travels arrives equal and of the same type, what cannot is refused by name."""

import contextlib
import json
import math
import struct
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from pathlib import PurePosixPath
from typing import NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.defaults.codec import JsonCodec
from ratchet.errors import NewerPayloadFormat, PayloadTooLarge, UnencodableValue, UnreadablePayload
from ratchet.spi.codec import PayloadCodec

codec = JsonCodec(lambda module: module == __name__)


class Level(IntEnum):
    LOW = 1


class Name(StrEnum):
    ANN = "ann"


class Point(NamedTuple):
    x: int


@dataclass(frozen=True)
class Cell:
    value: object


def identical(left: object, right: object) -> bool:
    """Equal and of the same type all the way down; NaN is NaN, signs and folds and zone names count."""
    if type(left) is not type(right):
        return False
    match left:
        case float():
            assert isinstance(right, float)
            if math.isnan(left):
                return math.isnan(right) and math.copysign(1, left) == math.copysign(1, right)
            return struct.pack("d", left) == struct.pack("d", right)
        case list() | tuple():
            assert isinstance(right, list | tuple)
            return len(left) == len(right) and all(map(identical, left, right))
        case dict():
            assert isinstance(right, dict)
            return list(left) == list(right) and all(map(identical, left.values(), right.values()))
        case set() | frozenset():
            assert isinstance(right, set | frozenset)
            mine, theirs = sorted(left, key=_order), sorted(right, key=_order)
            return len(mine) == len(theirs) and all(map(identical, mine, theirs))
        case datetime() | time():
            assert isinstance(right, datetime | time)
            return (
                left.replace(tzinfo=None) == right.replace(tzinfo=None)
                and left.fold == right.fold
                and identical(left.tzinfo, right.tzinfo)
            )
        case Cell():
            assert isinstance(right, Cell)
            return identical(left.value, right.value)
        case timezone() | Decimal():
            return repr(left) == repr(right)
        case ZoneInfo():
            return left is right
        case _:
            return left == right


def _order(value: object) -> tuple[str, str]:
    return type(value).__name__, ascii(value)


def travel(value: object) -> object:
    text = codec.encode_value(value, what="result")
    assert text.isascii()
    json.loads(text, parse_constant=pytest.fail)
    args, kwargs = codec.decode_arguments(codec.encode_arguments((value,), {"k": value}), codec.format)
    back = codec.decode_value(text)
    assert identical(args[0], back)
    assert identical(kwargs["k"], back)
    return back


# -- any value ------------------------------------------------------------------------------------------

any_text = st.text(st.characters(codec=None), max_size=8) | st.sampled_from(
    ["", "$", '"$"', "a.b", "$set", "_id", "__proto__", "\0", "\ud83d\ude00", "x\ud800\udc00\udc00", "\udfff"]
)
zones = st.sampled_from(
    [None, UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("UTC"), timezone(timedelta(0), "UTC")]
) | (st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone))
hashables = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**700), 10**700)
    | st.floats()
    | any_text
    | st.binary(max_size=12)
    | st.builds(
        lambda naive, zone, fold: naive.replace(tzinfo=zone, fold=fold),
        st.datetimes(),
        zones,
        st.integers(0, 1),
    )
    | st.builds(
        lambda naive, zone, fold: naive.replace(tzinfo=zone, fold=fold), st.times(), zones, st.integers(0, 1)
    )
    | st.dates()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | zones
    | st.sampled_from([Level.LOW, Name.ANN])
)
keys_of_sets = hashables.filter(lambda value: value == value)  # NaN has no place in a comparison of sets
values = st.recursive(
    hashables | st.sampled_from([Decimal("NaN"), Decimal("-sNaN12"), float("-nan"), -0.0]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(any_text, inner, max_size=4)
        | st.sets(keys_of_sets, max_size=4)
        | st.frozensets(keys_of_sets, max_size=4)
        | st.builds(Cell, inner)
    ),
    max_leaves=12,
)


@given(values)
def test_any_value_travels_exactly(value: object) -> None:
    """Whatever is built from the listed types arrives equal and of the same type, as argument and as result."""
    assert identical(travel(value), value)


@given(st.dictionaries(any_text, hashables, max_size=4), st.lists(hashables, max_size=4))
def test_any_call_travels_exactly(kwargs: dict[str, object], args: list[object]) -> None:
    """Positional and keyword arguments keep their places, whatever the keywords are called."""
    text = codec.encode_arguments(tuple(args), kwargs)
    back = codec.decode_arguments(text, 1)
    assert identical(back, (tuple(args), kwargs))


# -- what changed quietly elsewhere ---------------------------------------------------------------------


@pytest.mark.field_case("F37")
def test_any_key_is_only_a_key() -> None:
    """Keys with dots, dollars, NUL, nothing, or our own mark are data, not structure."""
    plain = {"a.b": 1, "$set": {"x": 2}, "": 3, "_id": 4, "a": {"b": 5}, "k\0": 6, "__proto__": 7}
    marked = {"$": ["tuple", [1]], "x": {"$": ["dict", [["a", 1]]]}, "y": {"$": "$"}, "$$": {"$": {"$": []}}}
    assert identical(travel(plain), plain)
    assert identical(travel(marked), marked)


@pytest.mark.field_case("F38")
@pytest.mark.parametrize(
    "value",
    [
        *(2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 11168737559087072609, 10**40),
        *(True, 1, False, 0, 1.0, 10**5000, -(7**6000)),
    ],
    ids=lambda value: ascii(value) if abs(value) < 10**50 else "huge",
)
def test_numbers_keep_value_and_type(value: float) -> None:
    """Integers of any size, booleans and floats arrive as what they were."""
    assert identical(travel(value), value)


@pytest.mark.field_case("F40")
def test_not_a_number_travels() -> None:
    """NaN is NaN, infinities and the negative zero keep their signs, and the text is still JSON."""
    value = {"ok": 0.5, "m": math.nan, "hi": math.inf, "lo": -math.inf, "z": -0.0}
    assert identical(travel(value), value)


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.field_case("F41")
@pytest.mark.parametrize(
    "value",
    [
        (1, (2, 3)),
        {1, 2},
        frozenset({1, (2,)}),
        b"\x00\xff",
        Decimal("1.10"),
        UUID(int=5),
        datetime(2024, 10, 27, 2, 30, 0, 1, tzinfo=BERLIN, fold=1),
        datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN),
        datetime(2024, 1, 1, 12, 0, 0, 123456),  # noqa: DTZ001  # naive on purpose
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30), "IST")),
        time(2, 30, tzinfo=UTC, fold=1),
        date(2024, 2, 29),
        timedelta(days=-1, microseconds=1),
        timedelta.max,
        Level.LOW,
        Name.ANN,
        Cell((1, None)),
        [],
        {},
        (),
        set(),
        None,
    ],
    ids=ascii,
)
def test_types_are_kept(value: object) -> None:
    """What JSON alone would turn into something else arrives as it was, to the microsecond."""
    assert identical(travel(value), value)


def test_lone_surrogates_and_nul_travel() -> None:
    """Text that no database column takes travels escaped, a false surrogate pair stays two characters."""
    for text in (
        "\0",
        "\ud800",
        "\udc00\ud83d",
        "\ud83d\ude00",
        "\U0001f600\ude00",
        "a\ud83d\ude00b\ud83d\ude00",
    ):
        assert travel(text) == text
        assert travel({text: text}) == {text: text}


def test_a_datetime_parsed_by_pydantic_travels() -> None:
    """Datetimes out of pydantic carry pydantic's own zone class, which arrives as the same class."""
    from pydantic import TypeAdapter

    value = TypeAdapter(datetime).validate_json('"2024-01-01T00:00:00+02:00"')
    back = travel(value)
    assert isinstance(back, datetime)
    assert back == value
    assert type(back.tzinfo) is type(value.tzinfo)
    assert back.utcoffset() == timedelta(hours=2)


def test_a_snapshot_is_taken() -> None:
    """Changing an argument after it was encoded changes nothing, and each decode gives fresh objects."""
    items = [1]
    text = codec.encode_arguments((items,), {})
    items.append(2)
    (first,), _ = codec.decode_arguments(text, 1)
    (second,), _ = codec.decode_arguments(text, 1)
    assert first == second == [1]
    assert first is not second


def test_it_is_a_payload_codec() -> None:
    """The codec offers what the SPI asks for."""
    assert isinstance(codec, PayloadCodec)


# -- refusals -------------------------------------------------------------------------------------------


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __iter__(self) -> Iterator[int]:
        raise RuntimeError("no")


@pytest.mark.field_case("F41", "F43")
@pytest.mark.parametrize(
    ("value", "path", "words"),
    [
        (Unprintable(), "argument 'order'", "Unprintable has no exact JSON form"),
        ({"lines": [1, object()]}, "argument 'order'['lines'][1]", "object has no exact JSON form"),
        ({"a": ({1: "a"},)}, "argument 'order'['a'][0][1]", "a dict key must be a str, this one is int"),
        ({Level.LOW: 1}, "argument 'order'[a ", "a dict key must be a str"),
        ({Name.ANN: 1}, "argument 'order'[a ", "a dict key must be a str"),
        (Cell(Cell(object())), "argument 'order'.value.value", "object has no exact JSON form"),
        (
            {"x": {1, frozenset({b"x", PurePosixPath("/")})}},
            "argument 'order'['x']{...}{...}",
            "PurePosixPath",
        ),
        (Point(1), "argument 'order'", "subclass of tuple"),
        (OrderedDict(a=1), "argument 'order'", "subclass of dict"),
        (defaultdict(list), "argument 'order'", "subclass of dict"),
        (Counter("a"), "argument 'order'", "subclass of dict"),
        (bytearray(b"x"), "argument 'order'", "convert it with bytes(...)"),
        (memoryview(b"x"), "argument 'order'", "convert it with bytes(...)"),
        (1j, "argument 'order'", "complex has no exact JSON form"),
        (int, "argument 'order'", "a class cannot travel"),
        (len, "argument 'order'", "cannot travel; pass the name of what is to be called"),
        (sys, "argument 'order'", "module has no exact JSON form"),
        ((i for i in "a"), "argument 'order'", "generator has no exact JSON form"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_refusals_name_the_argument_and_the_place(value: object, path: str, words: str) -> None:
    """What cannot travel is refused with the argument's name, the path inside it, and what to do."""
    for args, kwargs in (((1, value), {}), ((1,), {"order": value})):
        with pytest.raises(UnencodableValue) as refusal:
            codec.encode_arguments(args, kwargs, names=("id", "order"))
        assert refusal.value.path.startswith(path)
        assert words in str(refusal.value)
        assert str(refusal.value).isascii()


def test_refusals_of_results_and_of_surplus_arguments() -> None:
    """A value without a parameter name is named by its place, a result by what it is."""
    with pytest.raises(UnencodableValue, match=r"^argument 2: "):
        codec.encode_arguments((1, object()), {})
    with pytest.raises(UnencodableValue, match=r"^result\['lock'\]: "):
        codec.encode_value({"lock": object()}, what="result")


class _Int(int):
    __slots__ = ()


class _Str(str):
    __slots__ = ()


class _Float(float):
    __slots__ = ()


class _Datetime(datetime):
    __slots__ = ()


@pytest.mark.parametrize(
    "value", [_Int(1), _Str("a"), _Float(1.0), _Datetime(2024, 1, 1, tzinfo=UTC)], ids=repr
)
def test_subclasses_are_not_flattened(value: object) -> None:
    """A subclass of a builtin is refused, in a list and on its own, rather than arriving as its base."""
    for wrapped in (value, [value], {"k": value}):
        with pytest.raises(UnencodableValue, match="would come back as the plain type"):
            codec.encode_value(wrapped, what="result")


def test_cycles_are_refused() -> None:
    """A value that contains itself is refused where it does, whatever it is made of."""
    lists: list[object] = [1]
    lists.append({"again": lists})
    wide: list[object] = []
    wide.extend([wide, wide])
    inside: list[object] = []
    cell = Cell(inside)
    inside.append(cell)
    for value, path in ((lists, "result[1]['again']"), (wide, "result[0]"), (cell, "result.value[0]")):
        with pytest.raises(UnencodableValue, match="contains itself") as refusal:
            codec.encode_value(value, what="result")
        assert refusal.value.path == path


def nested(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


def test_depth_is_limited() -> None:
    """100 levels travel, 101 are refused, and 100,000 neither crash nor exhaust the stack."""
    assert travel(nested(100)) == nested(100)
    for depth in (101, 100_000):
        with pytest.raises(UnencodableValue, match="more than 100 levels"):
            codec.encode_value(nested(depth), what="result")
    with pytest.raises(UnencodableValue, match="more than 100 levels"):
        codec.encode_value((nested(100),), what="result")


def test_the_same_object_twice_is_not_a_cycle() -> None:
    """An object that occurs twice side by side arrives as two equal ones."""
    shared = {"a": (1,)}
    assert travel([shared, shared]) == [shared, shared]


@pytest.mark.parametrize("leaf", [1, (1,)], ids=["plain", "translated"])
def test_exponential_values_are_refused_soon(leaf: object) -> None:
    """Fifty lists that each hold the next one twice are refused as too large instead of filling the memory."""
    value: object = [leaf]
    for _ in range(50):
        value = [value, value]
    with pytest.raises(PayloadTooLarge, match=r"^result: "):
        codec.encode_value(value, what="result")


# -- reading --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[[],{}] ",
        "[[],{}",
        "[[],[]]",
        "[[],{},1]",
        "{}",
        "null",
        "[[NaN],{}]",
        "[[1" + "0" * 5000 + "],{}]",
        "[" * 100_000,
        '[[{"$":1}],{}]',
        '[[{"$":[]}],{}]',
        '[[{"$":["tuple",[1]],"x":1}],{}]',
        '[[{"$":["no-such-kind",1]}],{}]',
        '[[{"$":["tuple"]}],{}]'.replace("tuple", "date"),
        '[[{"$":["set",[[]]]}],{}]',
        '[[{"$":["decimal","x"]}],{}]',
        '[[{"$":["bytes","*"]}],{}]',
        '[[{"$":["zone","No/Where"]}],{}]',
        '[[{"$":["zone","../../etc/passwd"]}],{}]',
        '[[{"$":["enum"]}],{}]',
        '[[{"$":["enum",1,"A"]}],{}]',
        '{"$":["tuple",[[],{}]]}',
    ],
    ids=lambda text: text[:30],
)
def test_corrupt_text_is_unreadable(text: str) -> None:
    """Whatever is wrong with a stored text, reading it raises UnreadablePayload and nothing else."""
    with pytest.raises(UnreadablePayload):
        codec.decode_arguments(text, 1)


@given(st.text(st.sampled_from('[]{}",:$tupledictseo1\\u0'), max_size=40))
def test_any_text_is_read_or_unreadable(text: str) -> None:
    """No text makes reading raise anything but UnreadablePayload."""
    with contextlib.suppress(UnreadablePayload):
        codec.decode_value(text)


def test_formats() -> None:
    """A newer format is told apart from a corrupt one, and its text is not looked at."""
    with pytest.raises(NewerPayloadFormat, match="format 2 is newer"):
        codec.decode_arguments("<not json>", 2)
    with pytest.raises(UnreadablePayload, match="format 0"):
        codec.decode_arguments("[[],{}]", 0)


def test_texts_are_compact() -> None:
    """The stored form is small and stable: it is what older rows hold."""
    assert codec.encode_arguments((), {}) == "[[],{}]"
    assert codec.encode_arguments((42, "é"), {"currency": "USD"}) == '[[42,"\\u00e9"],{"currency":"USD"}]'
    assert codec.encode_value((1,), what="result") == '{"$":["tuple",[1]]}'
    assert codec.encode_value({"$": 1}, what="result") == '{"$":["dict",[["$",1]]]}'
