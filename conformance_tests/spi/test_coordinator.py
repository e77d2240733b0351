"""Hints between nodes (facts CO): they arrive once, never at their sender, and trouble is quiet."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from conformance_tests.spi.harness import PATIENCE, CoordinatorHarness
from conformance_tests.spi.parts import not_declared, not_offered, shows
from ratchet.domain.priority import Priority
from ratchet.spi.coordinator import ClusterCoordinator, Hint

HIGH = Hint(priority=Priority.HIGH, source="a", executor="threads")


class Listener:
    """Remembers hints, waits for them, and raises when it is told to."""

    def __init__(self, *, raises: bool = False) -> None:
        self.hints: list[Hint] = []
        self.threads: set[int] = set()
        self._raises = raises
        self._changed = threading.Condition()

    def __call__(self, hint: Hint) -> None:
        with self._changed:
            self.hints.append(hint)
            self.threads.add(threading.get_ident())
            self._changed.notify_all()
        if self._raises:
            raise ValueError("a listener that raises")

    def await_hints(self, number: int, within: float) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.hints) >= number, timeout=within)
        assert came, f"only {len(self.hints)} of {number} hints arrived in {within:g} s"


@pytest.fixture
def channel(coordinators: CoordinatorHarness) -> CoordinatorHarness:
    """Coordinators that reach each other; the contracts of delivery are about nothing else."""
    if not coordinators.channel:
        not_declared("a channel to other nodes")
    return coordinators


def _seen(harness: CoordinatorHarness, hint: Hint) -> Hint:
    """What arrives of a hint on this channel."""
    kept = {name: getattr(hint, name) for name in harness.carries}
    return Hint(**kept)


@shows("CO-01")
def test_a_hint_arrives_once(channel: CoordinatorHarness) -> None:
    """What one node announces arrives at another node exactly once."""
    listener = Listener()
    a, _ = channel.listening("a", Listener()), channel.listening("b", listener)
    for number in range(1, 11):
        channel.announce(a, HIGH)
        listener.await_hints(number, channel.latency)
        assert len(listener.hints) == number, "a hint arrived twice"
    assert set(listener.hints) == {_seen(channel, HIGH)}


@shows("CO-02")
@pytest.mark.parametrize("priority", list(Priority))
def test_priorities(channel: CoordinatorHarness, priority: Priority) -> None:
    """Every priority arrives as it was announced."""
    if "priority" not in channel.carries:
        not_declared("the priority of a hint")
    listener = Listener()
    a, _ = channel.listening("a", Listener()), channel.listening("b", listener)
    channel.announce(a, Hint(priority=priority, source="a"))
    listener.await_hints(1, channel.latency)
    assert [hint.priority for hint in listener.hints] == [priority]


@shows("CO-03")
def test_own_hints_are_no_news(channel: CoordinatorHarness) -> None:
    """A node's own announcements never call its listener; another node's do."""
    mine, theirs = Listener(), Listener()
    a, b = channel.listening("a", mine), channel.listening("b", theirs)
    for number in range(1, 6):
        channel.announce(a, HIGH)
        theirs.await_hints(number, channel.latency)
    channel.announce(b, Hint(priority=Priority.LOW, source="b"))
    mine.await_hints(1, channel.latency)
    assert mine.hints == [_seen(channel, Hint(priority=Priority.LOW, source="b"))]


@shows("CO-04")
def test_a_listener_that_raises(channel: CoordinatorHarness) -> None:
    """A listener that raises is called for every further hint, and no other node misses one."""
    bad, good = Listener(raises=True), Listener()
    a = channel.listening("a", Listener())
    failing = channel.listening("b", bad)
    channel.listening("c", good)
    for number in range(1, 51):
        channel.announce(a, HIGH)
        bad.await_hints(number, channel.latency)
        good.await_hints(number, channel.latency)
    assert len(good.hints) == len(bad.hints) == 50
    counters = channel.counters(failing)
    if counters is not None and "listener_failures" in counters:
        failing.close()  # ends what it was doing, so that the last failure is counted
        assert channel.counters(failing) == {**counters, "listener_failures": 50}


@shows("CO-05")
def test_every_node_is_told(channel: CoordinatorHarness) -> None:
    """One announcement reaches every other node."""
    listeners = [Listener() for _ in range(3)]
    a = channel.listening("a", Listener())
    for name, listener in zip("bcd", listeners, strict=True):
        channel.listening(name, listener)
    channel.announce(a, HIGH)
    for listener in listeners:
        listener.await_hints(1, channel.latency)
    assert [len(listener.hints) for listener in listeners] == [1, 1, 1]


@shows("CO-06")
def test_notify_while_the_transport_is_down(coordinators: CoordinatorHarness) -> None:
    """Telling others never raises while nobody can be reached; hints arrive again afterwards."""
    listener = Listener()
    a, b = coordinators.listening("a", Listener()), coordinators.listening("b", listener)
    restore = coordinators.interrupt()
    if restore is None:
        not_offered("a way to take the transport away (interrupt)")
    try:
        for _ in range(3):
            a.notify(HIGH)
    finally:
        restore()
    coordinators.ready(b)
    before = len(listener.hints)
    coordinators.announce(a, HIGH)
    listener.await_hints(before + 1, coordinators.latency)


@shows("CO-08")
def test_closing_twice(coordinators: CoordinatorHarness) -> None:
    """Closing is idempotent, for a coordinator that was started and for one that was not."""
    for coordinator in (coordinators.opened(), coordinators.listening("a", Listener())):
        coordinator.close()
        coordinator.close()


@shows("CO-09")
def test_a_closed_one_is_silent(channel: CoordinatorHarness) -> None:
    """After `close` no listener is called, whatever is announced."""
    closed, there = Listener(), Listener()
    a = channel.listening("a", Listener())
    b = channel.listening("b", closed)
    channel.listening("c", there)
    b.close()
    before = len(closed.hints)
    for number in range(1, 6):
        channel.announce(a, HIGH)
        there.await_hints(number, channel.latency)
    assert len(closed.hints) == before


@shows("CO-10")
@pytest.mark.parametrize("call", ["notify", "watch", "start"])
def test_a_closed_one_does_nothing(coordinators: CoordinatorHarness, call: str) -> None:
    """Notify, watch and start on a closed coordinator are no errors, and nothing is heard."""
    listener = Listener()
    closed = coordinators.listening("a", listener)
    closed.close()
    calls: dict[str, Callable[[], None]] = {
        "notify": lambda: closed.notify(HIGH),
        "watch": lambda: closed.watch(True),
        "start": lambda: closed.start("again", listener),
    }
    calls[call]()
    assert listener.hints == []


@shows("CO-11")
def test_before_it_is_started(coordinators: CoordinatorHarness) -> None:
    """A coordinator that was never started can be told things and closed."""
    coordinator = coordinators.opened()
    coordinator.notify(HIGH)
    coordinator.watch(True)
    coordinator.watch(False)
    coordinator.close()


@shows("CO-12")
def test_source_and_executor(channel: CoordinatorHarness) -> None:
    """Who announced and for which executor arrive exactly, where the channel can tell."""
    if not channel.carries & {"source", "executor"}:
        not_declared("the source and the executor of a hint")
    listener = Listener()
    a, _ = channel.listening("node a%_é", Listener()), channel.listening("b", listener)
    told = Hint(priority=Priority.LOW, source="node a%_é", executor="processes")
    channel.announce(a, told)
    listener.await_hints(1, channel.latency)
    assert listener.hints == [_seen(channel, told)]


@shows("CO-13")
def test_what_was_sent_is_counted(channel: CoordinatorHarness) -> None:
    """Ten announcements are counted as ten."""
    a = channel.listening("a", Listener())
    before = _counter(channel, a, "sent")
    for _ in range(10):
        channel.announce(a, HIGH)
    assert _counter(channel, a, "sent") == before + 10


@shows("CO-14")
def test_what_was_received_is_counted(channel: CoordinatorHarness) -> None:
    """Ten hints that arrive are counted as ten."""
    listener = Listener()
    a, b = channel.listening("a", Listener()), channel.listening("b", listener)
    before = _counter(channel, b, "received")
    for number in range(1, 11):
        channel.announce(a, HIGH)
        listener.await_hints(number, channel.latency)
    b.close()
    assert _counter(channel, b, "received") == before + 10


@shows("CO-15")
def test_listeners_run_elsewhere(channel: CoordinatorHarness) -> None:
    """A listener is called on a thread of the coordinator's, never on that of a caller."""
    listener = Listener()
    a, _ = channel.listening("a", Listener()), channel.listening("b", listener)
    channel.announce(a, HIGH)
    listener.await_hints(1, channel.latency)
    assert threading.get_ident() not in listener.threads


