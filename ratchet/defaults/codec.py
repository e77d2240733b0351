"""The shipped payload codec: exact JSON, never pickle (specification, section 8)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ratchet.defaults.codec_classes import PayloadClasses, UnresolvableClass
from ratchet.defaults.codec_decode import Decoder
from ratchet.defaults.codec_encode import Encoder, is_plain
from ratchet.errors import NewerPayloadFormat, UnreadablePayload

__all__ = ["JsonCodec", "UnresolvableClass"]

_NO_ARGUMENTS: Final = "[[],{}]"
_dump: Final[Callable[[object], str]] = json.JSONEncoder(
    ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":")
).encode


def _deny(_module: str) -> bool:
    return False


class JsonCodec:
    """Arguments, params, results and signal payloads as opaque ASCII JSON text, equal and of the same type.

    Travels without annotations: str (lone surrogates and NUL included), int of any size, float (NaN,
    infinities and -0.0 included), bool, None, list, dict with str keys (any), tuple, set, frozenset,
    bytes, datetime and time (naive or aware, fold, `timezone` or `ZoneInfo`), date, timedelta,
    timezone, ZoneInfo, Decimal, UUID, and Enum members, dataclasses and pydantic models of allowed
    modules. Subclasses of these builtins are refused, never flattened. Objects that are referred to
    twice arrive as two. Nesting is limited to 100 levels.

    Dataclasses and models travel as their state and are rebuilt without running ``__init__`` or
    validators. A field that the class has gained since then gets its default.

    Args:
        allows: asked with a dotted module name before a class of it is named or imported; by default
            none is. Normally `ratchet.spi.policy.TargetPolicy.allows_module`.

    Example:
        >>> codec = JsonCodec()
        >>> text = codec.encode_arguments((1, (2, 3)), {"when": None})
        >>> text
        '[[1,{"$":["tuple",[2,3]]}],{"when":null}]'
        >>> codec.decode_arguments(text, codec.format)
        ((1, (2, 3)), {'when': None})
    """

    __slots__ = ("_classes", "_decoder")

    def __init__(self, allows: Callable[[str], bool] = _deny) -> None:
        self._classes = PayloadClasses(allows)
        self._decoder = Decoder(self._classes)

    @property
    def format(self) -> int:
        """The format version that is written, and the newest that can be read."""
        return 1

    def encode_arguments(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], *, names: Sequence[str] = ()
    ) -> str:
        """Encode a call.

        Args:
            args: the positional arguments.
            kwargs: the keyword arguments.
            names: the parameter names of `args` in order, for messages.

        Raises:
            UnencodableValue: an argument cannot travel; `path` names it and the place inside it.
            PayloadTooLarge: it holds more than a million values.
        """
        if not args and not kwargs:
            return _NO_ARGUMENTS
        keywords = dict(kwargs)
        if is_plain(args, keywords):
            return _dump([args, keywords])
        return _dump(Encoder(self._classes).encode_arguments(args, keywords, names))

    def decode_arguments(self, text: str, format: int) -> tuple[tuple[object, ...], dict[str, object]]:
        """Decode a call.

        Raises:
            NewerPayloadFormat: `format` is newer than this code; a newer node can read it.
            UnreadablePayload: the text is corrupt, or names a class outside the policy.
            UnresolvableClass: it names an allowed class that this code does not have.
        """
        if format != 1:
            if format > 1:
                raise NewerPayloadFormat(
                    f"payload format {format} is newer than 1, the newest known to this node"
                )
            raise UnreadablePayload(f"payload format {format} does not exist")
        if text == _NO_ARGUMENTS:
            return (), {}
        call = self._decoder.decode(text)
        if type(call) is list and len(call) == 2 and type(call[0]) is list and type(call[1]) is dict:
            return tuple(call[0]), call[1]
        raise UnreadablePayload("the payload is corrupt (it is not a call's arguments)")

    def encode_value(self, value: object, *, what: str) -> str:
        """Encode one value; `what` (``"result"``, ``"param 'x'"``) names it in errors.

        Raises:
            UnencodableValue: it cannot travel; `path` starts with `what`.
            PayloadTooLarge: it holds more than a million values.
        """
        if is_plain((value,)):
            return _dump(value)
        return _dump(Encoder(self._classes).encode_root(value, what))

    def decode_value(self, text: str) -> object:
        """Decode what `encode_value` wrote; raises as `decode_arguments` does."""
        return self._decoder.decode(text)
