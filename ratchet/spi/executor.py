"""Where bodies run. The engine hands over attempts and is told when a slot is free again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from ratchet.errors import RatchetError

AttemptT = TypeVar("AttemptT", contravariant=True)


class ExecutorRefused(RatchetError):
    """The executor takes no work now; the claim is released, nothing is charged (section 1, release)."""


@runtime_checkable
class Executor(Protocol[AttemptT]):
    """Runs the bodies of one kind: ``threads``, ``async`` or ``processes``.

    Contracts: EX-01 ... EX-11.
    """

    @property
    def name(self) -> str:
        """The word that jobs store as their executor."""
        ...

    @property
    def slots(self) -> int:
        """How many bodies at once."""
        ...

    def busy(self) -> int:
        """How many bodies have begun and not ended, stuck ones included."""
        ...

    def waiting(self) -> int:
        """How many attempts were handed over and have not begun."""
        ...

    def running(self) -> Sequence[Any]:
        """The attempts whose bodies have begun and not ended."""
        ...

    def submit(self, attempt: AttemptT) -> None:
        """Take an attempt; it begins when a slot is free. `ExecutorRefused` if it never will."""
        ...

    def withdraw(self) -> list[object]:
        """Give back every attempt that has not begun, oldest first; each is given back or begins, never both."""
        ...

    def stop_hard(self, attempt: AttemptT) -> None:
        """The deadline has passed: end the body by force, as far as this executor can."""
        ...

    def start(self) -> None:
        """Make the threads, loop or children."""
        ...

    def close(self) -> None:
        """Take no more work and let go of everything; does not wait for bodies that never end."""
        ...
