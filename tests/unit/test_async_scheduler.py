"""AsyncScheduler: the same jobs from asyncio code, and a loop that is never blocked."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from ratchet import AsyncScheduler, Backoff, JobOptions, Scheduler, Selection, Status
from ratchet.aio import AsyncJobBuilder
from ratchet.builder import BuilderWords, JobBuilder
from ratchet.errors import (
    ArgumentError,
    ConfigurationError,
    DuplicateBusinessKey,
    JobCanceledError,
    JobFailedError,
    JobPurged,
    NotReplaceable,
    StorePermanentError,
    StoreTransientError,
    UnencodableValue,
    UsageError,
)
from ratchet.query import JobQuery
from ratchet.spi.store import Page
from tests.unit import scheduler_kit as kit
from tests.unit.scheduler_kit import WAIT, Gate

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def scheduler(store_url: str) -> AsyncIterator[AsyncScheduler]:
    scheduler = AsyncScheduler.from_url(store_url, allow=[kit.__name__])
    yield scheduler
    for gate in kit.gates.values():
        gate.leave.set()
    kit.gates.clear()
    await scheduler.close()


@pytest.fixture
def name() -> str:
    text = uuid4().hex
    kit.gates[text] = Gate()
    return text


async def entered(name: str) -> None:
    assert await asyncio.to_thread(kit.gates[name].entered.wait, WAIT)


# -- submission and results --------------------------------------------------------------------------------------


async def test_submission_and_result(scheduler: AsyncScheduler) -> None:
    """Sync and async bodies are submitted, executed and answered; the words of the builder are stored."""
    async with scheduler:
        builder = scheduler.enqueue(kit.add, 1, b=2).with_tags("x").with_max_retries(2)
        handle = await builder.submit()
        assert await handle.result(timeout=WAIT) == 3
        job = await handle.job()
        assert job is not None
        assert (job.tags, job.max_retries) == (frozenset({"x"}), 2)
        assert await handle.status() is Status.SUCCEEDED
        later = await scheduler.enqueue_now(kit.add_later, 5)
        assert await later.result(timedelta(seconds=WAIT)) == 6
        assert scheduler.handle(later.id).created is False


async def test_scheduling(scheduler: AsyncScheduler) -> None:
    """A delayed job is stored with its due time, and a naive datetime is refused at once."""
    handle = await scheduler.schedule(timedelta(hours=1), kit.add, 1).submit()
    job = await handle.job()
    assert job is not None
    assert job.scheduled_time == job.created_at + timedelta(hours=1)
    with pytest.raises(UsageError, match="a due time is"):
        scheduler.schedule(30, kit.add, 1)  # type: ignore[call-overload]


async def test_failures_are_raised_where_they_are_awaited(scheduler: AsyncScheduler, name: str) -> None:
    """A failed, a canceled and a deleted job raise their own errors from `result`."""
    async with scheduler:
        failed = await scheduler.enqueue(kit.fail, name).with_backoff(Backoff.none()).submit()
        with pytest.raises(JobFailedError, match="no luck"):
            await failed.result(timeout=WAIT)
    canceled = await scheduler.enqueue(kit.add, 1).submit()
    assert await scheduler.cancel(canceled.id)
    with pytest.raises(JobCanceledError):
        await canceled.result(timeout=WAIT)
    for timeout in (0, WAIT):
        with pytest.raises(JobPurged):
            await scheduler.handle(uuid4()).result(timeout=timeout)


async def test_wrong_submissions_raise_at_once(scheduler: AsyncScheduler) -> None:
    """A wrong call fails at enqueue, a value that cannot travel when the submission is awaited."""
    with pytest.raises(ArgumentError):
        scheduler.enqueue(kit.add)  # type: ignore[call-overload]
    with pytest.raises(UnencodableValue, match="argument 'what'"):
        await scheduler.enqueue(kit.say, object()).submit()
    assert await scheduler.query.count() == 0


async def test_many(scheduler: AsyncScheduler, name: str) -> None:
    """Bulk submission answers handles in order, merges taken keys, and stores all or nothing."""
    async with scheduler:
        handles = await scheduler.enqueue_many(
            kit.add, [(1,), (2,), (1,)], idempotency_key=f"{name}-{{0}}".format
        )
        assert [handle.created for handle in handles] == [True, True, False]
        assert [await handle.result(timeout=WAIT) for handle in handles] == [2, 3, 2]
        builders = [scheduler.enqueue(kit.add, 4), scheduler.enqueue(kit.add_later, 5)]
        assert [await each.result(timeout=WAIT) for each in await scheduler.submit_many(builders)] == [5, 6]
    with pytest.raises(DuplicateBusinessKey):
        await scheduler.enqueue_many(kit.add, [(1,), (1,)], business_key=f"{name}-{{0}}".format)
    with pytest.raises(UsageError, match="has been submitted"):
        await builders[0].submit()


async def test_a_builder_submitted_twice_at_once_is_refused(scheduler: AsyncScheduler) -> None:
    """Two tasks that submit one builder at the same moment store one job."""
    builder = scheduler.enqueue(kit.add, 1)
    answers = await asyncio.gather(builder.submit(), builder.submit(), return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["AsyncJobHandle", "UsageError"]
    assert await scheduler.query.count() == 1


async def test_an_abandoned_builder_warns_with_its_call_site(scheduler: AsyncScheduler) -> None:
    """A builder whose submit was never awaited is told with the line at which it was made."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scheduler.enqueue(kit.add, 1).with_tags("x")
        gc.collect()
    (told,) = [str(each.message) for each in caught if each.category is ResourceWarning]
    assert told.startswith(f"the job built at {__file__}:")


