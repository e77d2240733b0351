"""What the field cases about values and errors share: exact equality, body kinds, and a record of events."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

KINDS: Final = ("threads", "async", "processes")
"""Where a body can run."""


def slots(kind: str, count: int = 4) -> dict[str, Any]:
    """`quick_settings` words: so many slots of this kind, and a few threads and async slots beside them."""
    return {"threads": 2, "async_": 2, "processes": 0} | {kind.replace("async", "async_"): count}


def same(one: Any, other: Any) -> bool:
    """Equal and of the same type, at every level; NaN is NaN, zeros have their sign, times their fold and zone."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (set, frozenset)):
        return len(one) == len(other) and all(any(same(each, peer) for peer in other) for each in one)
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    if hasattr(one, "fold"):
        return bool(
            one == other
            and one.fold == other.fold
            and one.utcoffset() == other.utcoffset()
            and str(one.tzinfo) == str(other.tzinfo)
        )
    return bool(one == other)


T = TypeVar("T")


class Once(Generic[T]):
    """Plays a scenario once per store and variant, so that each of its clauses can have a test of its own.

    The evidence must be plain data: the scenario's node has been stopped when the next test looks at it.
    """

    def __init__(self) -> None:
        self._played: dict[object, T] = {}

    def __call__(self, key: object, play: Callable[[], T]) -> T:
        """The evidence; plays the scenario if there is none."""
        if key not in self._played:
            self._played[key] = play()
        return self._played[key]


class Recorder:
    """Remembers every event of a scheduler, in order."""

    def __init__(self, scheduler: Any, *types: type) -> None:
        self.events: list[Any] = []
        self._subscription = scheduler.add_listener(self.events.append, *types)

    def of(self, kind: type[Any], job: Any = None) -> list[Any]:
        """Those of a type, of one job if given."""
        return [e for e in self.events if isinstance(e, kind) and (job is None or e.job_id == job)]

    def count(self, kind: type[Any], job: Any = None) -> int:
        return len(self.of(kind, job))


def submitter(node: Any, kind: str) -> Callable[..., Any]:
    """``submit(sync, async, *arguments)`` -> builder of the body that belongs to the kind."""

    def build(sync: Callable[..., Any], coroutine: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if kind == "async":
            return node.enqueue(coroutine, *args, **kwargs)
        return node.enqueue(sync, *args, **kwargs).with_executor(kind)

    return build
