"""The front door: submit, control, read, and run a node."""

from ratchet.scheduler.front import Scheduler

__all__ = ["Scheduler"]
