# pyright: reportUnnecessaryTypeIgnoreComment=true
"""What the type checkers must know of the front door: `assert_type` proves what is inferred, an ignore comment
that is needed proves what is refused (an unneeded one is an error). Checked, never run.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from ratchet import AsyncJobHandle, AsyncScheduler, Backoff, JobHandle, Priority, Scheduler
from ratchet.aio import AsyncJobBuilder
from ratchet.builder import JobBuilder

scheduler = Scheduler.from_url("memory://", allow=["shop"])
aio = AsyncScheduler(scheduler)


@scheduler.job(max_retries=3, backoff=Backoff.exponential(timedelta(seconds=2)))
def charge(invoice_id: int, *, currency: str = "EUR") -> str:
    return f"{invoice_id} {currency}"


@scheduler.job
async def notify(whom: str) -> list[int]:
    return [len(whom)]


@aio.job(name="tidy", tags=["nightly"], priority=Priority.LOW)
def tidy() -> None: ...


class Service:
    def greet(self, whom: str) -> bytes:
        return whom.encode()

    @staticmethod
    def double(x: float) -> float:
        return 2 * x


# -- decorated functions stay what they were

assert_type(charge(1, currency="USD"), str)
a_charge: Callable[[int], str] = charge
charge("1")  # type: ignore[arg-type]
scheduler.job(max_retry=3)  # type: ignore[call-overload]
scheduler.job(priority="high")  # type: ignore[call-overload]

# -- sync: the builder and the handle know the result; the arguments are those of the function

builder = scheduler.enqueue(charge, 42, currency="USD")
assert_type(builder, JobBuilder[str])
assert_type(builder.with_priority(Priority.HIGH).with_tags("a").with_business_key("b"), JobBuilder[str])
assert_type(builder.submit(), JobHandle[str])
assert_type(builder.submit().result(timeout=1), str)
assert_type(scheduler.enqueue(notify, "you").submit().result(), list[int])
assert_type(scheduler.enqueue_now(charge, 1), JobHandle[str])
assert_type(scheduler.enqueue_now(notify, whom="x").result(), list[int])
assert_type(scheduler.schedule(timedelta(1), charge, 1).submit().result(), str)
assert_type(scheduler.schedule(datetime.now(UTC), notify, "x"), JobBuilder[list[int]])
assert_type(scheduler.enqueue_many(charge, [(1,), {"invoice_id": 2}]), list[JobHandle[str]])
assert_type(scheduler.enqueue_many(notify, [("x",)]), list[JobHandle[list[int]]])
assert_type(scheduler.enqueue(Service().greet, "x").submit().result(), bytes)
assert_type(scheduler.enqueue(Service.double, 1.5).submit().result(), float)
assert_type(scheduler.enqueue(tidy).submit().result(), None)
assert_type(scheduler.replace(builder.submit().id, scheduler.enqueue(charge, 1)), JobHandle[str])
assert_type(scheduler.submit_many([builder]), list[JobHandle[Any]])

scheduler.enqueue(charge)  # type: ignore[call-overload]
scheduler.enqueue(charge, "42")  # type: ignore[call-overload]
scheduler.enqueue(charge, 42, "USD")  # type: ignore[call-overload]
scheduler.enqueue(charge, 42, colour="red")  # type: ignore[call-arg,arg-type]
scheduler.enqueue(notify, 1)  # type: ignore[call-overload]
scheduler.enqueue_now(charge)  # type: ignore[call-overload]
scheduler.schedule(30, charge, 1)  # type: ignore[call-overload]
scheduler.schedule(timedelta(1), charge, "x")  # type: ignore[call-overload]
scheduler.enqueue(42)  # type: ignore[call-overload]
builder.with_priority(3)  # type: ignore[arg-type]
builder.with_timeout(30)  # type: ignore[arg-type]
builder.with_colour("red")  # type: ignore[attr-defined]


# -- asyncio: the same, to be awaited


async def asyncio_face() -> None:
    builder = aio.enqueue(charge, 42, currency="USD")
    assert_type(builder, AsyncJobBuilder[str])
    assert_type(builder.with_max_retries(1).on_success(tidy), AsyncJobBuilder[str])
    handle = await builder.submit()
    assert_type(handle, AsyncJobHandle[str])
    assert_type(await handle.result(timeout=1), str)
    assert_type(await aio.enqueue_now(notify, "x"), AsyncJobHandle[list[int]])
    assert_type(await (await aio.schedule(timedelta(1), notify, "x").submit()).result(), list[int])
    assert_type(await aio.enqueue_many(charge, [(1,)]), list[AsyncJobHandle[str]])
    assert_type(await aio.enqueue_many(notify, [("x",)]), list[AsyncJobHandle[list[int]]])
    assert_type(await aio.replace(handle.id, aio.enqueue(charge, 1)), AsyncJobHandle[str])
    assert_type(await aio.cancel(handle.id), bool)
    async with aio as started:
        assert_type(started, AsyncScheduler)
    aio.enqueue(charge, "42")  # type: ignore[call-overload]
    await aio.enqueue_now(charge)  # type: ignore[call-overload]
    aio.schedule(timedelta(1), notify, 7)  # type: ignore[call-overload]
    await aio.replace(handle.id, scheduler.enqueue(charge, 1))  # type: ignore[arg-type]
    scheduler.replace(handle.id, aio.enqueue(charge, 1))  # type: ignore[arg-type]
