"""The store under test, as the tests see it: handles on its one database, its time, and its pace."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final, NoReturn, Protocol

import pytest

from conformance_tests.bridge import EventLoop, sync_face
from conformance_tests.harness import START, StoreHarness
from ratchet.spi.store import JobStore

NOT_OFFERED: Final = "NOT OFFERED: "
NOT_DECLARED: Final = "NOT DECLARED: "

_PATIENCE: Final = 10.0


class Time(Protocol):
    """Store time under the test's control."""

    def now(self) -> datetime:
        """Store time."""
        ...

    def advance(self, delta: timedelta) -> object:
        """Move it."""
        ...


class HarnessTime:
    """Store time as the harness lets the suite set it."""

    def __init__(self, harness: StoreHarness, store_time: Callable[[], datetime]) -> None:
        self._harness = harness
        self._now = store_time if harness.clock is None else harness.clock.now

    def now(self) -> datetime:
        """Store time."""
        return self._now()

    def advance(self, delta: timedelta) -> datetime:
        """Move it by `delta`; answers the new instant."""
        self._harness.advance(delta)
        return self._now()


class PassingTime:
    """Store time that nobody can set: it passes."""

    def __init__(self, store_time: Callable[[], datetime]) -> None:
        self.now = store_time

    def advance(self, delta: timedelta) -> datetime:
        """Wait until the next millisecond; `delta` is only a wish."""
        begun, until = self.now(), time.monotonic() + _PATIENCE
        while self.now() <= begun:
            if time.monotonic() > until:
                raise AssertionError("store time stands still, although the harness has no clock")
            time.sleep(0.0005)
        return self.now()


def not_offered(why: str) -> NoReturn:
    """End the test: the harness has not got what its contract needs."""
    pytest.skip(NOT_OFFERED + why)


class UnderTest:
    """One database for one test at a time.

    Args:
        harness: the author's.
        flavour: ``sync`` or ``async``; an async store is driven through a thread with an event loop.
    """

    def __init__(self, harness: StoreHarness, flavour: str = "sync") -> None:
        self.harness = harness
        self.flavour = flavour
        self._handles: list[JobStore] = []
        self._loop: EventLoop | None = None

    @property
    def name(self) -> str:
        """How the harness is called."""
        return type(self.harness).__name__

    def open(self) -> JobStore:
        """A further handle on the same jobs, as another node would open it."""
        if self.flavour == "sync":
            handle = self.harness.open()
        else:
            if self._loop is None:
                self._loop = EventLoop()
            handle = sync_face(self.harness.open_async, self._loop)
        self._handles.append(handle)
        return handle

    def reset(self) -> None:
        """Close every handle and empty the database; its clock, if it has one, goes back to the start."""
        self.close_handles()
        self.harness.reset()
        if self.has_clock:
            time_ = self.time(None)
            if (off := START - time_.now()) != timedelta():
                time_.advance(off)

    def close_handles(self) -> None:
        """Close what `open` has opened."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.close()

    @contextmanager
    def transaction(self, handle: JobStore) -> Iterator[object]:
        """A transaction of the application, committed at the end; rolled back by an exception."""
        opened: Any = self.harness.transaction(self.behind(handle))
        if not hasattr(opened, "__aenter__"):
            with opened as unit:
                yield unit
            return
        assert self._loop is not None
        loop = self._loop
        unit = loop.run(opened.__aenter__())
        try:
            yield unit
        except BaseException as error:
            if not loop.run(opened.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            loop.run(opened.__aexit__(None, None, None))

    def behind(self, handle: JobStore) -> JobStore:
        """The handle as the harness made it."""
        made: JobStore = getattr(handle, "_store", handle) if self.flavour == "async" else handle
        return made

    def forget(self, handle: JobStore) -> None:
        """Do not close this one: it belongs to somebody who is gone."""
        self._handles.remove(handle)

    def close(self) -> None:
        """Let go of everything; the harness is closed by who made it."""
        self.close_handles()
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    # -- time and pace

    @property
    def has_clock(self) -> bool:
        """True if the suite can set store time."""
        return self.harness.offers("clock")

    def time(self, store: JobStore | None) -> Time:
        """Store time: set by the suite if the harness allows it, else passing."""

        def store_time() -> datetime:
            asked = store or self.open()
            return asked.now()

        return HarnessTime(self.harness, store_time) if self.has_clock else PassingTime(store_time)

    def paced(self, *, least: int, most: int, unit: float) -> int:
        """How often to repeat something that takes about `unit` store calls, so that a slow store ends in time."""
        return max(least, min(most, int(1.0 / (unit * self.pace()))))

    def pace(self) -> float:
        """Seconds that a short write of this store takes, measured once."""
        if not hasattr(self.harness, "_ratchet_pace"):
            from ratchet.spi.store import NodeInfo

            store = self.open()
            spent = []
            for number in range(12):
                begun = time.perf_counter()
                store.heartbeat(NodeInfo(incarnation="pace", name="pace", pid=number))
                spent.append(time.perf_counter() - begun)
            store.forget_node("pace")
            self.harness._ratchet_pace = sorted(spent)[len(spent) // 2]  # type: ignore[attr-defined]
        return float(self.harness._ratchet_pace)  # type: ignore[attr-defined]