@shows("CO-16")
def test_resting(channel: CoordinatorHarness) -> None:
    """A node that rests and wakes hears of what comes after it woke."""
    listener = Listener()
    a, b = channel.listening("a", Listener()), channel.listening("b", listener)
    for _ in range(3):
        b.watch(False)
        b.watch(True)
        channel.ready(b)
        before = len(listener.hints)
        channel.announce(a, HIGH)
        listener.await_hints(before + 1, channel.latency)


@shows("CO-17")
def test_many_at_once(coordinators: CoordinatorHarness) -> None:
    """Threads that notify, watch and close at the same moment raise nothing and do not hang."""
    coordinator = coordinators.listening("a", Listener())
    barrier, raised = threading.Barrier(8), []

    def work(number: int) -> None:
        barrier.wait(PATIENCE)
        try:
            for _ in range(20):
                coordinator.notify(HIGH)
                coordinator.watch(number % 2 == 0)
            if number == 0:
                coordinator.close()
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not raised
    assert not any(thread.is_alive() for thread in threads), "a call hangs"


def _counter(harness: CoordinatorHarness, coordinator: ClusterCoordinator, name: str) -> int:
    counters = harness.counters(coordinator)
    if counters is None or name not in counters:
        not_offered(f"a counter of what was {name}")
    return counters[name]
