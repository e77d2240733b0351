"""Between the flavours: an async store driven by threads, and a sync store awaited from an event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, cast

from ratchet.spi.async_store import AsyncJobStore
from ratchet.spi.store import JobStore

T = TypeVar("T")

METHODS: Final = tuple(name for name, _ in inspect.getmembers(JobStore, inspect.isfunction) if name[0] != "_")
"""Every method of the SPI, in order of its name."""

_PATIENCE: Final = 120.0


class EventLoop:
    """An event loop on a thread of its own, for everything that one flavour's handles do."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="conformance-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end on the loop; what it answers or raises."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(_PATIENCE)

    def close(self) -> None:
        """Stop the loop and let its thread end."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_PATIENCE)
        self.loop.close()


class _Face:
    """What both faces have: the store behind them."""

    def __init__(self, store: Any, loop: EventLoop | None = None) -> None:
        self._store = store
        self._loop = loop

    @property
    def capabilities(self) -> frozenset[str]:
        """As the store declares them."""
        return frozenset(self._store.capabilities)

    def __getattr__(self, name: str) -> Any:
        """What a capability adds is the store's own."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._store, name)


def meets(store: object, protocol: type) -> bool:
    """True if the store, behind whatever face, has the methods of an optional group."""
    return all(hasattr(store, name) for name in vars(protocol) if not name.startswith("_"))


def _blocking(name: str) -> Callable[..., Any]:
    def call(self: _Face, *args: Any, **kwargs: Any) -> Any:
        assert self._loop is not None
        return self._loop.run(getattr(self._store, name)(*args, **kwargs))

    return call


def _awaited(name: str) -> Callable[..., Any]:
    async def call(self: _Face, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(getattr(self._store, name), *args, **kwargs)

    return call


_SyncFace: Final = type("SyncFace", (_Face,), {name: _blocking(name) for name in METHODS})
_AsyncFace: Final = type("AsyncFace", (_Face,), {name: _awaited(name) for name in METHODS})


def sync_face(open_async: Callable[[], Any], loop: EventLoop) -> JobStore:
    """A handle of an async store, made and used on `loop`, for callers on any thread."""

    async def opened() -> object:
        made = open_async()
        return await made if inspect.isawaitable(made) else made

    return cast("JobStore", _SyncFace(loop.run(opened()), loop))


def async_face(store: JobStore) -> AsyncJobStore:
    """A sync store whose methods are awaited; each call runs on a thread of the loop's default executor."""
    return cast("AsyncJobStore", _AsyncFace(store))
