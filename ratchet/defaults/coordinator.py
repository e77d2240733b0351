"""The default coordinator: no channel to other nodes; they find work by polling."""

from __future__ import annotations

from ratchet.spi.coordinator import Hint, HintListener


class LocalCoordinator:
    """For a store without wake-ups. Local submissions wake the local poller without it."""

    def start(self, node: str, listener: HintListener) -> None:
        """Nothing to listen to."""

    def notify(self, hint: Hint) -> None:
        """Nobody to tell."""

    def watch(self, active: bool) -> None:
        """Nothing to watch."""

    def close(self) -> None:
        """Nothing to close."""
