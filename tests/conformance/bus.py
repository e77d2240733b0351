"""A channel of one process that carries everything a hint has, sound and with one fault each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, ClassVar

from conformance_tests.spi import CoordinatorHarness
from ratchet.domain.priority import Priority
from ratchet.spi.coordinator import ClusterCoordinator, Hint, HintListener


class Coordinator:
    """One node's end of the channel: hints are delivered by a thread of its own."""

    def __init__(self, members: list[Coordinator], down: threading.Event) -> None:
        self.sent = self.received = self.listener_failures = 0
        self._members, self._down = members, down
        self._queue: SimpleQueue[Hint | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self, node: str, listener: HintListener) -> None:
        if self._closed or self._thread is not None:
            return
        self._thread = threading.Thread(target=self._deliver, args=(listener,), name=node, daemon=True)
        self._members.append(self)
        self._thread.start()

    def notify(self, hint: Hint) -> None:
        if self._closed or self._down.is_set():
            return
        with self._lock:
            self.sent += 1
        for member in self.others():
            member.put(hint)

    def others(self) -> list[Coordinator]:
        return [member for member in list(self._members) if member is not self]

    def put(self, hint: Hint) -> None:
        self._queue.put(hint)

    def watch(self, active: bool) -> None:
        """A hint that comes while resting is kept: it costs nothing here."""

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self in self._members:
            self._members.remove(self)
        self._queue.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _deliver(self, listener: HintListener) -> None:
        while (hint := self._queue.get()) is not None:
            if not self.tell(listener, hint):
                return

    def tell(self, listener: HintListener, hint: Hint) -> bool:
        self.received += 1
        try:
            listener(hint)
        except Exception:
            self.listener_failures += 1
        return True


class Bus(CoordinatorHarness):
    """Sound: it can do all that the suite asks for."""

    end: ClassVar[type[Coordinator]] = Coordinator
    latency: ClassVar[float] = 2.0

    def __init__(self) -> None:
        self._members: list[Coordinator] = []
        self._down = threading.Event()

    def open(self) -> ClusterCoordinator:
        return self.end(self._members, self._down)

    def counters(self, coordinator: ClusterCoordinator) -> Mapping[str, int] | None:
        assert isinstance(coordinator, Coordinator)
        return {
            "sent": coordinator.sent,
            "received": coordinator.received,
            "listener_failures": coordinator.listener_failures,
        }

    def interrupt(self) -> Callable[[], None] | None:
        self._down.set()
        return self._down.clear


# -- one fault each -------------------------------------------------------------------------------


class _Twice(Coordinator):
    def put(self, hint: Hint) -> None:
        super().put(hint)
        super().put(hint)


class TellsTwice(Bus):
    end = _Twice


class _Echo(Coordinator):
    def others(self) -> list[Coordinator]:
        return list(self._members)


class Echoes(Bus):
    end = _Echo


class _Flat(Coordinator):
    def put(self, hint: Hint) -> None:
        super().put(Hint(priority=Priority.NORMAL, source=hint.source, executor=hint.executor))


class FlattensPriorities(Bus):
    end = _Flat


class _Mute(Coordinator):
    def put(self, hint: Hint) -> None:
        super().put(Hint(priority=hint.priority, source=hint.source))


class LosesTheExecutor(Bus):
    end = _Mute


class _Fragile(Coordinator):
    def tell(self, listener: HintListener, hint: Hint) -> bool:
        failures = self.listener_failures
        super().tell(listener, hint)
        return self.listener_failures == failures


class StopsAtAListenerThatRaises(Bus):
    end = _Fragile


class _Unicast(Coordinator):
    def others(self) -> list[Coordinator]:
        return super().others()[:1]


class TellsOneNode(Bus):
    end = _Unicast


class _Loud(Coordinator):
    def notify(self, hint: Hint) -> None:
        if self._down.is_set():
            raise ConnectionError("no route")
        super().notify(hint)


class RaisesWhenDown(Bus):
    end = _Loud


class _Once(Coordinator):
    def close(self) -> None:
        if self._closed:
            raise RuntimeError("closed already")
        super().close()


class ClosesOnce(Bus):
    end = _Once

    def close_all(self) -> None:
        """The suite's own second close is not what is tested."""


class _Sticky(Coordinator):
    def close(self) -> None:
        """Goes on listening."""


class ListensAfterClose(Bus):
    end = _Sticky


class _Same(Coordinator):
    def start(self, node: str, listener: HintListener) -> None:
        self._listener = listener
        self._members.append(self)

    def put(self, hint: Hint) -> None:
        self.tell(self._listener, hint)


class TellsOnTheCallersThread(Bus):
    end = _Same


class _Miscounts(Coordinator):
    def notify(self, hint: Hint) -> None:
        super().notify(hint)
        self.sent += 1


class CountsTwice(Bus):
    end = _Miscounts


class _Dozy(Coordinator):
    resting = False

    def watch(self, active: bool) -> None:
        self.resting = self.resting or not active

    def put(self, hint: Hint) -> None:
        if not self.resting:
            super().put(hint)


class NeverWakes(Bus):
    end = _Dozy


BROKEN: dict[Any, str] = {
    TellsTwice: "CO-01",
    FlattensPriorities: "CO-02",
    Echoes: "CO-03",
    StopsAtAListenerThatRaises: "CO-04",
    TellsOneNode: "CO-05",
    RaisesWhenDown: "CO-06",
    ClosesOnce: "CO-08",
    ListensAfterClose: "CO-09",
    LosesTheExecutor: "CO-12",
    CountsTwice: "CO-13",
    TellsOnTheCallersThread: "CO-15",
    NeverWakes: "CO-16",
}
