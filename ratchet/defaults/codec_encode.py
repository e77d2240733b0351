"""From a value to plain JSON values: what JSON lacks becomes ``{"$": [kind, ...]}``, the rest is refused."""

from __future__ import annotations

import re
import sys
from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from math import copysign, isfinite, isnan
from typing import Any, Final, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from ratchet.defaults.codec_classes import (
    PayloadClasses,
    Untransportable,
    dataclass_state,
    is_derived,
    is_model,
    is_plain_dataclass,
)
from ratchet.errors import PayloadTooLarge, UnencodableValue

TAG: Final = "$"
MAX_DEPTH: Final = 100  # containers inside each other; far below the interpreter's recursion limit, both ways
MAX_VALUES: Final = 1_000_000  # values of one payload, shared ones counted each time they occur
# Beyond this an interpreter may refuse the decimal form (sys.set_int_max_str_digits goes down to 640 digits).
BIG_INT: Final = 10**600
# JSON cannot tell two lone surrogates in this order from the one character that they would encode.
_FALSE_PAIR: Final = re.compile("[\ud800-\udbff](?=[\udc00-\udfff])")

Json = Any
Step = tuple[str, object]  # how to get from a container to its part: ("item" | "key" | "attribute", which)


def is_plain(*containers: Any) -> bool:
    """True if all that the containers hold is exactly what JSON gives back: nothing needs translation.

    Level by level and counted, so that neither a cycle nor a small value that refers to itself
    many times over takes more than `MAX_VALUES` looks. False says no more than "look closer".
    """
    level: Sequence[Any] = containers
    seen = 0
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for container in level:
            seen += len(container)
            if seen > MAX_VALUES:
                return False
            values = container
            if type(container) is dict:
                for key in container:
                    if (
                        type(key) is not str
                        or key == TAG
                        or not (key.isascii() or _FALSE_PAIR.search(key) is None)
                    ):
                        return False
                values = container.values()
            for value in values:
                kind = type(value)
                if kind is str:
                    if not value.isascii() and _FALSE_PAIR.search(value) is not None:
                        return False
                elif kind is int:
                    if not -BIG_INT < value < BIG_INT:
                        return False
                elif kind is float:
                    if value - value != 0.0:  # NaN or infinite
                        return False
                elif kind is list or kind is dict:
                    if value:
                        below.append(value)
                elif kind is not bool and value is not None:
                    return False
        if not below:
            return True
        level = below
    return False


