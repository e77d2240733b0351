"""How arguments, params, results and signals travel: opaque ASCII text (specification, section 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class PayloadCodec(Protocol):
    """Exact round trip: what comes out is equal to what went in, and of the same type.

    Contracts: PC-01 ... PC-11.
    """

    @property
    def format(self) -> int:
        """The version that `encode_arguments` writes."""
        ...

    def encode_arguments(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], *, names: Sequence[str] = ()
    ) -> str:
        """Encode a call; `UnencodableValue` names the argument (by `names`) that cannot travel."""
        ...

    def decode_arguments(self, text: str, format: int) -> tuple[tuple[object, ...], dict[str, object]]:
        """Decode a call; `NewerPayloadFormat` for a version not known yet, `UnreadablePayload` if corrupt."""
        ...

    def encode_value(self, value: object, *, what: str) -> str:
        """Encode one value; `what` names it in errors."""
        ...

    def decode_value(self, text: str) -> object:
        """Decode one value; `UnreadablePayload` if corrupt."""
        ...
