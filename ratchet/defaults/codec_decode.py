"""From stored text back to values: strict JSON, then every ``{"$": [kind, ...]}`` becomes what it was."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, Final, NoReturn
from uuid import UUID
from zoneinfo import ZoneInfo

from ratchet.defaults.codec_classes import (
    PayloadClasses,
    UnresolvableClass,
    build_dataclass,
    build_model,
    find_member,
)
from ratchet.defaults.codec_encode import TAG
from ratchet.errors import PayloadError, UnreadablePayload


def _refuse_constant(name: str) -> NoReturn:
    raise UnreadablePayload(f"the payload contains {name}, which is not JSON")


_PLAIN: Final = json.JSONDecoder(parse_constant=_refuse_constant)
_TAG_IN_TEXT: Final = f'"{TAG}"'  # a text without it cannot contain a translated value


class Decoder:
    """Reads payloads; looks for classes only where the policy allows."""

    __slots__ = ("_classes", "_reviving")

    def __init__(self, classes: PayloadClasses) -> None:
        self._classes = classes
        self._reviving = json.JSONDecoder(object_hook=self._revive, parse_constant=_refuse_constant)

    def decode(self, text: str) -> Any:
        """The value, or `UnreadablePayload` (of which `UnresolvableClass` is one) whatever is wrong."""
        if not isinstance(text, str):
            raise UnreadablePayload(f"a payload is text, this is a {type(text).__name__}")
        decoder = self._reviving if _TAG_IN_TEXT in text else _PLAIN
        try:
            value, end = decoder.raw_decode(text)
        except PayloadError:
            raise
        except Exception as error:  # bad JSON, a bad tag, or a class that refuses its own state
            # The error's own text may quote the payload, which is not for logs; its class is enough.
            raise UnreadablePayload(f"the payload is corrupt ({type(error).__name__})") from error
        if end != len(text):
            raise UnreadablePayload("the payload is corrupt (text follows its end)")
        return value

    def _revive(self, found: dict[str, Any]) -> Any:
        if TAG not in found:
            return found
        content = found[TAG]
        if len(found) != 1 or type(content) is not list or not content or type(content[0]) is not str:
            raise UnreadablePayload("the payload is corrupt (a translated value is malformed)")
        build = _BUILDERS.get(content[0])
        if build is not None:
            return build(*content[1:])
        build_object = _OBJECT_BUILDERS.get(content[0])
        if build_object is None:
            raise UnreadablePayload(f"the payload holds a value of the unknown kind {ascii(content[0])[:60]}")
        name = content[1]
        return build_object(name, self._classes.find(name), *content[2:])


def _datetime(text: str, fold: int = 0, zone: tzinfo | None = None) -> datetime:
    return datetime.fromisoformat(text).replace(fold=fold, tzinfo=zone)


def _time(text: str, fold: int = 0, zone: tzinfo | None = None) -> time:
    return time.fromisoformat(text).replace(fold=fold, tzinfo=zone)


def _zone(key: str) -> ZoneInfo:
    try:
        return ZoneInfo(key)
    except (LookupError, ValueError, OSError) as error:
        raise UnreadablePayload(
            f"the time zone {ascii(key)[:80]} is not known here; install the package tzdata, then retry the job"
        ) from error


def _pydantic_zone(seconds: int) -> tzinfo:
    from pydantic_core import TzInfo

    return TzInfo(seconds)


_BUILDERS: Final[dict[str, Callable[..., Any]]] = {
    "str": lambda *parts: "".join(parts),
    "int": lambda text: int(text, 16),
    "float": float,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "bytes": lambda text: b64decode(text, validate=True),
    "datetime": _datetime,
    "date": date.fromisoformat,
    "time": _time,
    "timedelta": timedelta,
    "timezone": timezone,
    "zone": _zone,
    "pydantic-zone": _pydantic_zone,
    "decimal": Decimal,
    "uuid": UUID,
}


def _flag(name: str, cls: type[Any], value: int) -> object:
    try:
        return cls(value)
    except ValueError as error:
        raise UnresolvableClass(name, f"the flag has no value {value}") from error


def _dataclass(
    name: str, cls: type[Any], state: dict[str, object], extra: dict[str, object] | None = None
) -> object:
    return build_dataclass(name, cls, state, extra or {})


_OBJECT_BUILDERS: Final[dict[str, Callable[..., object]]] = {
    "enum": find_member,
    "flag": _flag,
    "dataclass": _dataclass,
    "model": build_model,
}
