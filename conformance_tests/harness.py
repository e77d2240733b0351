"""What a store author writes: how the suite opens and empties their database, and what else they can offer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ratchet.domain.job import Job
    from ratchet.spi.async_store import AsyncJobStore
    from ratchet.spi.store import JobStore

START: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
"""Store time at the beginning of every test, where the harness has a clock."""

HOOKS: Final = frozenset({"clock", "seed", "crash_points", "open_process", "transaction", "soak"})
"""What a harness may offer beyond `open` and `reset`; ``soak`` is the option --ratchet-soak."""

FLAVOURS: Final = ("sync", "async")


class SettableClock:
    """A clock for stores under test: it stands still until it is told to move, forwards or backwards."""

    def __init__(self, now: datetime = START) -> None:
        self._now = now

    def now(self) -> datetime:
        """The instant, aware, UTC."""
        return self._now

    def advance(self, delta: timedelta) -> datetime:
        """Move by `delta`; answers the new instant."""
        self._now += delta
        return self._now


class StoreHarness:
    """The suite's hold on one database. Write `open` and `reset`; the rest is optional.

    An instance is made without arguments once for each process that runs tests; with the URL as its only
    argument where one was given (``--ratchet-url``, ``ratchet conformance URL``). Given a URL, it works
    only in databases, schemas or files that it has made itself beside what the URL names, and raises
    `ConfigurationError` if that is not empty. Before each `reset` the suite closes every handle that it
    had opened.

    Attributes:
        flavours: which of ``sync`` (by `open`) and ``async`` (by `open_async`) the store comes in; the
            suite runs once for each.
        clock: the clock that `open` hands to the store, an object with ``now()`` and ``advance(delta)``
            such as `SettableClock`; None: the store cannot be told what time it is, and contracts about
            time are NOT OFFERED. It must go backwards, too: `advance` is called with negative deltas.
        worker: set by the suite: the name of the pytest-xdist worker, empty without it. Tests of
            several workers run at the same time; a harness on a shared server makes it a part of the
            name of its database.
    """

    flavours: Sequence[str] = ("sync",)
    clock: Any = None
    worker: str = ""

    def open(self) -> JobStore:
        """Another handle on the harness's one database, as a further node would open it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Make the database empty. Called before each test; no handle is open."""
        raise NotImplementedError

    def close(self) -> None:
        """Remove what the harness made; called once, at the end."""

    # -- optional

    def open_async(self) -> AsyncJobStore:
        """`open` for the flavour ``async``; called on the event loop that will use the store."""
        raise NotImplementedError

    def advance(self, delta: timedelta) -> None:
        """Move store time by `delta`, also backwards; needed only where `clock` has no ``advance``."""
        self.clock.advance(delta)

    def seed(self, job: Job) -> None:
        """Write a row as it stands, whatever the way there: state, version, claim, counters and stamps.

        Its keys are held as the state says; it has no history.
        """
        raise NotImplementedError

    def crash_points(self, store: JobStore, reached: Callable[[str], None]) -> None:
        """Have `store` (a handle of `open`) call ``reached(name)`` between the steps of its own operations.

        What it raises (no `Exception` but a `BaseException`) stands for the sudden end of the process: the
        store should do as little as possible on the way out.
        """
        raise NotImplementedError

    def open_process(self) -> Callable[[], JobStore]:
        """Something that can be pickled and, called in another process, opens a handle there.

        There the store's time is that of the machine.
        """
        raise NotImplementedError

    def transaction(self, store: JobStore) -> AbstractContextManager[object]:
        """Open a transaction of the application on the database of `store`, for ``insert(unit=...)``.

        What the block is given is the unit. Leaving the block commits; leaving it by an exception rolls back
        and lets the exception out. For a store of `open_async` it is an asynchronous context manager, used on
        the event loop of that store. Only for stores that declare ``transactional-enqueue``.
        """
        raise NotImplementedError

    def versions(self) -> Mapping[str, str]:
        """What the report says of what was tested, like ``{"store": "mystore 2.1", "database": "MyDB 9"}``."""
        return {}

    # -- what the suite asks

    def offers(self, hook: str) -> bool:
        """True if this harness has the hook."""
        if hook == "clock":
            return self.clock is not None or self.has("advance")
        return hook == "soak" or self.has(hook)

    def has(self, method: str) -> bool:
        """True if the author wrote this method."""
        return getattr(type(self), method, None) is not getattr(StoreHarness, method)
