"""Builds one submission, word by word; nothing happens before `submit`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar

from ratchet.domain.ids import new_id
from ratchet.domain.job import NewJob
from ratchet.domain.lifecycle import LATEST, clamp
from ratchet.domain.options import JobOptions, check_text
from ratchet.domain.priority import Priority
from ratchet.domain.retry import NO_BACKOFF, Backoff
from ratchet.errors import (
    ArgumentError,
    CapabilityMissing,
    PayloadTooLarge,
    UnsupportedTarget,
    UsageError,
)
from ratchet.spi.capabilities import Capability

if TYPE_CHECKING:
    from typing import Self
    from uuid import UUID

    from ratchet.engine.targets import Target, Targets
    from ratchet.handle import JobHandle
    from ratchet.settings import Settings
    from ratchet.spi.codec import PayloadCodec

R = TypeVar("R")
T = TypeVar("T")
_ZERO: Final = timedelta()
NO_OPTIONS: Final = JobOptions()
Arguments: TypeAlias = tuple[Any, ...] | Mapping[str, Any]
"""One entry of `enqueue_many`: positional arguments, or keyword ones."""
_State: TypeAlias = Literal["new", "submitting", "tried", "submitted"]


@dataclass(slots=True)
class Draft:
    """What a builder has gathered so far.

    `id` is drawn when the draft is first encoded and kept: a submission whose answer got lost is recognised
    when it is made again.
    """

    target: Target
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: JobOptions
    defaults: JobOptions
    delay: timedelta | None = None
    at: datetime | None = None
    params: dict[str, object] = field(default_factory=dict)
    idempotency_key: str | None = None
    business_key: str | None = None
    immediate: bool = False
    id: UUID | None = None


class Submission:
    """Turns drafts into jobs that can be stored: binds, validates, encodes, checks limits (section 2).

    Args:
        targets: finds callables.
        codec: encodes.
        settings: limits and defaults.
    """

    def __init__(
        self,
        targets: Targets,
        codec: PayloadCodec,
        settings: Settings,
        capabilities: Callable[[], frozenset[str]],
    ) -> None:
        self._targets, self._codec, self._settings, self._capabilities = (
            targets,
            codec,
            settings,
            capabilities,
        )

    def draft(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], defaults: JobOptions
    ) -> Draft:
        """Begin: find the target and bind the arguments, so that a wrong call fails where it is written.

        Raises:
            UnsupportedTarget, TargetRefused, ArgumentError: see there.
        """
        target = self._targets.describe(func)
        target.signature.bind(args, kwargs)
        target.signature.validate(args, kwargs)
        return Draft(target, args, kwargs, NO_OPTIONS, defaults)

    def encode(self, draft: Draft) -> NewJob:
        """The job to store.

        Raises:
            PayloadError: an argument or param cannot travel, or is too large.
            UsageError: options that do not fit.
        """
        options = draft.options
        if draft.defaults is not NO_OPTIONS:
            options = options.over(draft.defaults)
        target = draft.target
        payload = self._codec.encode_arguments(draft.args, draft.kwargs, names=target.signature.names)
        params = {
            name: self._codec.encode_value(value, what=f"param {name!r}")
            for name, value in draft.params.items()
        }
        self._check_size("the arguments", len(payload))
        if params:
            self._check_size("the params", sum(len(name) + len(text) for name, text in params.items()))
        if options.resource is not None and Capability.PERMIT not in self._capabilities():
            raise CapabilityMissing(
                Capability.PERMIT,
                f"resource {options.resource!r} is not configured: this store offers no permits",
            )
        if draft.id is None:
            draft.id = new_id()
        return NewJob(
            id=draft.id,
            target=target.text,
            payload=payload,
            format=self._codec.format,
            params=params,
            executor=self._executor(target, options.executor),
            priority=Priority.NORMAL if options.priority is None else options.priority,
            delay=draft.delay,
            at=draft.at,
            max_retries=options.max_retries or 0,
            backoff=NO_BACKOFF if options.backoff is None else options.backoff,
            timeout=self._settings.timeouts.default if options.timeout is None else options.timeout,
            tags=options.tags,
            idempotency_key=draft.idempotency_key,
            business_key=draft.business_key,
            principal=options.principal,
            resource=options.resource,
            on_success=self._callback("on_success", options.on_success),
            on_failure=self._callback("on_failure", options.on_failure),
        )

    def _check_size(self, what: str, size: int) -> None:
        if size > self._settings.payload.arguments:
            raise PayloadTooLarge(what, size, self._settings.payload.arguments)

    def _callback(self, name: str, func: Callable[..., Any] | None) -> str | None:
        if func is None:
            return None
        target = self._targets.describe(func)
        try:
            target.signature.bind((None, None), {})
        except ArgumentError as error:
            second = "result" if name == "on_success" else "error"
            raise UsageError(f"{name} is called as callback(ctx, {second}), but {error}") from None
        return target.text

    @staticmethod
    def _executor(target: Target, asked: str | None) -> str:
        if asked is None:
            return "async" if target.is_async else "threads"
        if asked == "async" and not target.is_async:
            raise UsageError(f"{target.text} is not an async def, so it cannot run with executor='async'")
        if asked == "threads" and target.is_async:
            raise UsageError(f"{target.text} is an async def, so it cannot run with executor='threads'")
        if asked == "processes" and target.is_method:
            raise UnsupportedTarget(
                f"{target.text} is a method of a service, which a child process does not have; submit a function"
            )
        return asked


class BuilderWords:
    """The vocabulary of a submission in the making: every ``with_...`` changes it and answers it.

    What ends it (`submit`) is the subclass's: `JobBuilder` here, `ratchet.aio.AsyncJobBuilder` for asyncio.
    """

    __slots__ = ("_draft", "_site", "_state")

    def __init__(self, draft: Draft, site: str) -> None:
        self._draft = draft
        self._site = site
        self._state: _State = "new"

    # -- when

    def immediate(self) -> Self:
        """Tell the other nodes at once."""
        self._draft.immediate = True
        return self

    def with_delay(self, delay: timedelta) -> Self:
        """Due after `delay`; a negative one is now, one beyond year 9999 the last possible instant."""
        self._draft.delay, self._draft.at = check_delay(delay), None
        return self

    def at(self, when: datetime) -> Self:
        """Due at an aware instant."""
        self._draft.delay, self._draft.at = None, check_instant(when)
        return self

    # -- how

    def _with(self, **options: Any) -> Self:
        self._draft.options = replace(self._draft.options, **options)
        return self

    def with_options(self, options: JobOptions) -> Self:
        """Several at once; what they leave open stays as it is."""
        self._draft.options = options.over(self._draft.options)
        return self

    def with_priority(self, priority: Priority) -> Self:
        """LOWEST to CRITICAL; CRITICAL also tells the other nodes at once."""
        return self._with(priority=priority)

    def with_max_retries(self, max_retries: int) -> Self:
        """Further executions after the first that fails."""
        return self._with(max_retries=max_retries)

    def with_backoff(self, backoff: Backoff) -> Self:
        """The delay before each retry."""
        return self._with(backoff=backoff)

    def with_timeout(self, timeout: timedelta) -> Self:
        """How long one execution may take, from its start.

        At the end of it the attempt is over, whatever its body does: an async body is cancelled, one in a
        child process is killed, one in a thread gets an exception, which cannot reach a blocking call. A
        body that goes on all the same keeps its slot, its result is discarded, and a retry may overlap it.
        """
        return self._with(timeout=timeout)

    def with_tags(self, *tags: str) -> Self:
        """Add tags: trimmed, lower-cased, at most 64 characters each."""
        return self._with(tags=self._draft.options.tags | JobOptions(tags=frozenset(tags)).tags)

    def with_executor(self, executor: str) -> Self:
        """``threads``, ``async`` or ``processes``."""
        return self._with(executor=executor)

    def with_resource(self, name: str) -> Self:
        """Run only while a permit of this resource is free."""
        check_text("resource name", name)
        return self._with(resource=name)

    def with_principal(self, principal: str) -> Self:
        """On whose behalf."""
        check_text("principal", principal)
        return self._with(principal=principal)

    def with_param(self, name: str, value: object) -> Self:
        """A named value beside the arguments: `current_job().params[name]`."""
        check_text("param name", name)
        self._draft.params[name] = value
        return self

    def with_params(self, **params: object) -> Self:
        """Several params."""
        for name, value in params.items():
            self.with_param(name, value)
        return self

    # -- identity

    def with_idempotency_key(self, key: str) -> Self:
        """Unique for ever: a second submission with it answers the first one's job."""
        check_key("idempotency key", key)
        self._draft.idempotency_key = key
        return self

    def with_business_key(self, key: str) -> Self:
        """Unique among jobs that have not settled: a second one raises `DuplicateBusinessKey`."""
        check_key("business key", key)
        self._draft.business_key = key
        return self

    # -- afterwards

    def on_success(self, callback: Callable[..., Any]) -> Self:
        """A named function, called as ``callback(ctx, result)`` after success, at least once.

        A result too large to be kept is not there any more: the callback gets a `ResultNotStored` instead.
        """
        return self._with(on_success=callback)

    def on_failure(self, callback: Callable[..., Any]) -> Self:
        """A named function, called as ``callback(ctx, error)`` after permanent failure, at least once."""
        return self._with(on_failure=callback)

    # -- the end

    @contextmanager
    def taken(self) -> Iterator[Draft]:
        """The draft for the block that stores it; if that raises, the builder may be submitted again."""
        if self._state in ("submitting", "submitted"):
            raise UsageError("this builder has been submitted; make a new one")
        self._state = "submitting"
        try:
            yield self._draft
        except BaseException:
            self._state = "tried"
            raise
        self._state = "submitted"

    def __del__(self) -> None:
        if getattr(self, "_state", None) == "new":
            warnings.warn(
                f"the job built at {self._site} was never submitted; end the chain with .submit()",
                ResourceWarning,
                stacklevel=2,
                source=None,
            )

    def __repr__(self) -> str:
        done = "submitted" if self._state == "submitted" else "not submitted"
        return f"<{type(self).__name__} {self._draft.target.text} ({done})>"


