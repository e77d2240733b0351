"""Event listeners: each on its own thread behind its own bounded queue (section 12)."""

from __future__ import annotations

import importlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

log = logging.getLogger("ratchet.events")


class _Lazy:
    """A module that is imported with the first use of a name in it: a node without listeners makes no events."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


if TYPE_CHECKING:
    from typing import TypeAlias

    from ratchet.domain import events as events  # noqa: PLC0414 - re-exported

    Event: TypeAlias = events.JobEvent | events.JobsBulkRetried
else:
    events = _Lazy("ratchet.domain.events")
Listener = Callable[[Any], object]
QUEUE_LIMIT: Final = 10_000


class Subscription:
    """One listener. Close it to stop listening.

    Attributes:
        dropped: events lost because the listener was too slow.
        failures: how often the listener raised.
    """

    def __init__(self, listener: Listener, types: tuple[type, ...], bus: Bus) -> None:
        self.listener, self.types = listener, types
        self.dropped = self.failures = 0
        self._bus = bus
        self._closed = False
        self.start_afresh()

    def start_afresh(self) -> None:
        """Nothing heard yet, no thread: at first, and in a child process, whose parent keeps what it had queued."""
        self._queue: deque[Event] = deque()
        self._ready = threading.Condition()
        self._busy = False
        self._thread: threading.Thread | None = None

    def offer(self, event: Event) -> None:
        """Queue it; beyond the limit the oldest goes."""
        if self.types and not isinstance(event, self.types):
            return
        with self._ready:
            if self._closed:
                return
            if len(self._queue) >= QUEUE_LIMIT:
                self._queue.popleft()
                self.dropped += 1
                if self.dropped & (self.dropped - 1) == 0:  # at 1, 2, 4, 8 ...: a warning, not a flood
                    log.warning(
                        "listener %s is too slow: %d events dropped", _name(self.listener), self.dropped
                    )
            self._queue.append(event)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"ratchet-listener-{_name(self.listener)}", daemon=True
                )
                self._thread.start()
            self._ready.notify()

    def _run(self) -> None:
        while True:
            with self._ready:
                self._busy = False
                self._ready.notify_all()
                while not self._queue and not self._closed:
                    self._ready.wait()
                if not self._queue:
                    return
                event = self._queue.popleft()
                self._busy = True
            try:
                self.listener(event)
            except BaseException as error:  # noqa: BLE001 - a listener harms no job, whatever it raises
                self.failures += 1
                log.error("listener %s raised %s", _name(self.listener), type(error).__name__)
            del event

    def drain(self, timeout: float) -> bool:
        """Wait until everything offered so far has been handled; the listener itself does not wait for itself."""
        if self._thread is threading.current_thread():
            return False
        with self._ready:
            return self._ready.wait_for(lambda: not self._queue and not self._busy, timeout)

    def close(self) -> None:
        """Stop listening; what is queued is still delivered."""
        self._bus.remove(self)
        with self._ready:
            self._closed = True
            self._ready.notify_all()


class _Held:
    """Events that wait until a control call has published its own."""

    __slots__ = ("events", "job_id")

    def __init__(self, job_id: UUID | None) -> None:
        self.job_id = job_id
        self.events: list[Event] = []

    def concerns(self, event: Event) -> bool:
        return self.job_id is None or getattr(event, "job_id", None) == self.job_id


class Bus:
    """Delivers events to the listeners of this process."""

    def __init__(self) -> None:
        self._subscriptions: tuple[Subscription, ...] = ()
        self.start_afresh()

    def start_afresh(self) -> None:
        """New locks, and the same listeners: at first, and in a child process."""
        self._lock = threading.Lock()
        self._control = threading.Lock()
        self._held: _Held | None = None
        for subscription in self._subscriptions:
            subscription.start_afresh()

    @property
    def active(self) -> bool:
        """False if nobody listens, so that no event need be made."""
        return bool(self._subscriptions)

    @contextmanager
    def ahead(self, job_id: UUID | None = None) -> Iterator[Callable[[Event], None]]:
        """Commit and publish in the block; what the engine publishes of that job meanwhile comes after it.

        Without it a job that is requeued could be told as started before it is told as requeued: the
        poller claims it between the commit and the event. Control calls wait for each other here.

        Args:
            job_id: whose events wait; None: everybody's (a bulk change).

        Yields:
            What publishes the block's own events.
        """
        if not self.active:
            yield self.publish
            return
        with self._control:
            held = self._held = _Held(job_id)
            try:
                yield self._deliver
            finally:
                with self._lock:
                    self._held = None
                    for event in held.events:
                        self._deliver(event)

    def subscribe(self, listener: Listener, types: Iterable[type] = ()) -> Subscription:
        """Add a listener for some event types (none: all)."""
        subscription = Subscription(listener, tuple(types), self)
        with self._lock:
            self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    def close(self) -> None:
        """End every subscription; what is queued is still delivered."""
        for subscription in self._subscriptions:
            subscription.close()

    def remove(self, subscription: Subscription) -> None:
        """Take a listener out."""
        with self._lock:
            self._subscriptions = tuple(each for each in self._subscriptions if each is not subscription)

    def publish(self, event: Event) -> None:
        """Offer an event to every listener; never blocks, never raises."""
        if self._held is not None:
            with self._lock:
                held = self._held
                if held is not None and held.concerns(event):
                    held.events.append(event)
                    return
        self._deliver(event)

    def _deliver(self, event: Event) -> None:
        for subscription in self._subscriptions:
            subscription.offer(event)

    def drain(self, timeout: float) -> None:
        """Give listeners up to `timeout` seconds to handle what they have been offered."""
        for subscription in self._subscriptions:
            subscription.drain(timeout)


def _name(listener: Listener) -> str:
    name: str = getattr(listener, "__qualname__", None) or type(listener).__qualname__
    return name
