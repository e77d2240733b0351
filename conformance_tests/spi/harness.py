"""What an author of a coordinator or an executor writes for the suite."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ratchet.spi.coordinator import ClusterCoordinator, Hint
from ratchet.spi.executor import Executor

PATIENCE = 10.0
"""Seconds within which a hint arrives, or a body begins, on a busy machine."""


class CoordinatorHarness:
    """One channel, and coordinators on it. Write `open`; the rest is optional.

    Attributes:
        channel: False: these coordinators reach nobody (all contracts of delivery are NOT DECLARED).
        carries: which fields of a `Hint` arrive with it, of ``priority``, ``source`` and ``executor``.
        latency: seconds within which a hint arrives, on a busy machine.
    """

    channel: ClassVar[bool] = True
    carries: ClassVar[frozenset[str]] = frozenset({"priority", "source", "executor"})
    latency: ClassVar[float] = PATIENCE

    def open(self) -> ClusterCoordinator:
        """The coordinator of another node on this channel; not started."""
        raise NotImplementedError

    def ready(self, coordinator: ClusterCoordinator) -> None:
        """Return once a hint that is announced from now on will arrive at this started coordinator."""

    def announce(self, coordinator: ClusterCoordinator, hint: Hint) -> None:
        """Do what a node does that has new work; where the commit itself is the signal, commit something."""
        coordinator.notify(hint)

    def counters(self, coordinator: ClusterCoordinator) -> Mapping[str, int] | None:
        """``sent``, ``received``, ``listener_failures``, as far as it counts them; None: it does not."""
        return None

    def interrupt(self) -> Callable[[], None] | None:
        """Take the transport away, and answer how to bring it back; None: this harness cannot."""
        return None

    def close(self) -> None:
        """Remove the channel."""

    # -- what the suite uses

    def opened(self) -> ClusterCoordinator:
        """`open`, closed at the end of the test."""
        coordinator = self.open()
        self._all().append(coordinator)
        return coordinator

    def listening(self, node: str, listener: Callable[[Hint], None]) -> ClusterCoordinator:
        """A coordinator that has been started, watches, and is ready."""
        coordinator = self.opened()
        coordinator.start(node, listener)
        coordinator.watch(True)
        self.ready(coordinator)
        return coordinator

    def close_all(self) -> None:
        """Close every coordinator, then the channel."""
        for coordinator in self._all():
            coordinator.close()
        self.close()

    def _all(self) -> list[ClusterCoordinator]:
        found: list[ClusterCoordinator] = self.__dict__.setdefault("_opened", [])
        return found


class PlainCoordinators(CoordinatorHarness):
    """For a factory that makes coordinators which find each other by themselves."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory

    def open(self) -> ClusterCoordinator:
        """Another one."""
        made: ClusterCoordinator = self._factory()
        return made


class ExecutorHarness:
    """Makes executors of one kind, and attempts that they can run. Write `open` and `attempt`."""

    def open(self, slots: int, freed: Callable[[Any], None]) -> Executor[Any]:
        """A new executor, not started.

        Args:
            slots: how many bodies at once.
            freed: to be called with the attempt when its body has ended and the slot is free again.
        """
        raise NotImplementedError

    def attempt(self, body: Callable[[], None]) -> Any:
        """An attempt whose body is `body`, which may block its thread until the test lets it go."""
        raise NotImplementedError

    def close(self) -> None:
        """Remove what the harness made."""

    # -- what the suite uses

    def started(self, slots: int, freed: Callable[[Any], None] = lambda _: None) -> Executor[Any]:
        """`open` and start; closed at the end of the test."""
        executor = self.open(slots, freed)
        executor.start()
        self._all().append(executor)
        return executor

    def gate(self) -> threading.Event:
        """What a body may wait for; set at the end of the test at the latest."""
        gate = threading.Event()
        gates: list[threading.Event] = self.__dict__.setdefault("_gates", [])
        gates.append(gate)
        return gate

    def close_all(self) -> None:
        """Let every body go, then close."""
        for gate in self.__dict__.get("_gates", []):
            gate.set()
        for executor in self._all():
            executor.close()
        self.close()

    def _all(self) -> list[Executor[Any]]:
        found: list[Executor[Any]] = self.__dict__.setdefault("_opened", [])
        return found
