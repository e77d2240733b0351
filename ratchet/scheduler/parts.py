"""The parts that a scheduler is made of, its node if it runs, and what can be read through them."""

from __future__ import annotations

import inspect
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ratchet.builder import Submission
from ratchet.defaults.coordinator import LocalCoordinator
from ratchet.defaults.policy import PrefixPolicy
from ratchet.defaults.resilience import PassThrough
from ratchet.defaults.resolver import RegisteredServices
from ratchet.defaults.retry import DefaultRetryPolicy
from ratchet.domain.options import check_id
from ratchet.engine.attempt import Pipeline
from ratchet.engine.bus import Bus, Subscription, events
from ratchet.engine.ending import Waiters
from ratchet.engine.targets import Targets
from ratchet.errors import CapabilityMissing, ConfigurationError, UsageError
from ratchet.handle import JobHandle
from ratchet.query import JobQuery
from ratchet.settings import Settings
from ratchet.spi.capabilities import PROTOCOLS, Capability, WakeUps
from ratchet.spi.codec import PayloadCodec
from ratchet.spi.coordinator import ClusterCoordinator
from ratchet.spi.policy import TargetPolicy
from ratchet.spi.resilience import ResilienceStrategy
from ratchet.spi.resolver import ServiceResolver
from ratchet.spi.retry import RetryPolicy
from ratchet.spi.sanitizer import ErrorSanitizer
from ratchet.spi.store import JobStore

if TYPE_CHECKING:
    from ratchet.domain.job import Job
    from ratchet.domain.options import JobOptions
    from ratchet.engine.child_process import ChildProcess
    from ratchet.engine.node import Node


class Parts:
    """What submission, control and the node of one scheduler share. Arguments: see `Scheduler`."""

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

        _check_store(store)
        if settings is not None and not isinstance(settings, Settings):
            raise ConfigurationError(f"settings is a Settings(...), not {type(settings).__name__}")
        for what, part, kind in (
            ("policy", policy, TargetPolicy),
            ("codec", codec, PayloadCodec),
            ("sanitizer", sanitizer, ErrorSanitizer),
            ("retry_policy", retry_policy, RetryPolicy),
            ("resilience", resilience, ResilienceStrategy),
            ("services", services, ServiceResolver),
            ("coordinator", coordinator, ClusterCoordinator),
        ):
            _check_part(what, part, kind)
        self.store = store
        self.settings = Settings() if settings is None else settings
        self._own_policy = PrefixPolicy(allow)
        if policy is not None and self._own_policy.prefixes:
            raise ConfigurationError("give either allow=[...] or policy=..., not both")
        self.policy: TargetPolicy = self._own_policy if policy is None else policy
        self.services = RegisteredServices() if services is None else services
        self.targets = Targets(self.policy, self.services)
        self.codec: PayloadCodec = JsonCodec(allows=self.policy.allows_module) if codec is None else codec
        self.sanitizer = DefaultErrorSanitizer() if sanitizer is None else sanitizer
        self._sanitize = partial(safe_sanitize, self.sanitizer)
        self.retry_policy = DefaultRetryPolicy() if retry_policy is None else retry_policy
        self.resilience = PassThrough() if resilience is None else resilience
        self._given_coordinator = coordinator
        self._speaker: ClusterCoordinator | None = None
        self._job_defaults: dict[str, JobOptions] = {}
        self._bus, self._waiters = Bus(), Waiters()
        self._submission = Submission(
            self.targets, self.codec, self.settings, lambda: self.store.capabilities
        )
        self._node: Node | None = None
        self._stopping: Node | None = None
        self._starting = threading.Lock()
        _check_capabilities(store)
        _all.add(self)

    # -- reading

    @property
    def query(self) -> JobQuery:
        """Pages of jobs, one job with its history, the state of the queue and the nodes."""
        return JobQuery(self.store, self.codec)

    def get(self, job_id: UUID) -> Job | None:
        """The stored job as it is now; None if unknown."""
        return self.store.get(check_id(job_id))

    def add_listener(self, listener: Callable[[Any], object], *types: type) -> Subscription:
        """Call `listener(event)` for events of these types (none: all), on a thread of its own.

        Returns:
            The subscription; `close` it to stop.

        Raises:
            UsageError: the listener is an ``async def``, which nobody would await here, or cannot be called
                with one event; or the types are no event types.
        """
        check_listener(listener, types)
        if inspect.iscoroutinefunction(listener):
            raise UsageError(
                "a listener is an ordinary function; AsyncScheduler.add_listener takes an async def"
            )
        return self._bus.subscribe(listener, types)

    def _handle(self, job_id: UUID, *, created: bool) -> JobHandle[Any]:
        return JobHandle(job_id, created, self.store, self._waiters, self.codec.decode_value)

    def handle(self, job_id: UUID) -> JobHandle[Any]:
        """A handle for a job that was submitted elsewhere or earlier; nothing is read yet."""
        return self._handle(check_id(job_id), created=False)

    @property
    def node(self) -> Node | None:
        """The running node; None if not started."""
        return self._running_node()

    # -- inside

    def _running_node(self) -> Node | None:
        return self._node

    def _after_fork(self) -> None:
        """In a child process: the same settings, jobs and listeners, not started."""
        if self._node is not None:
            _not_ours.append(self._node)
        self._node = self._stopping = self._speaker = None
        self._starting = threading.Lock()
        self._bus.start_afresh()
        self._waiters.start_afresh()
        if isinstance(self.services, RegisteredServices):
            self.services.start_afresh()

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
        self,
        publish: Callable[[Any], None],
        event: type[events.JobEvent],
        job_id: UUID,
        at: datetime,
        **more: Any,
    ) -> None:
        if self._bus.active:
            publish(event(job_id=job_id, attempt=0, at=at, node=self._name(), **more))