# -- control and reading -----------------------------------------------------------------------------------------


async def test_control(scheduler: AsyncScheduler, name: str) -> None:
    """Pause, resume, retry, cancel by tag and replace answer as their sync twins do."""
    handle = await scheduler.enqueue(kit.fail_times, name, 1).submit()
    assert await scheduler.pause(handle.id)
    assert await scheduler.resume(handle.id)
    assert await scheduler.resume(handle.id) is False
    async with scheduler:
        assert (await handle.wait(WAIT)).status is Status.FAILED
    assert await scheduler.retry(handle.id)
    assert await scheduler.retry(handle.id) is False
    new = await scheduler.replace(handle.id, scheduler.enqueue(kit.add, 1).with_tags("t"))
    with pytest.raises(NotReplaceable):
        await scheduler.replace(handle.id, scheduler.enqueue(kit.add, 1))
    assert await scheduler.cancel_tagged("t") == 1
    assert await new.status() is Status.CANCELED
    chosen = await scheduler.retry_all(Selection(tags=frozenset({"t"})), on_conflict="skip")
    assert chosen.ids == []


async def test_cancel_of_a_running_body_on_the_applications_loop(
    scheduler: AsyncScheduler, name: str
) -> None:
    """A node started with this loop runs async bodies on it, and a cancel ends the body's task."""
    async with _started(scheduler, loop=asyncio.get_running_loop()):
        handle = await scheduler.enqueue(kit.stay_async, name).submit()
        await entered(name)
        assert await scheduler.cancel(handle.id)
        with pytest.raises(JobCanceledError):
            await handle.result(timeout=WAIT)


class _started:  # noqa: N801
    def __init__(self, scheduler: AsyncScheduler, loop: asyncio.AbstractEventLoop) -> None:
        self.scheduler, self.loop = scheduler, loop

    async def __aenter__(self) -> None:
        await self.scheduler.start(loop=self.loop)

    async def __aexit__(self, *error: object) -> None:
        await self.scheduler.stop(timeout=5)


async def test_query(scheduler: AsyncScheduler) -> None:
    """Every reading of the sync query has a twin with the same answer."""
    handles = await scheduler.enqueue_many(kit.add, [(i,) for i in range(620)], options=JobOptions())
    query, sync = scheduler.query, scheduler.scheduler.query
    page = await query.find(limit=10)
    assert [job.id for job in page.jobs] == [job.id for job in sync.find(limit=10).jobs]
    assert [job.id async for job in query.iterate()] == sorted(handle.id for handle in handles)
    assert await query.count(Selection(ids=frozenset({handles[0].id}))) == 1
    assert (await query.counts())[Status.PENDING] == 620
    detail = await query.detail(handles[3].id)
    assert detail is not None
    assert query.arguments(detail.job) == ((3,), {})
    assert (await query.health(window=timedelta(minutes=1))).window == timedelta(minutes=1)
    assert await query.nodes() == []
    assert await scheduler.get(uuid4()) is None


async def test_the_faces_offer_the_same() -> None:
    """Every public method of the sync scheduler and query has its async twin, and the builders share their words."""
    left_to_sync = {"from_url", "store", "node", "services"}

    def public(cls: type) -> set[str]:
        return {each for each in dir(cls) if not each.startswith("_")}

    assert public(Scheduler) - public(AsyncScheduler) - {"query"} <= left_to_sync
    assert public(JobQuery) == public(type(AsyncScheduler(Scheduler.from_url("memory://")).query))
    assert public(JobBuilder) == public(AsyncJobBuilder) >= public(BuilderWords)


