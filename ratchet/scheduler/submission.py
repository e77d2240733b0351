"""Submission: registering job functions, and storing calls of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast, overload

from ratchet.builder import (
    NO_OPTIONS,
    Arguments,
    Draft,
    JobBuilder,
    as_arguments,
    call_site,
    check_when,
    key_of,
    several,
    taken,
)
from ratchet.defaults.resolver import RegisteredServices
from ratchet.domain.options import JobOptions, OptionWords
from ratchet.domain.priority import Priority
from ratchet.errors import UsageError
from ratchet.scheduler.parts import Parts
from ratchet.spi.capabilities import AsyncUnits
from ratchet.spi.coordinator import Hint

if TYPE_CHECKING:
    from ratchet.domain.job import NewJob
    from ratchet.handle import JobHandle
    from ratchet.spi.async_store import AsyncJobStore
    from ratchet.spi.store import Inserted

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
_ZERO = timedelta()


class Submitting(Parts):
    """How jobs come in."""

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
        """Submit `func(*args, **kwargs)` at once, and tell the other nodes.

        All its keywords are the function's. In a transaction use ``enqueue(...).submit(unit=...)``: nobody is
        told of a job before it is committed.
        """
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
            unit: the caller's open transaction, where the store can join it; see `JobBuilder.submit`.

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

        Args:
            builders: of `enqueue` and `schedule`.
            unit: the caller's open transaction, where the store can join it; see `JobBuilder.submit`.

        Raises:
            As `enqueue_many`; every builder can be submitted again then.
        """
        with ExitStack() as stack:
            drafts = [stack.enter_context(taken(each)) for each in several("builders", builders)]
            return self._insert(drafts, unit)

    def _draft(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Draft:
        draft = self._submission.draft(func, args, kwargs, NO_OPTIONS)
        draft.defaults = self._job_defaults.get(draft.target.text, NO_OPTIONS)
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
        for entry in several("arguments", arguments):
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
        jobs, again = self._encoded(drafts)
        if again and self._are_stored(jobs):  # an earlier call stored them, and its answer was lost
            return [self._handle(job.id, created=True) for job in jobs]
        try:
            answers = self._insert_encoded(jobs, unit, again=again)
        except UsageError:
            if again and self._are_stored(jobs):
                return [self._handle(job.id, created=True) for job in jobs]
            raise
        return self._answered(drafts, jobs, answers, unit)

    def _encoded(self, drafts: Sequence[Draft]) -> tuple[list[NewJob], bool]:
        """The jobs of `drafts`; True if an earlier call may have stored all of them."""
        again = bool(drafts) and all(draft.id is not None for draft in drafts)
        return [self._submission.encode(draft) for draft in drafts], again

    def _answered(
        self,
        drafts: Sequence[Draft],
        jobs: Sequence[NewJob],
        answers: Sequence[Inserted],
        unit: object | None,
    ) -> list[JobHandle[Any]]:
        created = [
            (job, draft)
            for job, draft, answer in zip(jobs, drafts, answers, strict=True)
            if answer.created and answer.claim is None  # one with a claim is on its way to a slot
        ]
        if unit is None:
            self._inserted([job for job, _ in created], immediate=any(each.immediate for _, each in created))
        else:
            # A wake-up before the commit would make polls find nothing: the store sends it, after the commit.
            self._expect([job for job, _ in created if job.delay or job.at is not None])
        return [self._handle(answer.id, created=answer.created) for answer in answers]

    def _insert_encoded(
        self, jobs: Sequence[NewJob], unit: object | None, *, again: bool
    ) -> Sequence[Inserted]:
        node = self._running_node()
        if node is not None and unit is None and len(jobs) == 1 and not again:
            return node.parts.eager.insert(jobs[0])
        return self.store.insert(jobs, unit=unit)

    def _store_for(self, unit: object) -> AsyncJobStore | None:
        """Through which store a transaction of asyncio code is joined; None: through this scheduler's own."""
        store = self.store
        return store.async_store_for(unit) if isinstance(store, AsyncUnits) else None

    def _are_stored(self, jobs: Sequence[NewJob]) -> bool:
        return len(jobs) == len(self.store.get_many([job.id for job in jobs]))

    def _inserted(self, jobs: Sequence[NewJob], *, immediate: bool) -> None:
        """Tell the local poller when the new jobs are due, and the other nodes of urgent ones."""
        self._expect(jobs)
        urgent = [job for job in jobs if immediate or job.priority is Priority.CRITICAL]
        if urgent:
            hint = Hint(max(job.priority for job in urgent), self._name() or None, urgent[0].executor)
            self._coordinator().notify(hint)

    def _expect(self, jobs: Sequence[NewJob]) -> None:
        """Tell the local poller when the jobs are due."""
        node = self._running_node()
        if node is None or not jobs:
            return
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