_all: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
_not_ours: Final[list[Node]] = []
"""Nodes of the parent: kept, since their end would reach into what it shares with us (an event loop's selector)."""


def _after_fork_in_child() -> None:
    for scheduler in list(_all):
        scheduler._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _check_store(store: object) -> None:
    if not isinstance(store, JobStore):
        remedy = f"; write Scheduler.from_url({store!r})" if isinstance(store, str) else ""
        raise ConfigurationError(f"{type(store).__name__} is no store{remedy}")


def _check_part(what: str, part: object, kind: type) -> None:
    """A part without the methods that it is to have is told of at once, not by the first job."""
    if part is None or isinstance(part, kind):
        return
    words = [name for name in vars(kind) if not name.startswith("_")]
    lacking = ", ".join(name for name in words if not hasattr(part, name))
    raise ConfigurationError(f"{what}: a {type(part).__name__} is no {kind.__name__}; it lacks {lacking}")


def check_listener(listener: object, types: tuple[object, ...]) -> None:
    """Refuse what could never hear an event.

    Raises:
        UsageError: not callable with one argument, or a type that is none of an event.
    """
    if not callable(listener):
        raise UsageError(f"a listener is a function of one event, not {type(listener).__name__}")
    try:
        signature = inspect.signature(listener)
    except ValueError:  # some built-in functions tell none
        signature = None
    if signature is not None:
        try:
            signature.bind(None)
        except TypeError as error:
            name = getattr(listener, "__qualname__", type(listener).__qualname__)
            raise UsageError(f"a listener is called with one event, but {name}{signature}: {error}") from None
    for each in types:
        if not isinstance(each, type) or not issubclass(each, (events.JobEvent, events.JobsBulkRetried)):
            raise UsageError(
                f"the types of a listener are classes of events, like JobCompleted, not {each!r}"
            )


def _check_capabilities(store: JobStore) -> None:
    """A declared capability whose methods are missing is a mistake of the store's author, told at once."""
    for capability, protocol in PROTOCOLS.items():
        if capability in store.capabilities and not isinstance(store, protocol):
            raise CapabilityMissing(
                capability, f"{type(store).__name__} declares {capability!r} but lacks its methods"
            )