class Encoder:
    """One walk over one payload; knows where it is, so that a refusal can say so."""

    __slots__ = ("_classes", "_inside", "_path", "_root", "_seen")

    def __init__(self, classes: PayloadClasses) -> None:
        self._classes = classes
        self._root = ""
        self._path: list[Step] = []
        self._inside: set[int] = set()
        self._seen = 0

    def encode_root(self, value: object, root: str) -> Json:
        """Encode `value`; errors name `root` and the path below it."""
        self._root = root
        try:
            return self.encode(value)
        except Untransportable as refusal:
            raise UnencodableValue(self._where(), str(refusal)) from None
        except RecursionError:
            raise UnencodableValue(self._where(), "is nested too deeply for the stack that is left") from None

    def encode_arguments(self, args: Sequence[object], kwargs: dict[str, Any], names: Sequence[str]) -> Json:
        """Encode a call; errors name the argument."""
        positional = [
            self.encode_root(value, f"argument {names[i]!r}" if i < len(names) else f"argument {i + 1}")
            for i, value in enumerate(args)
        ]
        named = {name: self.encode_root(value, f"argument {name!r}") for name, value in kwargs.items()}
        return [positional, _object(named)]

    def encode(self, value: object) -> Json:
        """Encode a part of the value that `encode_root` was given."""
        kind = type(value)
        self._seen += 1
        if self._seen > MAX_VALUES:
            raise PayloadTooLarge(self._root, 2 * self._seen, 2 * MAX_VALUES)
        if value is None or kind is bool:
            return value
        translate = _TRANSLATIONS.get(kind)
        if translate is not None:
            return translate(self, value)
        return self._encode_object(value, kind)

    def _where(self) -> str:
        return self._root + "".join(map(_render, self._path))

    # -- containers ---------------------------------------------------------------------------------

    def _enter(self, value: object) -> None:
        if id(value) in self._inside:
            raise Untransportable("contains itself; break the cycle, for example by passing ids")
        if len(self._inside) >= MAX_DEPTH:
            raise Untransportable(f"is nested more than {MAX_DEPTH} levels deep; pass flatter data")
        self._inside.add(id(value))

    def _leave(self, value: object) -> None:
        self._inside.discard(id(value))

    def _part(self, step: str, which: object, value: object) -> Json:
        # Not popped when something is refused: the path then says where.
        self._path.append((step, which))
        encoded = self.encode(value)
        self._path.pop()
        return encoded

    def _items(self, value: list[object] | tuple[object, ...] | set[object] | frozenset[object]) -> Json:
        self._enter(value)
        step = "item" if isinstance(value, list | tuple) else "member"
        encoded = [self._part(step, index, item) for index, item in enumerate(value)]
        self._leave(value)
        return encoded

    def _dict(self, value: dict[object, object]) -> Json:
        self._enter(value)
        for key in value:
            if type(key) is not str:
                self._path.append(("key", key))
                raise Untransportable(
                    f"a dict key must be a str, this one is {_name(type(key))}; convert the keys with str(...),"
                    " or pass a list of (key, value) tuples"
                )
        encoded = {cast("str", key): self._part("key", key, item) for key, item in value.items()}
        self._leave(value)
        return _object(encoded)

    # -- values with a zone -------------------------------------------------------------------------

    def _datetime(self, value: datetime) -> Json:
        return self._zoned("datetime", value.replace(tzinfo=None).isoformat(), value)

    def _time(self, value: time) -> Json:
        return self._zoned("time", value.replace(tzinfo=None).isoformat(), value)

    def _zoned(self, kind: str, text: str, value: datetime | time) -> Json:
        if value.tzinfo is None and not value.fold:
            return {TAG: [kind, text]}
        return {TAG: [kind, text, value.fold, self._zone(value.tzinfo)]}

    def _zone(self, zone: tzinfo | None) -> Json:
        if zone is None:
            return None
        kind = type(zone)
        if kind is timezone:
            offset, *name = cast("tuple[Any, ...]", zone.__reduce__()[1])
            return {TAG: ["timezone", _delta(offset), *map(_text, name)]}
        if kind is ZoneInfo and cast("ZoneInfo", zone).key is not None:
            return {TAG: ["zone", cast("ZoneInfo", zone).key]}
        if _is_pydantic_zone(kind):
            offset = cast("timedelta", zone.utcoffset(None))
            return {TAG: ["pydantic-zone", offset // timedelta(seconds=1)]}
        raise Untransportable(
            f"its time zone is a {_name(kind)}; use datetime.timezone or zoneinfo.ZoneInfo('Area/City')"
        )

    # -- objects of the application -----------------------------------------------------------------

    def _encode_object(self, value: object, kind: type) -> Json:
        if issubclass(kind, Enum):
            return self._enum(cast("Enum", value))
        if is_model(kind):
            return self._model(value)
        if is_plain_dataclass(kind):
            return self._dataclass(value)
        if issubclass(kind, tzinfo):
            return self._zone(cast("tzinfo", value))
        raise Untransportable(_remedy(kind))

    def _enum(self, value: Enum) -> Json:
        cls = type(value)
        name = self._classes.name_of(cls)
        if isinstance(value, Flag):  # a combination has no name of its own
            return {TAG: ["flag", name, self.encode(value.value)]}
        if cls.__members__.get(value.name) is not value:
            raise Untransportable(f"it is no named member of {_name(cls)}; pass its value instead")
        return {TAG: ["enum", name, _text(value.name)]}

    def _dataclass(self, value: object) -> Json:
        name = self._classes.name_of(type(value))
        self._enter(value)
        state: dict[str, Json] = {}
        extra: dict[str, Json] = {}
        for attribute, kept, is_field in dataclass_state(value):
            _refuse_odd_name(attribute)
            (state if is_field else extra)[attribute] = self._part("attribute", attribute, kept)
        self._leave(value)
        return {TAG: ["dataclass", name, state, *([extra] if extra else [])]}

    def _model(self, model: Any) -> Json:
        cls = type(model)
        name = self._classes.name_of(cls)
        self._enter(model)
        state: dict[str, Json] = {}
        for attribute, kept in model.__dict__.items():
            if attribute in cls.model_fields:
                state[attribute] = self._part("attribute", attribute, kept)
            elif not is_derived(cls, attribute):
                self._path.append(("attribute", attribute))
                raise Untransportable(
                    "it is not a field of the model and would be lost; declare it or remove it"
                )
        extra, private = model.__pydantic_extra__, model.__pydantic_private__
        encoded_extra = None if extra is None else self._dict(extra)
        encoded_private = None
        if private is not None:
            encoded_private = {key: self._part("attribute", key, kept) for key, kept in private.items()}
        self._leave(model)
        fields_set = sorted(model.__pydantic_fields_set__)
        return {TAG: ["model", name, state, fields_set, encoded_extra, encoded_private]}


def _refuse_odd_name(attribute: str) -> None:
    if not attribute.isidentifier():
        raise Untransportable(f"it has an attribute with the odd name {ascii(attribute)[:60]}; remove it")


def _object(encoded: dict[str, Json]) -> Json:
    if TAG not in encoded and all(key.isascii() or not _FALSE_PAIR.search(key) for key in encoded):
        return encoded
    return {TAG: ["dict", [[_text(key), item] for key, item in encoded.items()]]}


def _text(value: str) -> Json:
    if value.isascii() or _FALSE_PAIR.search(value) is None:
        return value
    parts, start = [], 0
    for high in _FALSE_PAIR.finditer(value):
        parts.append(value[start : high.end()])
        start = high.end()
    return {TAG: ["str", *parts, value[start:]]}


def _int(value: int) -> Json:
    return value if -BIG_INT < value < BIG_INT else {TAG: ["int", hex(value)]}


def _float(value: float) -> Json:
    if isfinite(value):
        return value
    sign = "-" if copysign(1.0, value) < 0 else ""
    return {TAG: ["float", sign + ("nan" if isnan(value) else "inf")]}


def _delta(value: timedelta) -> Json:
    return {TAG: ["timedelta", value.days, value.seconds, value.microseconds]}


def _is_pydantic_zone(kind: type) -> bool:
    # Datetimes that pydantic parsed carry this class; it is pydantic's twin of datetime.timezone.
    module = sys.modules.get("pydantic_core")
    return module is not None and kind is module.TzInfo


# Exact types only: a subclass is never flattened into its base.
_TRANSLATIONS: Final[dict[type, Callable[[Encoder, Any], Json]]] = {
    str: lambda _, value: _text(value),
    int: lambda _, value: _int(value),
    float: lambda _, value: _float(value),
    list: Encoder._items,
    dict: Encoder._dict,
    tuple: lambda encoder, value: {TAG: ["tuple", encoder._items(value)]},
    set: lambda encoder, value: {TAG: ["set", encoder._items(value)]},
    frozenset: lambda encoder, value: {TAG: ["frozenset", encoder._items(value)]},
    bytes: lambda _, value: {TAG: ["bytes", b64encode(value).decode("ascii")]},
    datetime: Encoder._datetime,
    date: lambda _, value: {TAG: ["date", value.isoformat()]},
    time: Encoder._time,
    timedelta: lambda _, value: _delta(value),
    Decimal: lambda _, value: {TAG: ["decimal", str(value)]},
    UUID: lambda _, value: {TAG: ["uuid", str(value)]},
}


# -- words ----------------------------------------------------------------------------------------------


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _render(step: Step) -> str:
    how, which = step
    match how:
        case "attribute":
            return f".{ascii(which)[1:-1]}"
        case "member":
            return "{...}"
        case _ if type(which) in (str, int, float, bool, bytes, type(None)):
            from ratchet.defaults.sanitizer import sanitize_text

            # The type is exact, so this runs no code of the application. Half a secret is not known for one
            # any more, so they go before the text is cut.
            text = ascii(which) if type(which) is not int or -BIG_INT < which < BIG_INT else "a huge int"
            return f"[{sanitize_text(text, limit=60)}]"
        case _:
            return f"[a {_name(type(which))}]"


def _remedy(kind: type) -> str:
    name = _name(kind)
    if issubclass(kind, type):
        return "a class cannot travel; pass its name"
    if issubclass(kind, bytearray | memoryview):
        return f"a {name} cannot travel; convert it with bytes(...)"
    for base in _TRANSLATIONS:
        if issubclass(kind, base):
            return (
                f"a {name} is a subclass of {_name(base)} and would come back as the plain type;"
                f" convert it to {_name(base)} yourself, or use a dataclass"
            )
    if any("__call__" in base.__dict__ for base in kind.__mro__):
        return f"a {name} cannot travel; pass the name of what is to be called, or make it a job of its own"
    return (
        f"a {name} has no exact JSON form; pass an id or a plain value and load or build it in the job,"
        " or use a dataclass or pydantic model of an allowed module"
    )
