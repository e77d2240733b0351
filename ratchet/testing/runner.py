"""Executes due jobs in the calling thread, one after the other, in the order in which a node would claim them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from ratchet.errors import UsageError
from ratchet.testing.node import Draw, InlineNode, Ran

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from ratchet.scheduler import Scheduler
    from ratchet.testing.clock import VirtualClock

MOST: Final = 1000


class InlineRunner:
    """Runs jobs without threads, deterministically, through the real store, codec, pipeline and settlement.

    Arguments and results make the round trip through the codec, retries and time limits follow the store's
    clock, listeners and callbacks have been called when a method returns.

    Args:
        scheduler: whose jobs; it need not be started.
        clock: the store's clock, for `advance` and `run_all`.
        draw: random numbers in [0, 1) for the jitter of back-offs (default: always 0).
    """

    def __init__(
        self, scheduler: Scheduler, *, clock: VirtualClock | None = None, draw: Draw = lambda: 0.0
    ) -> None:
        self.scheduler, self.clock = scheduler, clock
        self.node = InlineNode(scheduler, draw=draw)
        self._next_due: datetime | None = None

    def run_one(self) -> Ran | None:
        """Execute the next due job; None if none is due."""
        claim, self._next_due = self.node.look()
        return None if claim is None else self.node.execute(claim)

    def run_pending(self, *, most: int = MOST) -> list[Ran]:
        """Execute every job that is due, also those that become due meanwhile; answers what ran, in order.

        Args:
            most: executions after which jobs count as an endless loop.

        Raises:
            UsageError: jobs were still due after `most` executions.
        """
        self.node.left_out.clear()
        ran: list[Ran] = []
        while (one := self.run_one()) is not None:
            ran.append(one)
            if len(ran) > most:
                raise UsageError(
                    f"jobs are still due after {most} executions; do they submit each other endlessly?"
                )
        return ran

    def advance(self, step: timedelta, *, most: int = MOST) -> list[Ran]:
        """Let time pass: every job that becomes due on the way runs at its due time, in order.

        Raises:
            UsageError: no clock was given, or a negative step.
        """
        clock = self._clock()
        if step < timedelta():
            raise UsageError(f"a clock does not run backwards: {step}")
        end = clock.now() + step
        ran = self.run_pending(most=most)
        while (due := self._next_due) is not None and clock.now() < due <= end:
            clock.set(due)
            ran += self.run_pending(most=most)
        if clock.now() < end:  # a body may have moved the clock itself
            clock.set(end)
        return ran + self.run_pending(most=most)

    def run_all(self, *, advance: bool = True, most: int = MOST) -> list[Ran]:
        """Run until idle: jump from one due time to the next until no job is waiting for its time.

        Args:
            advance: False: do not move the clock; then it is `run_pending`.
            most: as there, in all.

        Raises:
            UsageError: no clock was given, or more than `most` executions.
        """
        ran = self.run_pending(most=most)
        if not advance:
            return ran
        clock = self._clock()
        while (due := self._next_due) is not None and due > clock.now():
            clock.set(due)
            ran += self.run_pending(most=most)
            if len(ran) > most:
                raise UsageError(
                    f"jobs are still waiting after {most} executions; do they submit each other endlessly?"
                )
        return ran

    def _clock(self) -> VirtualClock:
        if self.clock is None:
            raise UsageError(
                "time can only be moved with InlineRunner(scheduler, clock=...): the VirtualClock of its store"
            )
        return self.clock

    def close(self) -> None:
        """Let go of the event loop, if async bodies have made one."""
        self.node.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """`close`."""
        self.close()


def run_pending(scheduler: Scheduler, *, most: int = MOST) -> list[Ran]:
    """Execute every due job of `scheduler` in the calling thread; as `InlineRunner.run_pending`."""
    with InlineRunner(scheduler) as runner:
        return runner.run_pending(most=most)
