"""The front door for asyncio code: submit, control, read, start and stop, without blocking the event loop."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload
from uuid import UUID

from ratchet.aio.bridge import Bridge
from ratchet.aio.builder import AsyncJobBuilder
from ratchet.aio.handle import AsyncJobHandle
from ratchet.aio.query import AsyncJobQuery
from ratchet.aio.watcher import Watcher
from ratchet.builder import Arguments, Draft, call_site, several, taken
from ratchet.domain.options import check_id
from ratchet.engine.node import STOP_TIMEOUT, Stopped
from ratchet.errors import UsageError
from ratchet.scheduler import Scheduler
from ratchet.scheduler.parts import check_listener

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from ratchet.domain.job import Job
    from ratchet.domain.options import JobOptions, OptionWords
    from ratchet.engine.bus import Subscription
    from ratchet.handle import JobHandle
    from ratchet.settings import Settings
    from ratchet.spi.clock import Clock
    from ratchet.spi.store import OnConflict, Selected, Selection

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
THREADS = 4


class AsyncScheduler:
    """Everything a `Scheduler` offers, for asyncio code.

    Calls that reach the store are coroutines: they run on a few threads of this object's own. Waiting for a
    result holds no thread. Where bodies run is not changed by it: sync ones on the node's threads, async ones
    on the node's own loop, or on the one handed to `start`. It may be used from several event loops.

    Args:
        scheduler: the one it speaks for; use that one directly in sync code, for the same jobs.
        threads: how many store calls at once (default 4); further ones queue.
    """

    def __init__(self, scheduler: Scheduler, *, threads: int = THREADS) -> None:
        self.scheduler = scheduler
        self._bridge = Bridge(threads)
        self._watchers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Watcher] = (
            weakref.WeakKeyDictionary()
        )
        self.query = AsyncJobQuery(lambda: scheduler.query, self._bridge)

    @classmethod
    def from_url(
        cls,
        url: str | None = None,
        *,
        allow: Iterable[str] = (),
        settings: Settings | None = None,
        clock: Clock | None = None,
        auto_upgrade: bool = False,
        threads: int = THREADS,
        **parts: Any,
    ) -> Self:
        """A scheduler on the store that the URL names; arguments and errors as `Scheduler.from_url`."""
        scheduler = Scheduler.from_url(
            url, allow=allow, settings=settings, clock=clock, auto_upgrade=auto_upgrade, **parts
        )
        return cls(scheduler, threads=threads)

    # -- registration

    @overload
    def job(self, func: F, /) -> F: ...
    @overload
    def job(
        self, /, *, name: str | None = None, aliases: Sequence[str] = (), **options: Unpack[OptionWords]
    ) -> Callable[[F], F]: ...

    def job(
        self,
        func: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        **options: Unpack[OptionWords],
    ) -> Any:
        """Register a function as a job; as `Scheduler.job`."""
        register = self.scheduler.job(name=name, aliases=aliases, **options)
        return register if func is None else register(func)

    def register(self, service: object, cls: type | None = None) -> None:
        """Register an object (or a class or factory for it) whose methods are jobs."""
        self.scheduler.register(service, cls)

    # -- submission

    @overload
    def enqueue(
        self, func: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncJobBuilder[R]: ...
    @overload
    def enqueue(self, func: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> AsyncJobBuilder[R]: ...

    def enqueue(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncJobBuilder[Any]:
        """Begin a submission of `func(*args, **kwargs)`; end it with ``await ....submit()``.

        Raises:
            UnsupportedTarget, TargetRefused, ArgumentError: `func` cannot be a job, may not be, or cannot be
                called so.
        """
        return AsyncJobBuilder(self.scheduler._draft(func, args, kwargs), call_site(), self._submit)

    @overload
    async def enqueue_now(
        self, func: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncJobHandle[R]: ...
    @overload
    async def enqueue_now(
        self, func: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncJobHandle[R]: ...

    async def enqueue_now(
        self, func: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> AsyncJobHandle[Any]:
        """Submit `func(*args, **kwargs)` at once, and tell the other nodes; as `Scheduler.enqueue_now`."""
        draft = self.scheduler._draft(func, args, kwargs)
        draft.immediate = True
        return await self._submit(draft, None)

    @overload
    def schedule(
        self,
        when: timedelta | datetime,
        func: Callable[P, Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> AsyncJobBuilder[R]: ...
    @overload
    def schedule(
        self, when: timedelta | datetime, func: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncJobBuilder[R]: ...

    def schedule(
        self, when: timedelta | datetime, func: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> AsyncJobBuilder[Any]:
        """Begin a submission that is due after a delay, or at an aware instant.

        Raises:
            UsageError: a naive datetime.
        """
        draft = self.scheduler._scheduled(when, func, args, kwargs)
        return AsyncJobBuilder(draft, call_site(), self._submit)

    @overload
    async def enqueue_many(
        self,
        func: Callable[..., Coroutine[Any, Any, R]],
        arguments: Iterable[Arguments],
        *,
        options: JobOptions | None = None,
        idempotency_key: Callable[..., str | None] | None = None,
        business_key: Callable[..., str | None] | None = None,
        unit: object | None = None,
    ) -> list[AsyncJobHandle[R]]: ...
    @overload
    async def enqueue_many(
        self,
        func: Callable[..., R],
        arguments: Iterable[Arguments],
        *,
        options: JobOptions | None = None,
        idempotency_key: Callable[..., str | None] | None = None,
        business_key: Callable[..., str | None] | None = None,
        unit: object | None = None,
    ) -> list[AsyncJobHandle[R]]: ...

    async def enqueue_many(
        self,
        func: Callable[..., Any],
        arguments: Iterable[Arguments],
        *,
        options: JobOptions | None = None,
        idempotency_key: Callable[..., str | None] | None = None,
        business_key: Callable[..., str | None] | None = None,
        unit: object | None = None,
    ) -> list[AsyncJobHandle[Any]]:
        """Submit `func` once per entry, all or none; as `Scheduler.enqueue_many`.

        `arguments` is iterated, and the calls are checked and encoded, off the loop.
        """
        drafts = await self._bridge.run(
            lambda: self.scheduler._drafts(func, arguments, options, idempotency_key, business_key)
        )
        return await self._insert(drafts, unit)

    async def submit_many(
        self, builders: Iterable[AsyncJobBuilder[Any]], *, unit: object | None = None
    ) -> list[AsyncJobHandle[Any]]:
        """Submit several builders, of different functions if need be, all or none.

        Args:
            builders: of `enqueue` and `schedule`.
            unit: the caller's open transaction, where the store can join it; see `AsyncJobBuilder.submit`.

        Raises:
            As `enqueue_many`; every builder can be submitted again then.
        """
        with ExitStack() as stack:
            drafts = [stack.enter_context(taken(each)) for each in several("builders", builders)]
            return await self._insert(drafts, unit)

    async def _submit(self, draft: Draft, unit: object | None) -> AsyncJobHandle[Any]:
        (handle,) = await self._insert([draft], unit)
        return handle

    async def _insert(self, drafts: Sequence[Draft], unit: object | None) -> list[AsyncJobHandle[Any]]:
        scheduler = self.scheduler
        store = None
        if unit is not None:
            store = await self._bridge.run(lambda: scheduler._store_for(unit))
        if store is None:
            handles = await self._bridge.run(lambda: scheduler._insert(drafts, unit))
        else:
            jobs, _ = await self._bridge.run(lambda: scheduler._encoded(drafts))
            answers = await store.insert(jobs, unit=unit)
            handles = await self._bridge.run(lambda: scheduler._answered(drafts, jobs, answers, unit))
        return [self._twin(each) for each in handles]

    def _twin(self, handle: JobHandle[Any]) -> AsyncJobHandle[Any]:
        return AsyncJobHandle(handle.id, handle.created, self)

    def handle(self, job_id: UUID) -> AsyncJobHandle[Any]:
        """A handle for a job that was submitted elsewhere or earlier; nothing is read yet."""
        return AsyncJobHandle(check_id(job_id), False, self)  # noqa: FBT003 - a field by position

    # -- control

    async def cancel(self, job_id: UUID) -> bool:
        """Cancel a job that has not settled; a running body is asked to stop within 2 s.

        Returns:
            True if it is canceled now; False if it had settled, was canceled before, or is unknown.
        """
        return await self._bridge.run(partial(self.scheduler.cancel, job_id))

    async def cancel_tagged(self, *tags: str) -> int:
        """Cancel every PENDING, PAUSED and WAITING job that carries all of the tags; answers how many."""
        return await self._bridge.run(partial(self.scheduler.cancel_tagged, *tags))

    async def pause(self, job_id: UUID) -> bool:
        """Suspend a PENDING job. True if it is paused now (also if it was); False otherwise."""
        return await self._bridge.run(partial(self.scheduler.pause, job_id))

    async def resume(self, job_id: UUID) -> bool:
        """Queue a PAUSED job again with its due time: paused time counts as waiting. False if not paused or unknown."""
        return await self._bridge.run(partial(self.scheduler.resume, job_id))

    async def retry(self, job_id: UUID) -> bool:
        """Give a FAILED job a new life: attempts and crash count 0, due now. False for any other.

        Raises:
            DuplicateBusinessKey: another job holds its key now.
        """
        return await self._bridge.run(partial(self.scheduler.retry, job_id))

    async def retry_all(
        self, selection: Selection | None = None, *, limit: int = 1000, on_conflict: OnConflict = "abort"
    ) -> Selected:
        """`retry` for up to `limit` FAILED jobs of the selection; as `Scheduler.retry_all`."""
        call = partial(self.scheduler.retry_all, selection, limit=limit, on_conflict=on_conflict)
        return await self._bridge.run(call)

    async def replace(self, job_id: UUID, builder: AsyncJobBuilder[R]) -> AsyncJobHandle[R]:
        """Cancel a job that has not begun and put another in its place, as one step.

        Raises:
            NotReplaceable: it is not PENDING, PAUSED or WAITING, or unknown.
            DuplicateBusinessKey: the builder's own key is held; the old job is unchanged.
        """
        check_id(job_id)
        with taken(builder) as draft:
            return self._twin(await self._bridge.run(partial(self.scheduler._replace, job_id, draft)))

    # -- reading

    async def get(self, job_id: UUID) -> Job | None:
        """The stored job as it is now; None if unknown."""
        return await self._bridge.run(partial(self.scheduler.get, job_id))

    async def settled(self, job_id: UUID) -> Job:
        """The job, once it has settled; what handles wait on.

        Raises:
            JobPurged: it has been deleted, or never was.
        """
        loop = asyncio.get_running_loop()
        watcher = self._watchers.get(loop)
        if watcher is None:
            scheduler = self.scheduler
            watcher = Watcher(lambda: scheduler.store, lambda: scheduler._waiters, self._bridge)
            self._watchers[loop] = watcher
        return await watcher.settled(job_id)

    @property
    def decode(self) -> Callable[[str], object]:
        """Decodes a stored result."""
        return self.scheduler.codec.decode_value

    def add_listener(self, listener: Callable[[Any], object], *types: type) -> Subscription:
        """Call `listener(event)` for events of these types (none: all).

        An ordinary function is called on a thread of its own; an ``async def`` runs on the loop that is
        running now, one event after the other.

        Returns:
            The subscription; `close` it to stop.

        Raises:
            UsageError: an ``async def`` outside a running loop.
        """
        if not inspect.iscoroutinefunction(listener):
            return self.scheduler.add_listener(listener, *types)
        check_listener(listener, types)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise UsageError("an async listener needs a running event loop; add it inside one") from None

        def on_loop(event: Any) -> None:
            if not loop.is_closed():
                asyncio.run_coroutine_threadsafe(listener(event), loop).result()

        return self.scheduler.add_listener(on_loop, *types)

    # -- running a node

    async def start(self, *, loop: asyncio.AbstractEventLoop | None = None) -> Self:
        """Begin to execute jobs in this process.

        Args:
            loop: where async bodies run, like ``asyncio.get_running_loop()``; None: an own one on its own
                thread, so that a body that blocks does not block the application.

        Raises:
            ConfigurationError: the target policy is empty; the node name is taken.
            NotRunning: already started.
            StoreError: the store cannot be reached.
        """
        await self._bridge.run_aside(lambda: self.scheduler.start(loop=loop))
        return self

    async def stop(self, timeout: float | timedelta = STOP_TIMEOUT) -> Stopped:  # noqa: ASYNC109 - a shutdown has steps of its own
        """Stop claiming, finish or give back what runs, deregister; as `Scheduler.stop`."""
        return await self._bridge.run_aside(lambda: self.scheduler.stop(timeout))

    async def close(self) -> None:
        """Stop, if running, and let go of the store and of this object's threads."""
        await self._bridge.run_aside(self.scheduler.close)
        self._bridge.close()

    async def __aenter__(self) -> Self:
        """Start."""
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        await self.stop()

    def __repr__(self) -> str:
        return f"<AsyncScheduler for {self.scheduler!r}>"
