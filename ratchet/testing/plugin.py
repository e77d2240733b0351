"""pytest fixtures; loaded by pytest at every start, so it imports nothing of Ratchet until one is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ratchet.scheduler import Scheduler
    from ratchet.testing.clock import VirtualClock
    from ratchet.testing.runner import InlineRunner


@pytest.fixture
def ratchet_clock() -> VirtualClock:
    """A clock that stands still until the test moves it; the clock of `ratchet_scheduler`'s store."""
    from ratchet.testing.clock import VirtualClock

    return VirtualClock()


@pytest.fixture
def ratchet_allow(request: pytest.FixtureRequest) -> Sequence[str]:
    """The module prefixes whose functions may be jobs: the test's own module. Override it to name yours."""
    return [request.module.__name__]


@pytest.fixture
def ratchet_scheduler(ratchet_clock: VirtualClock, ratchet_allow: Sequence[str]) -> Iterator[Scheduler]:
    """A scheduler on an empty store in memory, with `ratchet_clock`; not started."""
    from ratchet.scheduler import Scheduler

    scheduler = Scheduler.from_url("memory://", allow=ratchet_allow, clock=ratchet_clock)
    yield scheduler
    scheduler.close()


@pytest.fixture
def ratchet_runner(ratchet_scheduler: Scheduler, ratchet_clock: VirtualClock) -> Iterator[InlineRunner]:
    """Executes the jobs of `ratchet_scheduler` in the test's own thread."""
    from ratchet.testing.runner import InlineRunner

    with InlineRunner(ratchet_scheduler, clock=ratchet_clock) as runner:
        yield runner
