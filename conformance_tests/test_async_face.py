"""The store awaited from an event loop: natively, or a sync store through threads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from conformance_tests.bridge import async_face
from conformance_tests.contract import contract
from conformance_tests.driver import new_job, request
from conformance_tests.under_test import UnderTest
from ratchet.domain.lifecycle import Status, Trigger
from ratchet.domain.settlement import Change, Settlement
from ratchet.errors import DuplicateBusinessKey
from ratchet.spi.async_store import AsyncJobStore
from ratchet.spi.store import Settled


@asynccontextmanager
async def awaited(under_test: UnderTest) -> AsyncIterator[AsyncJobStore]:
    """A handle to be awaited on the running loop."""
    if under_test.flavour == "async":
        opened: Any = under_test.harness.open_async()
        store: AsyncJobStore = await opened if inspect.isawaitable(opened) else opened
    else:
        store = async_face(under_test.harness.open())
    try:
        yield store
    finally:
        await store.close()


def run(under_test: UnderTest, scenario: Callable[[AsyncJobStore], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with awaited(under_test) as store:
            await scenario(store)

    asyncio.run(asyncio.wait_for(whole(), 100))


@contract("ASYNC-01")
def test_a_life_awaited(under_test: UnderTest) -> None:
    """A job is submitted, claimed, settled and read by awaiting; errors arrive where they are awaited."""

    async def scenario(store: AsyncJobStore) -> None:
        assert isinstance(store, AsyncJobStore)
        new = new_job(business_key="k")
        await store.insert([new])
        with pytest.raises(DuplicateBusinessKey) as raised:
            await store.insert([new_job(business_key="k")])
        assert raised.value.holder == new.id
        (claim,) = (await store.claim(request())).claims
        change = Change(Trigger.SUCCEED, new.id, claim.claim_seq, result="1")
        assert isinstance(await store.settle(Settlement(change)), Settled)
        job = await store.get(new.id)
        assert job is not None
        assert (job.status, job.result) == (Status.SUCCEEDED, "1")
        assert [entry.claim_seq for entry in await store.history(new.id)] == [1]

    run(under_test, scenario)


@contract("ASYNC-02")
def test_many_awaited_at_once(under_test: UnderTest) -> None:
    """Many tasks of one event loop submit and claim at once: every job is claimed exactly once."""

    async def scenario(store: AsyncJobStore) -> None:
        new = [new_job() for _ in range(60)]
        await asyncio.gather(*(store.insert([each]) for each in new))

        async def drain(incarnation: str) -> list[UUID]:
            got: list[UUID] = []
            while True:
                answer = await store.claim(request(incarnation, 4))
                got += [claim.job_id for claim in answer.claims]
                if not answer.claims and not answer.more:
                    return got

        shares = await asyncio.gather(*(drain(f"n{number}") for number in range(6)))
        assert sorted(job_id for share in shares for job_id in share) == sorted(each.id for each in new)

    run(under_test, scenario)


@contract("ASYNC-03")
def test_a_canceled_task_leaves_the_store_well(under_test: UnderTest) -> None:
    """Tasks canceled while they await the store leave it usable, and each job whole or absent."""

    async def scenario(store: AsyncJobStore) -> None:
        new = [new_job(idempotency_key=f"k{number}") for number in range(30)]
        tasks = [asyncio.ensure_future(store.insert([each])) for each in new]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        repeated = await asyncio.gather(*(store.insert([each]) for each in new))
        assert [answer.id for (answer,) in repeated] == [each.id for each in new]
        assert sum((await store.counts()).values()) == len(new)

    run(under_test, scenario)
