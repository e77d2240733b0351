"""The optional groups a store can declare. A capability is a name; a backend never is.

A store lists names in `capabilities`. The engine switches off the feature whose capability is
missing and says so at start. Capabilities that only add effects (`EFFECT_CAPABILITIES`) need no
method: they are new members of `ratchet.domain.settlement.Effect`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from ratchet.spi.async_store import AsyncJobStore
    from ratchet.spi.coordinator import ClusterCoordinator


class Capability(StrEnum):
    """Names of what a store may offer beyond the mandatory groups."""

    WAKE_UPS = "wake-ups"
    TRANSACTIONAL_ENQUEUE = "transactional-enqueue"
    RECURRING = "recurring"
    BATCH = "batch"
    WORKFLOW = "workflow"
    SIGNAL = "signal"
    PERMIT = "permit"
    LEASE = "lease"
    ARCHIVE = "archive"
    ANALYTICS = "analytics"
    JOB_LOGS = "job-logs"


@runtime_checkable
class WakeUps(Protocol):
    """Capability ``wake-ups``: the store can tell other processes that there is work."""

    def coordinator(self) -> ClusterCoordinator:
        """A new coordinator over this store's own channel; the caller starts and closes it.

        Contracts: WAKE-01, WAKE-02.
        """
        ...


@runtime_checkable
class AsyncUnits(Protocol):
    """Beside ``transactional-enqueue``: a synchronous store that joins transactions of asyncio code, too.

    A transaction belongs to the client, and with asyncio to the event loop, that began it. A store without
    this method is handed such a transaction by `JobStore.insert`, on a thread.
    """

    def async_store_for(self, unit: object) -> AsyncJobStore | None:
        """The same jobs, to be awaited where `unit` was begun; it is not closed by the caller.

        Returns:
            None for whatever `JobStore.insert` takes itself, or refuses.

        Raises:
            UsageError: `unit` is a transaction of another database.
        """
        ...


PROTOCOLS: Final[dict[Capability, type]] = {Capability.WAKE_UPS: WakeUps}
"""What a declared capability must satisfy, for those that have methods."""

EFFECT_CAPABILITIES: Final = frozenset({Capability.BATCH, Capability.WORKFLOW, Capability.SIGNAL})
