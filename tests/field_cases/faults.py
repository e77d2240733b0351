"""A store that fails on request: before or after a call was applied, for a while, or at a barrier."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from ratchet.errors import StoreTransientError
from ratchet.spi.store import JobStore

When = Literal["before", "after"]
METHODS = tuple(
    name for name in dir(JobStore) if not name.startswith("_") and name not in ("capabilities", "close")
)


class Dropped(StoreTransientError):
    """The connection to the store was lost (a test said so)."""


@dataclass
class Stop:
    """A barrier at a store call: the caller waits there until `release`."""

    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        """Let the caller go on."""
        self.released.set()


@dataclass
class _Rule:
    method: str
    when: When
    act: Callable[[tuple[Any, ...]], None]
    left: int
    matches: Callable[[tuple[Any, ...]], bool]


class FaultyStore:
    """A `JobStore` in front of a real one. `store` is it, typed as one.

    Attributes:
        calls: method -> how many calls came.
        failed: method -> how many of them were made to fail.
        capabilities: those of the real store but wake-ups: a hint must not hide a missing poll.
    """

    def __init__(self, real: JobStore, *, wake_ups: bool = False) -> None:
        self.real = real
        self.calls: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.capabilities = real.capabilities if wake_ups else real.capabilities - {"wake-ups"}
        self._rules: list[_Rule] = []
        self._stops: list[Stop] = []
        self._lock = threading.Lock()
        self._down = threading.Event()

    @property
    def store(self) -> JobStore:
        """This object as the protocol it fulfils."""
        return cast("JobStore", self)

    def close(self) -> None:
        """Close the real one."""
        self.real.close()

    # -- what a test asks for

    def fail(
        self,
        method: str,
        *,
        times: int = 1,
        when: When = "before",
        error: Callable[[], BaseException] = lambda: Dropped("the connection was dropped"),
        matches: Callable[[tuple[Any, ...]], bool] = lambda arguments: True,
    ) -> None:
        """The next `times` calls of `method` (whose arguments match) fail, before or after they were applied."""

        def act(arguments: tuple[Any, ...]) -> None:
            self.failed[method] += 1
            raise error()

        with self._lock:
            self._rules.append(_Rule(method, when, act, times, matches))

    def hold(
        self,
        method: str,
        *,
        when: When = "before",
        matches: Callable[[tuple[Any, ...]], bool] = lambda arguments: True,
    ) -> Stop:
        """The next call of `method` (whose arguments match) waits at a barrier, before or after it is applied."""
        stop = Stop()

        def act(arguments: tuple[Any, ...]) -> None:
            stop.reached.set()
            assert stop.released.wait(60), f"nobody released the barrier at {method}"

        with self._lock:
            self._rules.append(_Rule(method, when, act, 1, matches))
            self._stops.append(stop)
        return stop

    @property
    def is_down(self) -> bool:
        """True during an outage."""
        return self._down.is_set()

    def go_down(self) -> None:
        """Every call fails from now on, also those under way: their answers are lost."""
        self._down.set()

    def come_back(self) -> None:
        """Calls reach the store again."""
        self._down.clear()

    def forgive(self) -> None:
        """No more faults: outages end, barriers open, rules are forgotten."""
        self.come_back()
        with self._lock:
            self._rules.clear()
            stops, self._stops = self._stops, []
        for stop in stops:
            stop.release()

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Down for the block."""
        self.go_down()
        try:
            yield
        finally:
            self.come_back()

    # -- the calls

    def _call(self, method: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        with self._lock:
            self.calls[method] += 1
        self._check_up(method)
        self._meet(method, "before", arguments)
        self._check_up(method)
        answer = getattr(self.real, method)(*arguments, **named)
        self._check_up(method)
        self._meet(method, "after", arguments)
        return answer

    def _check_up(self, method: str) -> None:
        if self._down.is_set():
            self.failed[method] += 1
            raise Dropped("the store is down")

    def _meet(self, method: str, when: When, arguments: tuple[Any, ...]) -> None:
        with self._lock:
            rule = next(
                (
                    each
                    for each in self._rules
                    if each.left > 0
                    and (each.method, each.when) == (method, when)
                    and each.matches(arguments)
                ),
                None,
            )
            if rule is not None:
                rule.left -= 1
        if rule is not None:
            rule.act(arguments)

    def coordinator(self) -> Any:
        """That of the real store, where wake-ups were asked for."""
        return self.real.coordinator()  # type: ignore[attr-defined]


def _delegate(method: str) -> Callable[..., Any]:
    def call(self: FaultyStore, *arguments: Any, **named: Any) -> Any:
        return self._call(method, arguments, named)

    call.__name__ = method
    return call


for _name in METHODS:
    setattr(FaultyStore, _name, _delegate(_name))