class JobBuilder(BuilderWords, Generic[R]):
    """One submission in the making; `submit` stores it. Made by `Scheduler.enqueue` and `schedule`."""

    __slots__ = ("_submit",)

    def __init__(
        self, draft: Draft, site: str, submit: Callable[[Draft, object | None], JobHandle[R]]
    ) -> None:
        super().__init__(draft, site)
        self._submit = submit

    def submit(self, *, unit: object | None = None) -> JobHandle[R]:
        """Store the job.

        Args:
            unit: the caller's open transaction, where the store can join it (a session of PyMongo): the
                job exists exactly if that commits, and nodes are woken after the commit. Until then the
                handle's `status` is None and `result` raises `JobPurged`, and after a rollback for ever. A
                builder is submitted once: where the transaction may be repeated, make it in the part that is.

        Raises:
            DuplicateBusinessKey: the key is held.
            DuplicateIdempotencyKey: in a transaction that the database has rolled back because another one
                used the key meanwhile; in a new one the same submission is answered the original.
            CapabilityMissing: the store cannot join transactions.
            UsageError: `unit` is no open transaction on the store's database.
            PayloadError: something cannot travel.
            StoreError: the store did not answer; calling `submit` again on this builder stores one job in all.
        """
        with self.taken() as draft:
            return self._submit(draft, unit)


