"""One submission in the making, for asyncio code: the words of the sync builder, a `submit` to await."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from ratchet.builder import BuilderWords, Draft

if TYPE_CHECKING:
    from ratchet.aio.handle import AsyncJobHandle

R = TypeVar("R")


class AsyncJobBuilder(BuilderWords, Generic[R]):
    """`await builder.submit()` stores the job. Made by `AsyncScheduler.enqueue` and `schedule`."""

    __slots__ = ("_submit",)

    def __init__(
        self, draft: Draft, site: str, submit: Callable[[Draft, object | None], Awaitable[AsyncJobHandle[R]]]
    ) -> None:
        super().__init__(draft, site)
        self._submit = submit

    async def submit(self, *, unit: object | None = None) -> AsyncJobHandle[R]:
        """Store the job. The arguments are encoded off the loop: leave them unchanged until this returns.

        If the awaiting task is cancelled the job may have been stored or not; `submit` on the same builder
        finds out and stores one job in all.

        Args:
            unit: the caller's open transaction, where the store can join it (a session of `AsyncMongoClient`,
                of Motor's client, or of `MongoClient`); see `JobBuilder.submit`, also for what it raises.

        Raises:
            DuplicateBusinessKey: the key is held.
            PayloadError: something cannot travel.
            StoreError: the store did not answer; calling `submit` again on this builder stores one job in all.
        """
        with self.taken() as draft:
            return await self._submit(draft, unit)
