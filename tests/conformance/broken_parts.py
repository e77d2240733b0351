"""Policies, sanitizers, strategies, codecs and executors with one fault each, and what must notice it."""

from __future__ import annotations

import json
import pickle
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

from ratchet.defaults.codec import JsonCodec
from ratchet.defaults.resilience import PassThrough
from ratchet.defaults.retry import DefaultRetryPolicy
from ratchet.defaults.sanitizer import DefaultErrorSanitizer
from ratchet.engine.slots import ThreadSlots
from ratchet.errors import RatchetError
from tests.conformance.parts import Threads

T = TypeVar("T")


class ForgetsToAnswer(DefaultRetryPolicy):
    def should_retry(self, attempt: int, error: BaseException) -> bool:
        return cast("bool", None if isinstance(error, KeyError) else True)


class ReadsTheMessage(DefaultRetryPolicy):
    def should_retry(self, attempt: int, error: BaseException) -> bool:
        return "permanent" not in str(error)


class DoublesForEver(DefaultRetryPolicy):
    def delay(self, attempt: int) -> timedelta:
        return timedelta(seconds=2**attempt)


class ClearsTheTraceback(DefaultRetryPolicy):
    def should_retry(self, attempt: int, error: BaseException) -> bool:
        error.__cause__ = None
        return True


class TooLong(DefaultErrorSanitizer):
    def sanitize(self, error: BaseException) -> str:
        return f"{type(error).__qualname__}: {error}"


class WithoutTheClass(DefaultErrorSanitizer):
    def sanitize(self, error: BaseException) -> str:
        return super().sanitize(error).partition(": ")[2] or "error"


class KeepsSecrets(DefaultErrorSanitizer):
    def sanitize(self, error: BaseException) -> str:
        return f"{type(error).__module__}.{type(error).__qualname__}: {error}"[:2000]


class CutsBeforeItLooks(DefaultErrorSanitizer):
    def sanitize(self, error: BaseException) -> str:
        text = super().sanitize(error)
        return text if "x" * 100 not in text else f"{type(error).__qualname__}: {error}"[:2000]


class KeepsTheTraceback(DefaultErrorSanitizer):
    def sanitize(self, error: BaseException) -> str:
        return "".join(traceback.format_exception(error))[-1500:]


class SwallowsErrors(PassThrough):
    def execute(self, service: str | None, call: Callable[[], T]) -> T:
        try:
            return call()
        except ValueError:
            return cast("T", None)


class Wraps(PassThrough):
    def execute(self, service: str | None, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            raise RatchetError("service failed") from error


class CallsTwice(PassThrough):
    def execute(self, service: str | None, call: Callable[[], T]) -> T:
        call()
        return call()


class SwallowsCancellation(PassThrough):
    async def execute_async(self, service: str | None, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await call()
        except BaseException as error:
            if type(error).__name__ == "CancelledError":
                return cast("T", None)
            raise


class OneBreakerForAll(PassThrough):
    def __init__(self) -> None:
        self._failures = 0

    def retry_delay(self, service: str | None) -> timedelta | None:
        return timedelta(seconds=30) if self._failures > 5 else None

    def execute(self, service: str | None, call: Callable[[], T]) -> T:
        try:
            return call()
        except ValueError:
            self._failures += 1
            raise


class NegativeDelay(OneBreakerForAll):
    def retry_delay(self, service: str | None) -> timedelta | None:
        return timedelta(seconds=-1) if self._failures > 5 else None


class AskingCounts(PassThrough):
    def __init__(self) -> None:
        self._asked = 0

    def retry_delay(self, service: str | None) -> timedelta | None:
        self._asked += 1
        return timedelta(seconds=1) if self._asked > 100 else None


class PlainJson(JsonCodec):
    def encode_value(self, value: object, *, what: str) -> str:
        return json.dumps(value, default=str)

    def decode_value(self, text: str) -> object:
        return json.loads(text)


class Pickles(JsonCodec):
    def encode_value(self, value: object, *, what: str) -> str:
        return pickle.dumps(value).hex()

    def decode_value(self, text: str) -> object:
        return pickle.loads(bytes.fromhex(text))


class NamesNothing(JsonCodec):
    def encode_arguments(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], *, names: Sequence[str] = ()
    ) -> str:
        return super().encode_arguments(args, kwargs)


class ReadsTheFuture(JsonCodec):
    def decode_arguments(self, text: str, format: int) -> tuple[tuple[object, ...], dict[str, object]]:
        return super().decode_arguments(text, 1)


class OwnErrors(JsonCodec):
    def decode_arguments(self, text: str, format: int) -> tuple[tuple[object, ...], dict[str, object]]:
        json.loads(text)
        return super().decode_arguments(text, format)


class OneMore(Threads):
    """Has a slot too many."""

    def open(self, slots: int, freed: Callable[[Any], None]) -> Any:
        made = cast("ThreadSlots", super().open(slots + (slots > 1), freed))
        made.__class__ = type(
            "Lies", (ThreadSlots,), {"slots": property(lambda _: slots + 1, lambda *_: None)}
        )
        return made


class _Keeps(ThreadSlots):
    def withdraw(self) -> list[Any]:
        found = super().withdraw()
        for each in found:
            self.submit(each)
        return found


class GivesBackAndRuns(Threads):
    slots = _Keeps


class _Backwards(ThreadSlots):
    def withdraw(self) -> list[Any]:
        return super().withdraw()[::-1]


class NewestFirst(Threads):
    slots = _Backwards


class _Welcoming(ThreadSlots):
    def submit(self, attempt: Any) -> None:
        if not self._closed and self.slots:
            super().submit(attempt)


class TakesAndForgets(Threads):
    slots = _Welcoming


class NeverFreed(Threads):
    """Does not say that a slot is free again."""

    def open(self, slots: int, freed: Callable[[Any], None]) -> Any:
        return super().open(slots, lambda attempt: None)


BROKEN: dict[str, dict[Any, str]] = {
    "retry-policy": {
        ForgetsToAnswer: "RP-01",
        ReadsTheMessage: "RP-02",
        DoublesForEver: "RP-03",
        ClearsTheTraceback: "RP-04",
    },
    "error-sanitizer": {
        TooLong: "ES-05",
        WithoutTheClass: "ES-01",
        KeepsSecrets: "ES-03",
        CutsBeforeItLooks: "ES-04",
        KeepsTheTraceback: "ES-06",
    },
    "resilience": {
        SwallowsErrors: "RS-03",
        Wraps: "RS-03",
        CallsTwice: "RS-02",
        SwallowsCancellation: "RS-05",
        OneBreakerForAll: "RS-07",
        NegativeDelay: "RS-06",
        AskingCounts: "RS-08",
    },
    "codec": {
        PlainJson: "PC-01",
        Pickles: "PC-04",
        NamesNothing: "PC-04",
        ReadsTheFuture: "PC-06",
        OwnErrors: "PC-07",
    },
    "executor": {
        OneMore: "EX-02",
        GivesBackAndRuns: "EX-04",
        NewestFirst: "EX-04",
        TakesAndForgets: "EX-07",
        NeverFreed: "EX-01",
    },
}