async def test_listeners(scheduler: AsyncScheduler) -> None:
    """An async listener runs on the loop, one event after the other; a sync one is called on its thread."""
    heard: list[tuple[str, bool]] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def listen(event: Any) -> None:
        await asyncio.sleep(0)
        heard.append((type(event).__name__, asyncio.get_running_loop() is loop))
        if len(heard) == 2:
            done.set()

    threads: list[str] = []
    scheduler.add_listener(listen)
    scheduler.add_listener(lambda event: threads.append(threading.current_thread().name))
    with pytest.raises(UsageError, match="an async def"):
        scheduler.scheduler.add_listener(listen)
    with pytest.raises(UsageError, match="needs a running event loop"):
        await asyncio.to_thread(scheduler.add_listener, listen)
    async with scheduler:
        await (await scheduler.enqueue(kit.add, 1).submit()).result(timeout=WAIT)
        await asyncio.wait_for(done.wait(), WAIT)
    assert heard == [("JobStarted", True), ("JobCompleted", True)]
    assert set(threads) <= {name for name in threads if name.startswith("ratchet-listener")}


# -- the loop is not blocked -------------------------------------------------------------------------------------


class Slow:
    """A store whose calls hang until they are let go."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.go = threading.Event()
        self.inside = threading.Semaphore(0)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found) or name in ("close", "now"):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self.inside.release()
            assert self.go.wait(WAIT)
            return found(*args, **kwargs)

        return call


async def test_a_store_that_hangs_does_not_block_the_loop() -> None:
    """While store calls hang, other tasks of the loop go on; the calls end when the store answers."""
    scheduler = AsyncScheduler.from_url("memory://", allow=[kit.__name__])
    slow: Any = Slow(scheduler.scheduler.store)
    scheduler.scheduler.store = slow
    submission = asyncio.create_task(scheduler.enqueue(kit.add, 1).submit())
    count = asyncio.create_task(scheduler.query.count())
    ticks = inside = 0
    while inside < 2:
        inside += slow.inside.acquire(blocking=False)
        ticks += 1
        await asyncio.sleep(0.001)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not submission.done()
    assert not count.done()
    assert ticks > 0
    slow.go.set()
    assert (await submission).created
    assert await count in (0, 1)
    await scheduler.close()


async def test_waiting_handles_hold_no_thread(store_url: str) -> None:
    """With one thread, 300 handles wait at once, other calls pass them, and every one gets its answer."""
    scheduler = AsyncScheduler.from_url(store_url, allow=[kit.__name__], threads=1)
    handles = await scheduler.enqueue_many(kit.add, [(i,) for i in range(300)])
    waiting = [asyncio.create_task(handle.result()) for handle in handles]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(scheduler.query.count(), WAIT) == 300
    assert not any(task.done() for task in waiting)
    async with scheduler:
        assert await asyncio.wait_for(asyncio.gather(*waiting), WAIT) == [i + 1 for i in range(300)]
    await scheduler.close()


async def test_a_result_of_another_process_is_seen(store_url: str) -> None:
    """A handle sees what a node with no connection to this object has done: it reads the store."""
    scheduler = AsyncScheduler.from_url(store_url, allow=[kit.__name__])
    worker = Scheduler.from_url(store_url, allow=[kit.__name__])
    handle = await scheduler.enqueue(kit.add, 1).submit()
    waiting = asyncio.create_task(handle.result(timeout=WAIT))
    await asyncio.sleep(0)
    await asyncio.to_thread(worker.start)
    assert await waiting == 2
    await asyncio.to_thread(worker.close)
    await scheduler.close()


async def test_a_deleted_job_among_many_is_told(
    scheduler: AsyncScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where many jobs are waited for, one that is deleted under way raises JobPurged, and the others wait on."""
    handles = await scheduler.enqueue_many(kit.add, [(i,) for i in range(60)])
    inner = scheduler.scheduler.store
    with monkeypatch.context() as patch:  # both steps between two looks
        patch.setattr(inner, "find", lambda *args, **kwargs: Page([], None))
        waiting = [asyncio.create_task(handle.wait()) for handle in handles]
        await scheduler.query.count()
        assert await scheduler.cancel(handles[0].id)
        inner.delete([handles[0].id])
    with pytest.raises(JobPurged):
        await waiting[0]
    assert not any(task.done() for task in waiting[1:])
    for task in waiting[1:]:
        task.cancel()
    assert {type(each) for each in await asyncio.gather(*waiting[1:], return_exceptions=True)} == {
        asyncio.CancelledError
    }


async def test_timeouts(scheduler: AsyncScheduler) -> None:
    """`result` gives up in time with the builtin error; at zero it looks once."""
    handle = await scheduler.enqueue(kit.add, 1).submit()
    with pytest.raises(TimeoutError, match=f"job {handle.id} has not settled after 0.05 s"):
        await handle.result(timeout=0.05)
    with pytest.raises(TimeoutError, match="it is PENDING"):
        await handle.result(timeout=0)


