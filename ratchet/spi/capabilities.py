"""The optional groups a store can declare. A capability is a name; a backend never is.

A store lists names in `capabilities`. The engine switches off the feature whose capability is
missing and says so at start. Capabilities that only add effects (`EFFECT_CAPABILITIES`) need no
method: they are new members of `ratchet.domain.settlement.Effect`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
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


PROTOCOLS: Final[dict[Capability, type]] = {Capability.WAKE_UPS: WakeUps}
"""What a declared capability must satisfy, for those that have methods."""

EFFECT_CAPABILITIES: Final = frozenset({Capability.BATCH, Capability.WORKFLOW, Capability.SIGNAL})
