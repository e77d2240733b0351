"""The front door: submit, control, read, and run a node."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast, overload
from uuid import UUID

from ratchet.builder import (
    Arguments,
    Draft,
    JobBuilder,
    Submission,
    as_arguments,
    call_site,
    check_when,
    key_of,
)
from ratchet.defaults.coordinator import LocalCoordinator
from ratchet.defaults.policy import PrefixPolicy
from ratchet.defaults.resilience import PassThrough
from ratchet.defaults.resolver import RegisteredServices
from ratchet.defaults.retry import DefaultRetryPolicy
from ratchet.domain.events import (
    JobCanceled,
    JobCanceling,
    JobEvent,
    JobPaused,
    JobRequeued,
    JobResumed,
    JobsBulkRetried,
)
from ratchet.domain.job import Job, NewJob
from ratchet.domain.lifecycle import CANCELABLE, REPLACEABLE, Status, Trigger
from ratchet.domain.options import JobOptions, OptionWords
from ratchet.domain.priority import Priority
from ratchet.domain.settlement import Change, Settlement, Submit
from ratchet.engine.attempt import Pipeline
from ratchet.engine.bus import Bus, Subscription
from ratchet.engine.ending import Waiters
from ratchet.engine.node import STOP_TIMEOUT, Node, Stopped
from ratchet.engine.targets import Targets
from ratchet.errors import (
    CapabilityMissing,
    ConfigurationError,
    DuplicateIdempotencyKey,
    NotReplaceable,
    NotRunning,
    UsageError,
)
from ratchet.handle import JobHandle
from ratchet.plugins import open_store
from ratchet.query import JobQuery
from ratchet.settings import Settings
from ratchet.spi.capabilities import PROTOCOLS, Capability, WakeUps
from ratchet.spi.coordinator import ClusterCoordinator, Hint
from ratchet.spi.store import (
    Applied,
    OnConflict,
    Refused,
    Selected,
    Selection,
    Settled,
)

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType
    from typing import Self

    from ratchet.engine.child_process import ChildProcess
    from ratchet.spi.clock import Clock
    from ratchet.spi.codec import PayloadCodec
    from ratchet.spi.policy import TargetPolicy
    from ratchet.spi.resilience import ResilienceStrategy
    from ratchet.spi.resolver import ServiceResolver
    from ratchet.spi.retry import RetryPolicy
    from ratchet.spi.sanitizer import ErrorSanitizer
    from ratchet.spi.store import JobStore

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("ratchet")
_ZERO = timedelta()


class Scheduler:
    """Submits, controls and (once started) executes jobs.

    Make it with `from_url`, or hand it a store of your own. It can submit without being started; only a
    started one executes. Thread-safe; after a fork the child has its own, not started.

    Args:
        store: where the jobs are.
        allow: module prefixes whose functions may be jobs; decorated functions are allowed as they are.
        settings: everything that can be set; default: the specification's values.
        policy: instead of `allow`: your own rules.
        codec, sanitizer, retry_policy, resilience, services, coordinator: your own, instead of the shipped ones.

    Raises:
        ConfigurationError: parts that do not fit together.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        allow: Iterable[str] = (),
        settings: Settings | None = None,
        policy: TargetPolicy | None = None,
        codec: PayloadCodec | None = None,
        sanitizer: ErrorSanitizer | None = None,
        retry_policy: RetryPolicy | None = None,
        resilience: ResilienceStrategy | None = None,
        services: ServiceResolver | None = None,
        coordinator: ClusterCoordinator | None = None,
    ) -> None:
        from ratchet.defaults.codec import JsonCodec
        from ratchet.defaults.sanitizer import DefaultErrorSanitizer, safe_sanitize

        self.store = store
        self.settings = Settings() if settings is None else settings
        self._own_policy = PrefixPolicy(allow)
        if policy is not None and self._own_policy.prefixes:
            raise ConfigurationError("give either allow=[...] or policy=..., not both")
        self.policy: TargetPolicy = policy or self._own_policy
        self.services = services or RegisteredServices()
        self.targets = Targets(self.policy, self.services)
        self.codec: PayloadCodec = codec or JsonCodec(allows=self.policy.allows_module)
        self.sanitizer = sanitizer or DefaultErrorSanitizer()
        self._sanitize = partial(safe_sanitize, self.sanitizer)
        self.retry_policy = retry_policy or DefaultRetryPolicy()
        self.resilience = resilience or PassThrough()
        self._given_coordinator = coordinator
        self._speaker: ClusterCoordinator | None = None
        self._job_defaults: dict[str, JobOptions] = {}
        self._bus, self._waiters = Bus(), Waiters()
        self._submission = Submission(
            self.targets, self.codec, self.settings, lambda: self.store.capabilities
        )
        self._node: Node | None = None
        self._node_pid = 0
        _check_capabilities(store)

    @classmethod
    def from_url(
        cls,
        url: str | None = None,
        *,
        allow: Iterable[str] = (),
        settings: Settings | None = None,
        clock: Clock | None = None,
        auto_upgrade: bool = False,
        **parts: Any,
    ) -> Self:
        """A scheduler on the store that the URL names; connects at first use.

        Args:
            url: ``sqlite:///jobs.db``, ``memory://``, ...; None: the environment's ``RATCHET_URL``.
            allow: as for the class.
            settings: everything that can be set; None: the environment's ``RATCHET_<GROUP>__<KEY>``
                (`ratchet.config.RatchetSettings`), else the defaults.
            clock: replaces store time (tests).
            auto_upgrade: bring the schema of a database server up to date at first use.
            parts: the other arguments of the class.

        Raises:
            UnknownScheme, MissingExtra, ConfigurationError: see there.
        """
        url = url or os.environ.get("RATCHET_URL")
        if not url:
            raise ConfigurationError("no store URL: pass one, like sqlite:///jobs.db, or set RATCHET_URL")
        if settings is None:
            settings = _settings_from_environment()
        store = open_store(url, clock=clock, auto_upgrade=auto_upgrade)
        return cls(store, allow=allow, settings=settings, **parts)

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
        """Register a function as a job, with defaults for its options; it stays an ordinary function.

        Args:
            name: store it under this name instead of ``module:qualname``: stable across renames.
            aliases: further names under which jobs stored earlier find it.
            options: keywords of `JobOptions`.
        """
        defaults = JobOptions.of(cast("Mapping[str, Any]", options))

        def register(function: F) -> F:
            text = self.targets.register(function, name, tuple(aliases))
            for each in {text, *aliases}:
                self._own_policy.add_target(each, function.__module__)
            self._job_defaults[text] = defaults
            return function

        return register if func is None else register(func)

    def register(self, service: object, cls: type | None = None) -> None:
        """Register an object (or a class or factory for it) whose methods are jobs."""
        if not isinstance(self.services, RegisteredServices):
            raise UsageError("this scheduler has its own ServiceResolver; register the service there")
        self.services.register(service, cls)

    # -- submission

    @overload
    def enqueue(
        self, func: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobBuilder[R]: ...
    @overload
    def enqueue(self, func: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobBuilder[R]: ...

    def enqueue(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> JobBuilder[Any]:
        """Begin a submission of `func(*args, **kwargs)`; end it with ``.submit()``.

        Raises:
            UnsupportedTarget, TargetRefused, ArgumentError: `func` cannot be a job, may not be, or cannot be
                called so.
        """
        return JobBuilder(self._draft(func, args, kwargs), call_site(), self._submit)

    @overload
    def enqueue_now(
        self, func: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobHandle[R]: ...
    @overload
    def enqueue_now(self, func: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...

    def enqueue_now(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Submit `func(*args, **kwargs)` at once, and tell the other nodes."""
        draft = self._draft(func, args, kwargs)
        draft.immediate = True
        return self._submit(draft, None)

    @overload
    def schedule(
        self,
        when: timedelta | datetime,
        func: Callable[P, Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> JobBuilder[R]: ...
    @overload
    def schedule(
        self, when: timedelta | datetime, func: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobBuilder[R]: ...

    def schedule(
        self, when: timedelta | datetime, func: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> JobBuilder[Any]:
        """Begin a submission that is due after a delay, or at an aware instant.

        Raises:
            UsageError: a naive datetime.
        """
        return JobBuilder(self._scheduled(when, func, args, kwargs), call_site(), self._submit)

    @overload
    def enqueue_many(
        self,
        func: Callable[..., Coroutine[Any, Any, R]],
        arguments: Iterable[Arguments],
        *,
        options: JobOptions | None = None,
        idempotency_key: Callable[..., str | None] | None = None,
        business_key: Callable[..., str | None] | None = None,
        unit: object | None = None,
    ) -> list[JobHandle[R]]: ...
    @overload
    def enqueue_many(
        self,
        func: Callable[..., R],
        arguments: Iterable[Arguments],
        *,
        options: JobOptions | None = None,
        idempotency_key: Callable[..., str | None] | None = None,
        business_key: Callable[..., str | None] | None = None,
        unit: object | None = None,
    ) -> list[JobHandle[R]]: ...

    def enqueue_many(
        self,
        func: Callable[..., Any],
        arguments: Iterable[Arguments],
        *,
        options: JobOptions | None = None,
        idempotency_key: Callable[..., str | None] | None = None,
        business_key: Callable[..., str | None] | None = None,
        unit: object | None = None,
    ) -> list[JobHandle[Any]]:
        """Submit `func` once per entry, all or none.

        Args:
            func: the job function.
            arguments: per job a tuple of positional or a dict of keyword arguments.
            options: for all of them.
            idempotency_key, business_key: called with the arguments of each job, answers its key (or None),
                like ``business_key="invoice-{0}".format``.
            unit: the caller's open transaction, where the store can join it.

        Returns:
            A handle per entry, in order; `created=False` where an idempotency key was taken.

        Raises:
            UsageError, PayloadError: an entry does not fit; nothing is stored.
            DuplicateBusinessKey: a key is held, or occurs twice; nothing is stored.
        """
        drafts = self._drafts(func, arguments, options, idempotency_key, business_key)
        return self._insert(drafts, unit)

    def submit_many(
        self, builders: Iterable[JobBuilder[Any]], *, unit: object | None = None
    ) -> list[JobHandle[Any]]:
        """Submit several builders, of different functions if need be, all or none.

        Raises:
            As `enqueue_many`; every builder can be submitted again then.
        """
        with ExitStack() as stack:
            drafts = [stack.enter_context(each.taken()) for each in builders]
            return self._insert(drafts, unit)

    def _draft(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Draft:
        draft = self._submission.draft(func, args, kwargs, JobOptions())
        draft.defaults = self._job_defaults.get(draft.target.text, draft.defaults)
        return draft

    def _scheduled(
        self,
        when: timedelta | datetime,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Draft:
        delay, at = check_when(when)
        draft = self._draft(func, args, kwargs)
        draft.delay, draft.at = delay, at
        return draft

    def _drafts(
        self,
        func: Callable[..., Any],
        arguments: Iterable[Arguments],
        options: JobOptions | None,
        idempotency_key: Callable[..., str | None] | None,
        business_key: Callable[..., str | None] | None,
    ) -> list[Draft]:
        drafts: list[Draft] = []
        for entry in arguments:
            args, kwargs = as_arguments(entry)
            draft = self._draft(func, args, kwargs)
            if options is not None:
                draft.options = options
            draft.idempotency_key = key_of("idempotency key", idempotency_key, args, kwargs)
            draft.business_key = key_of("business key", business_key, args, kwargs)
            drafts.append(draft)
        return drafts

    def _submit(self, draft: Draft, unit: object | None) -> JobHandle[Any]:
        (handle,) = self._insert([draft], unit)
        return handle

    def _insert(self, drafts: Sequence[Draft], unit: object | None) -> list[JobHandle[Any]]:
        again = [draft.id for draft in drafts if draft.id is not None]
        jobs = [self._submission.encode(draft) for draft in drafts]
        if again and self._are_stored(again, jobs):  # an earlier call stored them, and its answer was lost
            return [self._handle(job.id, created=True) for job in jobs]
        try:
            answers = self.store.insert(jobs, unit=unit)
        except UsageError:
            if again and self._are_stored(again, jobs):
                return [self._handle(job.id, created=True) for job in jobs]
            raise
        created = [
            (job, draft) for job, draft, answer in zip(jobs, drafts, answers, strict=True) if answer.created
        ]
        self._inserted([job for job, _ in created], immediate=any(draft.immediate for _, draft in created))
        return [self._handle(answer.id, created=answer.created) for answer in answers]

    def _are_stored(self, again: Sequence[UUID], jobs: Sequence[NewJob]) -> bool:
        return len(again) == len(jobs) == len(self.store.get_many(again))

    def _inserted(self, jobs: Sequence[NewJob], *, immediate: bool) -> None:
        """Tell the local poller when the new jobs are due, and the other nodes of urgent ones."""
        node = self._running_node()
        if node is not None and jobs:
            poller, due_now = node.parts.poller, False
            for job in jobs:
                if job.at is not None:
                    poller.due_in(max(job.at - self.store.now(), _ZERO))
                elif job.delay:
                    poller.due_in(job.delay)
                else:
                    due_now = True
            if due_now:
                poller.wake()
        urgent = [job for job in jobs if immediate or job.priority is Priority.CRITICAL]
        if urgent:
            hint = Hint(max(job.priority for job in urgent), self._name() or None, urgent[0].executor)
            self._coordinator().notify(hint)

    def _handle(self, job_id: UUID, *, created: bool) -> JobHandle[Any]:
        return JobHandle(job_id, created, self.store, self._waiters, self.codec.decode_value)

    def handle(self, job_id: UUID) -> JobHandle[Any]:
        """A handle for a job that was submitted elsewhere or earlier; nothing is read yet."""
        return self._handle(job_id, created=False)

    # -- control

    def cancel(self, job_id: UUID) -> bool:
        """Cancel a job that has not settled; a running body is asked to stop within 2 s.

        Returns:
            True if it is canceled now; False if it had settled, was canceled before, or is unknown.
        """
        with self._bus.ahead(job_id) as publish:
            while True:
                answer = self.store.settle(Settlement(Change(Trigger.CANCEL, job_id)))
                if isinstance(answer, Settled):
                    self._tell(publish, JobCanceled, job_id, answer.now)
                    self._waiters.poke()
                    return True
                if answer.current is None or answer.current.is_settled:
                    return False
                answer = self.store.settle(Settlement(Change(Trigger.CANCEL_RUNNING, job_id)))
                if isinstance(answer, Settled):
                    self._tell(publish, JobCanceling, job_id, answer.now)
                    node = self._running_node()
                    if node is not None:
                        node.stop_canceled(job_id)
                    self._waiters.poke()
                    return True
                if answer.current is None or answer.current.is_settled:
                    return False

    def cancel_tagged(self, *tags: str) -> int:
        """Cancel every PENDING, PAUSED and WAITING job that carries all of the tags; answers how many."""
        if not tags:
            raise UsageError("cancel_tagged needs at least one tag")
        wanted = JobOptions(tags=frozenset(tags)).tags
        selection = Selection(tags=wanted, statuses=CANCELABLE)
        count, cursor = 0, None
        while True:
            page = self.store.find(selection, order="id_asc", limit=500, cursor=cursor)
            cancels = [Settlement(Change(Trigger.CANCEL, job.id)) for job in page.jobs]
            with self._bus.ahead() as publish:
                for answer in self.store.settle_many(cancels):
                    if isinstance(answer, Settled):
                        count += 1
                        self._tell(publish, JobCanceled, answer.job_id, answer.now)
            self._waiters.poke()
            cursor = page.cursor
            if cursor is None:
                return count

    def pause(self, job_id: UUID) -> bool:
        """Suspend a PENDING job. True if it is paused now (also if it was); False otherwise."""
        answer = self._apply(Trigger.PAUSE, job_id, JobPaused)
        if isinstance(answer, Applied):
            return True
        return answer.current is not None and answer.current.status is Status.PAUSED

    def resume(self, job_id: UUID) -> bool:
        """Queue a PAUSED job again, with its due time. False if it is not paused or unknown."""
        answer = self._apply(Trigger.RESUME, job_id, JobResumed)
        if isinstance(answer, Applied):
            self._wake()
            return True
        return False

    def retry(self, job_id: UUID) -> bool:
        """Give a FAILED job a new life: attempts and crash count 0, due now. False for any other.

        Raises:
            DuplicateBusinessKey: another job holds its key now.
        """
        answer = self._apply(Trigger.REQUEUE, job_id, JobRequeued)
        if isinstance(answer, Applied):
            self._wake()
            return True
        return False

    def retry_all(
        self, selection: Selection | None = None, *, limit: int = 1000, on_conflict: OnConflict = "abort"
    ) -> Selected:
        """`retry` for up to `limit` FAILED jobs of the selection, in one unit, oldest first.

        Args:
            selection: which; always narrowed to FAILED; None: all.
            limit: 1 to 1000; call again while as many come back.
            on_conflict: ``abort``: one business key in use, and nothing changes; ``skip``: leave those.

        Raises:
            DuplicateBusinessKey: under ``abort``, with the conflicting ids.
            UsageError: a limit outside 1 to 1000.
        """
        with self._bus.ahead() as publish:
            chosen = self.store.apply_where(
                selection or Selection(), Trigger.REQUEUE, limit=limit, on_conflict=on_conflict
            )
            for job_id in chosen.ids:
                self._tell(publish, JobRequeued, job_id, chosen.now)
            if chosen.ids and self._bus.active:
                ids, skipped = tuple(chosen.ids), len(chosen.skipped)
                publish(JobsBulkRetried(job_ids=ids, skipped=skipped, at=chosen.now, node=self._name()))
        if chosen.ids:
            self._wake()
        return chosen

    def _apply(self, trigger: Trigger, job_id: UUID, event: type[JobEvent]) -> Applied | Refused:
        with self._bus.ahead(job_id) as publish:
            answer = self.store.apply(Change(trigger, job_id))
            if isinstance(answer, Applied):
                self._tell(publish, event, job_id, answer.job.updated_at)
            return answer

    def replace(self, job_id: UUID, builder: JobBuilder[R]) -> JobHandle[R]:
        """Cancel a job that has not begun and put another in its place, as one step.

        The new job takes over the business key, unless the builder names another, which must be free.

        Raises:
            NotReplaceable: it is not PENDING, PAUSED or WAITING, or unknown.
            DuplicateBusinessKey: the builder's own key is held; the old job is unchanged.
        """
        with builder.taken() as draft:
            return self._replace(job_id, draft)

    def _replace(self, job_id: UUID, draft: Draft) -> JobHandle[Any]:
        new = self._submission.encode(draft)
        change = Change(Trigger.REPLACE, job_id, superseded_by=new.id)
        with self._bus.ahead(job_id) as publish:
            try:
                answer = self.store.settle(Settlement(change, (Submit(new),)))
            except DuplicateIdempotencyKey:
                original = self.store.find_by_key(idempotency=new.idempotency_key)
                if original is None:
                    raise
                return self._handle(original.id, created=False)
            if isinstance(answer, Refused):
                if answer.current is not None and answer.current.superseded_by == new.id:
                    return self._handle(new.id, created=True)  # done by an earlier call whose answer was lost
                state = "unknown" if answer.current is None else str(answer.current.status)
                raise NotReplaceable(
                    f"job {job_id} is {state}; only {', '.join(sorted(REPLACEABLE))} jobs can be replaced"
                )
            self._tell(publish, JobCanceled, job_id, answer.now, superseded_by=new.id)
        self._waiters.poke()
        self._inserted([new], immediate=draft.immediate)
        return self._handle(new.id, created=True)

    # -- reading

    @property
    def query(self) -> JobQuery:
        """Pages of jobs, one job with its history, the state of the queue and the nodes."""
        return JobQuery(self.store, self.codec)

    def get(self, job_id: UUID) -> Job | None:
        """The stored job as it is now; None if unknown."""
        return self.store.get(job_id)

    def add_listener(self, listener: Callable[[Any], object], *types: type) -> Subscription:
        """Call `listener(event)` for events of these types (none: all), on a thread of its own.

        Returns:
            The subscription; `close` it to stop.

        Raises:
            UsageError: the listener is an ``async def``, which nobody would await here.
        """
        if inspect.iscoroutinefunction(listener):
            raise UsageError(
                "a listener is an ordinary function; AsyncScheduler.add_listener takes an async def"
            )
        return self._bus.subscribe(listener, types)

    # -- running a node

    def start(self, *, loop: asyncio.AbstractEventLoop | None = None) -> Self:
        """Begin to execute jobs in this process.

        Args:
            loop: the application's event loop for async bodies; None: an own one on its own thread.

        Raises:
            ConfigurationError: the target policy is empty; the node name is taken.
            NotRunning: already started.
            StoreError: the store cannot be reached.
        """
        if self._running_node() is not None:
            raise NotRunning("this scheduler is running already")
        if self.policy.is_empty:
            raise ConfigurationError(
                "nothing may be executed: name your modules, like Scheduler(..., allow=['shop']), "
                "or decorate functions with @scheduler.job"
            )
        missing = sorted(set(Capability) - set(self.store.capabilities) - {Capability.WAKE_UPS})
        if missing:
            log.info("features off, because the store does not offer them: %s", ", ".join(missing))
        node = Node(
            self.store,
            self.settings,
            pipeline=self._pipeline,
            coordinator=self._new_coordinator(),
            bus=self._bus,
            waiters=self._waiters,
            make_child=self._make_child,
            loop=loop,
        )
        node.start()
        self._node, self._node_pid = node, os.getpid()
        return self

    def stop(self, timeout: float | timedelta = STOP_TIMEOUT) -> Stopped:
        """Stop claiming, finish or give back what runs, deregister (specification, section 10).

        Args:
            timeout: for all of it, in seconds or as a timedelta (default 25 s).

        Returns:
            What was released, and which bodies still run. Without a running node: nothing.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        node, self._node = self._running_node(), None
        if node is None:
            return Stopped(drained=True, released=(), stuck=(), unwritten=0)
        stopped = node.stop(seconds)
        if stopped.stuck:
            log.error("%d bodies still run after the shutdown: %s", len(stopped.stuck), stopped.stuck)
        self._bus.drain(min(1.0, seconds))
        return stopped

    def close(self) -> None:
        """Stop, if running, and let go of the store."""
        self.stop()
        if self._speaker is not None:
            self._speaker.close()
        self.store.close()

    @property
    def node(self) -> Node | None:
        """The running node; None if not started."""
        return self._running_node()

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def __repr__(self) -> str:
        return f"<Scheduler on {type(self.store).__name__}, {'running' if self.node else 'not running'}>"

    # -- inside

    def _running_node(self) -> Node | None:
        if self._node is not None and self._node_pid != os.getpid():
            self._node = None  # forked: the threads are the parent's
            self._bus, self._waiters = Bus(), Waiters()
        return self._node

    def _pipeline(self, node: str) -> Pipeline:
        return Pipeline(
            store=self.store,
            targets=self.targets,
            codec=self.codec,
            sanitize=self._sanitize,
            retry_policy=self.retry_policy,
            resilience=self.resilience,
            bus=self._bus,
            settings=self.settings,
            node=node,
        )

    def _make_child(self) -> ChildProcess:
        from ratchet.engine.child_process import ChildProcess

        modules = {text.partition(":")[0] for text in map(self.targets.import_path, self.targets.texts())}
        return ChildProcess(
            allow=(*self._own_policy.prefixes, *sorted(modules)), result_limit=self.settings.payload.result
        )

    def _new_coordinator(self) -> ClusterCoordinator:
        if self._given_coordinator is not None:
            return self._given_coordinator
        if isinstance(self.store, WakeUps) and Capability.WAKE_UPS in self.store.capabilities:
            return self.store.coordinator()
        return LocalCoordinator()

    def _coordinator(self) -> ClusterCoordinator:
        """The node's; without one, one of our own that only speaks (a node closes its own when it stops)."""
        node = self._running_node()
        if node is not None:
            return node.coordinator
        if self._speaker is None:
            self._speaker = self._new_coordinator()
        return self._speaker

    def _wake(self) -> None:
        node = self._running_node()
        if node is not None:
            node.parts.poller.wake()

    def _name(self) -> str:
        node = self._running_node()
        return node.info.name if node is not None else ""

    def _tell(
        self, publish: Callable[[Any], None], event: type[JobEvent], job_id: UUID, at: datetime, **more: Any
    ) -> None:
        if self._bus.active:
            publish(event(job_id=job_id, attempt=0, at=at, node=self._name(), **more))


def _settings_from_environment() -> Settings | None:
    """The settings model is loaded only if there is something to read."""
    groups = {f"RATCHET_{field.name.upper()}" for field in fields(Settings)}
    names = [name.upper() for name in os.environ]
    if not any(name in groups or (name.startswith("RATCHET_") and "__" in name) for name in names):
        return None
    from ratchet.config import RatchetSettings

    return RatchetSettings().to_settings()


def _check_capabilities(store: JobStore) -> None:
    """A declared capability whose methods are missing is a mistake of the store's author, told at once."""
    for capability, protocol in PROTOCOLS.items():
        if capability in store.capabilities and not isinstance(store, protocol):
            raise CapabilityMissing(
                capability, f"{type(store).__name__} declares {capability!r} but lacks its methods"
            )
