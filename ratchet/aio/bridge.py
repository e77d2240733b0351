"""Carries short store calls to a few threads of their own, so that the event loop never waits for a database."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ratchet.errors import ConfigurationError

T = TypeVar("T")


class Bridge:
    """Bounded threads for calls that block briefly; made at the first call, and anew in a forked child.

    The calling task's context variables are visible to the call. A task that is cancelled while it waits
    leaves at once: a call that has not begun is dropped, one that has begun ends on its own.

    Args:
        threads: how many calls at once; further ones queue.
    """

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise ConfigurationError(f"AsyncScheduler needs at least one thread, not {threads}")
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0

    async def run(self, call: Callable[[], T]) -> T:
        """`call()` on one of the threads."""
        if self._pool is None or self._pid != os.getpid():
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="ratchet-aio")
            self._pid = os.getpid()
        return await _awaited(self._pool, call)

    @staticmethod
    async def run_aside(call: Callable[[], T]) -> T:
        """`call()` on a thread made for it: it may take long, and must not take a place from the short ones."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="ratchet-aio-aside")
        try:
            return await _awaited(pool, call)
        finally:
            pool.shutdown(wait=False)

    def close(self) -> None:
        """Let the threads end; a later call makes new ones."""
        pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.shutdown(wait=False)


async def _awaited(pool: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(pool, context.run, call)