def call_site(depth: int = 2) -> str:
    """``file:line`` of the application's call, for the warning about a builder that was thrown away."""
    frame = sys._getframe(depth)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def check_builder(builder: object, kind: type = JobBuilder) -> None:
    """Refuse what `enqueue` and `schedule` did not make.

    Raises:
        UsageError: with the remedy.
    """
    if not isinstance(builder, kind):
        raise UsageError(
            f"a builder is expected here, like scheduler.enqueue(f, 1), not {type(builder).__name__}"
        )


def taken(builder: BuilderWords) -> AbstractContextManager[Draft]:
    """`BuilderWords.taken` of what had better be a builder."""
    check_builder(builder, BuilderWords)
    return builder.taken()


def several(what: str, items: Iterable[T]) -> Iterable[T]:
    """Something to iterate over; anything else is refused."""
    if not isinstance(items, Iterable):
        raise UsageError(f"{what} are several, like a list, not {type(items).__name__}")
    return items


def check_key(what: str, key: str) -> None:
    """Refuse an empty, too long or unstorable key."""
    check_text(what, key)
    if not key:
        raise UsageError(f"the {what} cannot be empty")


def check_delay(delay: timedelta) -> timedelta:
    """A delay as it is stored."""
    if not isinstance(delay, timedelta):
        raise UsageError(f"a delay is a timedelta, not {type(delay).__name__}")
    return max(delay, _ZERO)


def check_instant(when: datetime) -> datetime:
    """An instant as it is stored; a naive one is refused.

    Raises:
        UsageError: naive: nobody can know which zone was meant.
    """
    if not isinstance(when, datetime):
        raise UsageError(f"a due time is a datetime or a timedelta, not {type(when).__name__}")
    if when.tzinfo is None or when.utcoffset() is None:
        raise UsageError(
            f"{when} has no time zone; write one, like datetime.now(UTC) or ZoneInfo('Europe/Paris')"
        )
    try:
        return clamp(when.astimezone(UTC))
    except OverflowError:  # no UTC form: the first hours of year 1 to the east, the last of 9999 to the west
        return LATEST if when.year > 1 else clamp(datetime.min.replace(tzinfo=UTC))


def check_when(when: timedelta | datetime) -> tuple[timedelta | None, datetime | None]:
    """(delay, instant): exactly one of them."""
    if isinstance(when, timedelta):
        return check_delay(when), None
    return None, check_instant(when)


def as_arguments(entry: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One entry of `enqueue_many`: a tuple of positional arguments, or a dict of keyword ones."""
    if isinstance(entry, Mapping):
        return (), dict(entry)
    if isinstance(entry, (tuple, list)):
        return tuple(entry), {}
    raise UsageError(
        f"enqueue_many takes one tuple of arguments per job, like [(1,), (2,)], not {type(entry).__name__}"
    )


def key_of(
    what: str,
    make: Callable[..., str | None] | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> str | None:
    """The key that `make` answers for these arguments."""
    if make is None:
        return None
    if isinstance(make, str):
        raise UsageError(
            f"one {what} cannot serve several jobs; give a function of their arguments, like 'k-{{0}}'.format"
        )
    key = make(*args, **kwargs)
    if key is not None:
        check_key(what, key)
    return key
