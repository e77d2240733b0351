"""Optional groups: what a store must show that declares one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import cast

import pytest

from conformance_tests.bridge import meets
from conformance_tests.contract import contract
from conformance_tests.driver import new_job
from conformance_tests.under_test import UnderTest
from ratchet.spi.capabilities import WakeUps
from ratchet.spi.coordinator import ClusterCoordinator, Hint
from ratchet.spi.store import JobStore

PATIENCE = 20.0
"""Seconds for a hint to arrive on a busy machine."""


@pytest.fixture
def coordinator(store: JobStore) -> Iterator[Callable[[JobStore], ClusterCoordinator]]:
    """Makes the coordinator of a handle, closed at the end."""
    with ExitStack() as stack:

        def make(handle: JobStore) -> ClusterCoordinator:
            handle.counts()
            assert meets(handle, WakeUps)
            return stack.enter_context(closing(cast("WakeUps", handle).coordinator()))

        yield make


def submit_until(store: JobStore, sender: ClusterCoordinator, heard: threading.Event) -> bool:
    """Submit and tell, as the engine does, until it is heard; a single hint may get lost."""
    for _ in range(int(PATIENCE * 2)):
        store.insert([new_job()])
        sender.notify(Hint(source="a"))
        if heard.wait(0.5):
            return True
    return False


@contract("WAKE-01", capability="wake-ups")
def test_work_wakes_other_nodes(
    under_test: UnderTest, store: JobStore, coordinator: Callable[[JobStore], ClusterCoordinator]
) -> None:
    """What one node submits and tells wakes the listener of another."""
    heard = threading.Event()
    other = coordinator(under_test.open())
    other.start("b", lambda hint: heard.set())
    other.watch(True)
    sender = coordinator(store)
    sender.start("a", lambda hint: None)
    assert submit_until(store, sender, heard)


@contract("WAKE-02", capability="wake-ups")
def test_every_call_makes_a_coordinator(
    under_test: UnderTest, store: JobStore, coordinator: Callable[[JobStore], ClusterCoordinator]
) -> None:
    """Each call makes a new coordinator: closing one, even twice, leaves the others listening."""
    heard = threading.Event()
    handle = under_test.open()
    first, second = coordinator(handle), coordinator(handle)
    assert first is not second
    first.start("b", lambda hint: None)
    second.start("c", lambda hint: heard.set())
    second.watch(True)
    first.close()
    first.close()
    sender = coordinator(store)
    sender.start("a", lambda hint: None)
    assert submit_until(store, sender, heard)
