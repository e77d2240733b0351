"""Executors: every attempt begins or is given back, never both; slots are counted, and freed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from conformance_tests.spi.harness import PATIENCE, ExecutorHarness
from conformance_tests.spi.parts import shows
from ratchet.spi.executor import Executor, ExecutorRefused


class Counted:
    """Counts what has happened, and waits for it."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self._changed = threading.Condition()

    def __call__(self, told: Any = None) -> None:
        with self._changed:
            self.told.append(told)
            self._changed.notify_all()

    def await_number(self, number: int) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.told) >= number, timeout=PATIENCE)
        assert came, f"{len(self.told)} of {number} in {PATIENCE:.0f} s"


def _eventually(condition: Callable[[], bool], what: str) -> None:
    """Counters may follow an event by a moment."""
    pause = threading.Event()
    for _ in range(int(PATIENCE * 200)):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError(f"never in {PATIENCE:.0f} s: {what}")


def _blocking(harness: ExecutorHarness, begun: Counted, gate: threading.Event) -> Any:
    def body() -> None:
        begun()
        gate.wait(60)

    return harness.attempt(body)


@shows("EX-01")
def test_it_runs_what_it_takes(executors: ExecutorHarness) -> None:
    """Every attempt that is taken is run once, and its slot is told free with that very attempt."""
    freed, ran = Counted(), Counted()
    executor = executors.started(4, freed)
    attempts = [executors.attempt(partial(ran, n)) for n in range(50)]
    for attempt in attempts:
        executor.submit(attempt)
    freed.await_number(50)
    assert sorted(ran.told) == list(range(50))
    assert {id(each) for each in freed.told} == {id(each) for each in attempts}
    _eventually(lambda: (executor.busy(), executor.waiting()) == (0, 0), "busy and waiting are 0 at rest")
    assert list(executor.running()) == []


@shows("EX-02")
def test_slots(executors: ExecutorHarness) -> None:
    """As many bodies run at once as there are slots, no more; the others wait and are counted."""
    freed, begun, gate = Counted(), Counted(), executors.gate()
    executor = executors.started(3, freed)
    assert executor.slots == 3
    assert executor.name
    attempts = [_blocking(executors, begun, gate) for _ in range(5)]
    for attempt in attempts:
        executor.submit(attempt)
    begun.await_number(3)
    _eventually(lambda: (executor.busy(), executor.waiting()) == (3, 2), "3 busy, 2 waiting")
    running = {id(each) for each in executor.running()}
    assert len(running) == 3
    assert running <= {id(each) for each in attempts}
    assert len(begun.told) == 3
    gate.set()
    freed.await_number(5)
    assert len(begun.told) == 5


@shows("EX-03")
def test_a_freed_slot_is_used(executors: ExecutorHarness) -> None:
    """With one slot, attempts run in the order in which they were handed over."""
    freed, order = Counted(), Counted()
    executor = executors.started(1, freed)
    for number in range(10):
        executor.submit(executors.attempt(partial(order, number)))
    freed.await_number(10)
    assert order.told == list(range(10))


@shows("EX-04")
def test_withdraw(executors: ExecutorHarness) -> None:
    """What has not begun is given back, oldest first, and never begins; what has begun goes on."""
    freed, begun, gate = Counted(), Counted(), executors.gate()
    executor = executors.started(1, freed)
    first = _blocking(executors, begun, gate)
    executor.submit(first)
    begun.await_number(1)
    later = [_blocking(executors, begun, gate) for _ in range(3)]
    for attempt in later:
        executor.submit(attempt)
    _eventually(lambda: executor.waiting() == 3, "3 waiting")
    assert [id(each) for each in executor.withdraw()] == [id(each) for each in later]
    assert executor.withdraw() == []
    assert executor.waiting() == 0
    gate.set()
    freed.await_number(1)
    after = Counted()
    executor.submit(executors.attempt(after))
    after.await_number(1)
    assert len(begun.told) == 1


@shows("EX-05")
def test_withdraw_against_begin(executors: ExecutorHarness) -> None:
    """Whatever the moment, an attempt is given back or begins, never both and never neither."""
    for _ in range(20):
        freed, ran = Counted(), Counted()
        executor = executors.started(2, freed)
        attempts = [executors.attempt(partial(ran, n)) for n in range(20)]
        places = {id(attempt): n for n, attempt in enumerate(attempts)}
        for attempt in attempts:
            executor.submit(attempt)
        back = [places[id(attempt)] for attempt in executor.withdraw()]
        freed.await_number(20 - len(back))
        assert sorted([*back, *ran.told]) == list(range(20))
        executor.close()


@shows("EX-06")
def test_bodies_that_raise(executors: ExecutorHarness) -> None:
    """A body that raises, SystemExit included, frees its slot and harms no other."""
    freed, ran = Counted(), Counted()
    executor = executors.started(1, freed)

    def exits() -> None:
        raise SystemExit(3)

    def fails() -> None:
        raise ValueError("no")

    for body in (fails, exits, fails):
        executor.submit(executors.attempt(body))
    executor.submit(executors.attempt(ran))
    ran.await_number(1)
    freed.await_number(4)


@shows("EX-07")
def test_closed(executors: ExecutorHarness) -> None:
    """A closed executor takes no work, says so, can be closed again, and does not wait for a body."""
    begun, gate, ran = Counted(), executors.gate(), Counted()
    executor = executors.started(2)
    executor.submit(_blocking(executors, begun, gate))
    begun.await_number(1)
    executor.close()
    executor.close()
    with pytest.raises(ExecutorRefused):
        executor.submit(executors.attempt(ran))
    assert ran.told == []


@shows("EX-08")
def test_without_slots(executors: ExecutorHarness) -> None:
    """One without slots refuses work rather than keep it for ever."""
    executor = executors.started(0)
    with pytest.raises(ExecutorRefused):
        executor.submit(executors.attempt(Counted()))


@shows("EX-09")
def test_idle(executors: ExecutorHarness) -> None:
    """One that never had work starts, answers and closes."""
    executor = executors.started(4)
    _assert_idle(executor)
    executor.close()
    _assert_idle(executors.open(4, lambda _: None))  # and before its start


@shows("EX-10")
def test_a_hard_stop_reaches_nobody_else(executors: ExecutorHarness) -> None:
    """Stopping an attempt that has ended, or that has not begun, ends no other body."""
    freed, begun, gate = Counted(), Counted(), executors.gate()
    executor = executors.started(1, freed)
    ended = executors.attempt(Counted())
    executor.submit(ended)
    freed.await_number(1)
    executor.submit(_blocking(executors, begun, gate))
    begun.await_number(1)
    executor.stop_hard(ended)
    executor.stop_hard(executors.attempt(Counted()))
    assert len(executor.running()) == 1
    gate.set()
    freed.await_number(2)


@shows("EX-11")
def test_many_submitters(executors: ExecutorHarness) -> None:
    """Threads may hand over work at the same moment; none of it is lost."""
    freed, ran, barrier = Counted(), Counted(), threading.Barrier(4)
    executor = executors.started(4, freed)

    def hand_over(part: int) -> None:
        barrier.wait(PATIENCE)
        for number in range(25):
            executor.submit(executors.attempt(partial(ran, (part, number))))

    threads = [threading.Thread(target=hand_over, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    freed.await_number(100)
    assert sorted(ran.told) == [(part, number) for part in range(4) for number in range(25)]


def _assert_idle(executor: Executor[Any]) -> None:
    assert (executor.busy(), executor.waiting()) == (0, 0)
    assert list(executor.running()) == []
    with suppress(ExecutorRefused):
        assert executor.withdraw() == []
