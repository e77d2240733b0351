"""Wake-ups between nodes. They are hints: polling is right without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from ratchet.domain.priority import Priority


@dataclass(frozen=True, slots=True)
class Hint:
    """There may be work.

    Attributes:
        priority: of the work; None if the channel cannot tell.
        source: the node that said it; None if the channel cannot tell.
        executor: where it would run; None if the channel cannot tell.
    """

    priority: Priority | None = None
    source: str | None = None
    executor: str | None = None


HintListener: TypeAlias = Callable[[Hint], None]


@runtime_checkable
class ClusterCoordinator(Protocol):
    """Carries hints from the node that submits to the nodes that poll.

    Contracts: CO-01 ... CO-06, CO-08 ... CO-17.
    """

    def start(self, node: str, listener: HintListener) -> None:
        """Begin to listen: `listener` is called, on a thread of the coordinator's, for hints of other nodes.

        A listener that raises is counted and logged and harms nobody else. Never blocks on the network.
        """
        ...

    def notify(self, hint: Hint) -> None:
        """Tell the others. Never raises and never blocks for long; no-op when closed or out of reach."""
        ...

    def watch(self, active: bool) -> None:
        """Say whether this node could use a hint (it has free slots); a watcher may rest meanwhile."""
        ...

    def close(self) -> None:
        """Stop listening. Idempotent; afterwards no listener is called."""
        ...
