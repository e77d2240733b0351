"""Ratchet for asyncio code: submission, control and query without blocking the event loop."""

from ratchet.aio.builder import AsyncJobBuilder
from ratchet.aio.handle import AsyncJobHandle
from ratchet.aio.query import AsyncJobQuery
from ratchet.aio.scheduler import AsyncScheduler

__all__ = ["AsyncJobBuilder", "AsyncJobHandle", "AsyncJobQuery", "AsyncScheduler"]