async def test_an_unreachable_store_is_waited_out(
    scheduler: AsyncScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transient store error does not end a wait, a permanent one does."""
    handle = await scheduler.enqueue(kit.add, 1).submit()
    store = scheduler.scheduler.store
    errors: list[Exception] = [StoreTransientError("away"), StoreTransientError("away")]
    asked, real = threading.Event(), store.get_many

    def broken(ids: Any) -> Any:
        if errors:
            raise errors.pop()
        asked.set()
        return real(ids)

    monkeypatch.setattr(store, "get_many", broken)
    waiting = asyncio.create_task(handle.wait(WAIT))
    assert await asyncio.to_thread(asked.wait, WAIT)
    assert not waiting.done()
    errors.append(StorePermanentError("the file is gone"))
    with pytest.raises(StorePermanentError, match="the file is gone"):
        await waiting


# -- cancellation of the awaiting task ---------------------------------------------------------------------------


async def test_canceling_a_waiting_task_leaves_the_job(scheduler: AsyncScheduler) -> None:
    """A task that stops waiting leaves the job as it is, and nothing behind: later waits work."""
    handle = await scheduler.enqueue(kit.add, 1).submit()
    waiting = asyncio.create_task(handle.result())
    other = asyncio.create_task(handle.result())
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await handle.status() is Status.PENDING
    async with scheduler:
        assert await asyncio.wait_for(other, WAIT) == 2
        assert await handle.result(timeout=WAIT) == 2


async def test_canceling_a_submission_never_stores_two_jobs() -> None:
    """A submission whose task was canceled under way is found again by submitting the same builder."""
    scheduler = AsyncScheduler.from_url("memory://", allow=[kit.__name__])
    inner = scheduler.scheduler.store
    slow: Any = Slow(inner)
    scheduler.scheduler.store = slow
    builder = scheduler.enqueue(kit.add, 1)
    task = asyncio.create_task(builder.submit())
    assert await asyncio.to_thread(slow.inside.acquire, timeout=WAIT)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    slow.go.set()
    handle = await builder.submit()
    assert [job.id for job in scheduler.scheduler.query.iterate()] == [handle.id]
    await scheduler.close()


async def test_a_canceled_call_that_fails_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    """An error of a call whose task has gone is nobody's: it is neither raised nor logged by the loop."""
    scheduler = AsyncScheduler.from_url("memory://", allow=[kit.__name__])
    slow: Any = Slow(scheduler.scheduler.store)
    scheduler.scheduler.store = slow
    task = asyncio.create_task(scheduler.query.find(limit=0))
    assert await asyncio.to_thread(slow.inside.acquire, timeout=WAIT)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    slow.go.set()
    await scheduler.query.counts()
    gc.collect()
    assert caplog.records == []
    await scheduler.close()


# -- life --------------------------------------------------------------------------------------------------------


async def test_one_scheduler_serves_several_loops(store_url: str) -> None:
    """An AsyncScheduler in a module is used from one event loop after the other, and from two at once."""
    scheduler = AsyncScheduler.from_url(store_url, allow=[kit.__name__])
    scheduler.scheduler.start()

    async def use(n: int) -> int:
        return await (await scheduler.enqueue(kit.add, n).submit()).result(timeout=WAIT)

    def in_a_loop(n: int) -> int:
        return asyncio.run(use(n))

    run: Callable[[int], Any] = lambda n: asyncio.to_thread(in_a_loop, n)
    assert await run(1) == 2
    assert list(await asyncio.gather(run(2), run(3), use(4))) == [3, 4, 5]
    await scheduler.close()


async def test_start_and_stop(scheduler: AsyncScheduler, name: str) -> None:
    """`stop` reports what was released, without blocking the loop; a second stop does nothing."""
    assert await scheduler.start() is scheduler
    handle = await scheduler.enqueue(kit.stay, name).submit()
    await entered(name)
    stopped = await scheduler.stop(timeout=0.2)
    assert stopped.released == (handle.id,)
    assert (await scheduler.stop()).drained
    assert repr(scheduler).startswith("<AsyncScheduler for <Scheduler on ")


async def test_no_threads_is_refused() -> None:
    """An AsyncScheduler without a thread could do nothing."""
    with pytest.raises(ConfigurationError, match="at least one thread, not 0"):
        AsyncScheduler(Scheduler.from_url("memory://"), threads=0)


async def test_an_empty_policy_refuses_to_start() -> None:
    """The refusal of the sync scheduler reaches the awaiting task."""
    scheduler = AsyncScheduler.from_url("memory://")
    with pytest.raises(ConfigurationError, match="nothing may be executed"):
        await scheduler.start()
