"""What is wrong is refused where it is made, with a sentence of Ratchet's own, and not by the first job."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from ratchet import (
    Backoff,
    ExecutionSettings,
    JobCompleted,
    JobOptions,
    NodeSettings,
    PayloadSettings,
    PollingSettings,
    RetryAfter,
    Scheduler,
    Selection,
    Settings,
    Status,
    TimeoutSettings,
)
from ratchet.defaults.codec import JsonCodec
from ratchet.domain.retry import retry_after
from ratchet.errors import ConfigurationError, UnencodableValue, UsageError
from tests.unit import scheduler_kit as kit

ID = UUID(int=7)  # always the same: it is in the names of tests, which processes that share them compare


@pytest.fixture
def scheduler(store_url: str) -> Iterator[Scheduler]:
    scheduler = Scheduler.from_url(store_url, allow=[kit.__name__, __name__])
    yield scheduler
    scheduler.close()


def no_arguments() -> None:
    """Neither a listener nor a callback."""


class _Clock:
    def __init__(self, now: object) -> None:
        self._now = now

    def now(self) -> Any:
        return self._now


CALLS: dict[str, Callable[[Scheduler], object]] = {
    "timeout too long": lambda s: s.enqueue(kit.add, 1).with_timeout(timedelta.max),
    "timeout in options": lambda _: JobOptions(timeout=timedelta(days=10_001)),
    "too many retries": lambda s: s.enqueue(kit.add, 1).with_max_retries(2**31),
    "tags no texts": lambda _: JobOptions(tags=5),  # type: ignore[arg-type]
    "principal too long": lambda _: JobOptions(principal="x" * 300),
    "backoff of a number": lambda _: Backoff.exponential(5),  # type: ignore[arg-type]
    "fixed backoff of a number": lambda _: Backoff.fixed(5),  # type: ignore[arg-type]
    "backoff factor": lambda _: Backoff.exponential(timedelta(1), factor="2"),  # type: ignore[arg-type]
    "find": lambda s: s.query.find("x"),  # type: ignore[arg-type]
    "find a wrong state": lambda s: s.query.find(Selection(statuses={"RUNNING"})),  # type: ignore[arg-type]
    "find a wrong limit": lambda s: s.query.find(limit="x"),  # type: ignore[arg-type]
    "find by a naive instant": lambda s: s.query.find(Selection(created_from=datetime(2026, 1, 1))),  # noqa: DTZ001
    "count": lambda s: s.query.count("x"),  # type: ignore[arg-type]
    "retry_all": lambda s: s.retry_all("x"),  # type: ignore[arg-type]
    "replace": lambda s: s.replace(ID, None),  # type: ignore[arg-type]
    "submit_many": lambda s: s.submit_many([None]),  # type: ignore[list-item]
    "submit_many of nothing": lambda s: s.submit_many(None),  # type: ignore[arg-type]
    "enqueue_many of nothing": lambda s: s.enqueue_many(kit.add, None),  # type: ignore[call-overload]
    "listener None": lambda s: s.add_listener(None),  # type: ignore[arg-type]
    "listener without argument": lambda s: s.add_listener(no_arguments),  # type: ignore[arg-type]
    "listener of no type": lambda s: s.add_listener(print, 5),  # type: ignore[arg-type]
    "listener of a foreign type": lambda s: s.add_listener(print, JobCompleted, int),
    "callback without arguments": lambda s: s.enqueue(kit.add, 1).on_success(no_arguments).submit(),
    "stop NaN": lambda s: s.stop(math.nan),
    "stop negative": lambda s: s.stop(timedelta(-1)),
    "wait NaN": lambda s: s.enqueue(kit.add, 1).submit().wait(math.nan),
    "result negative": lambda s: s.enqueue(kit.add, 1).submit().result(-1),
    "result text": lambda s: s.enqueue(kit.add, 1).submit().result("1"),  # type: ignore[arg-type]
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_wrong_calls_are_refused(scheduler: Scheduler, call: Callable[[Scheduler], object]) -> None:
    """A wrong call is a `UsageError` on every store, never an error of the language or of a driver."""
    with pytest.raises(UsageError):
        call(scheduler)


@pytest.mark.parametrize("wrong", ["x", None, 5, b"1" * 16, str(ID)])
@pytest.mark.parametrize(
    "call",
    [
        lambda s, i: s.cancel(i),
        lambda s, i: s.pause(i),
        lambda s, i: s.resume(i),
        lambda s, i: s.retry(i),
        lambda s, i: s.get(i),
        lambda s, i: s.handle(i),
        lambda s, i: s.query.detail(i),
        lambda s, i: s.replace(i, s.enqueue(kit.add, 1)),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_id_is_a_uuid(
    scheduler: Scheduler, call: Callable[[Scheduler, Any], object], wrong: object
) -> None:
    """Every store refuses what is no UUID; for text the sentence says what to write."""
    with pytest.raises(UsageError, match=r"UUID\('" if isinstance(wrong, str) else "a UUID, not"):
        call(scheduler, wrong)


SETTINGS: dict[str, Callable[[], object]] = {
    "threads 1.5": lambda: ExecutionSettings(threads=1.5),  # type: ignore[arg-type]
    "threads True": lambda: ExecutionSettings(threads=True),
    "threads too many": lambda: ExecutionSettings(threads=10**6),
    "ahead": lambda: ExecutionSettings(ahead=timedelta(-1)),
    "ahead a number": lambda: ExecutionSettings(ahead=5),  # type: ignore[arg-type]
    "boost_interval": lambda: ExecutionSettings(boost_interval=timedelta(-1)),
    "require_tags": lambda: ExecutionSettings(require_tags="gpu"),  # type: ignore[arg-type]
    "exclude_tags": lambda: ExecutionSettings(exclude_tags=frozenset({5})),  # type: ignore[arg-type]
    "heartbeat": lambda: NodeSettings(heartbeat=5),  # type: ignore[arg-type]
    "orphan_grace": lambda: NodeSettings(orphan_grace=timedelta.max),
    "name": lambda: NodeSettings(name=5),  # type: ignore[arg-type]
    "redeliveries": lambda: NodeSettings(max_crash_redeliveries=2.5),  # type: ignore[arg-type]
    "grace": lambda: TimeoutSettings(grace=timedelta(-5)),
    "default": lambda: TimeoutSettings(default=timedelta.max),
    "warn_at": lambda: TimeoutSettings(warn_at="0.5"),  # type: ignore[arg-type]
    "arguments": lambda: PayloadSettings(arguments=-1),
    "result": lambda: PayloadSettings(result=1.5),  # type: ignore[arg-type]
    "fastest": lambda: PollingSettings(fastest=math.nan),
    "burst": lambda: PollingSettings(burst=-1),
    "idle": lambda: PollingSettings(idle=math.inf),
    "slowest": lambda: PollingSettings(fastest=5, slowest=1),
    "group": lambda: Settings(node=ExecutionSettings()),  # type: ignore[arg-type]
    "allow None": lambda: Scheduler.from_url("memory://", allow=[None]),  # type: ignore[list-item]
    "allow a number": lambda: Scheduler.from_url("memory://", allow=5),  # type: ignore[arg-type]
    "url": lambda: Scheduler.from_url(5),  # type: ignore[arg-type]
    "store": lambda: Scheduler("sqlite:///jobs.db"),  # type: ignore[arg-type]
    "settings": lambda: Scheduler.from_url("memory://", settings={}),  # type: ignore[arg-type]
    "codec": lambda: Scheduler.from_url("memory://", codec=object()),
    "sanitizer": lambda: Scheduler.from_url("memory://", sanitizer=0),
    "retry_policy": lambda: Scheduler.from_url("memory://", retry_policy=object()),
    "resilience": lambda: Scheduler.from_url("memory://", resilience=object()),
    "clock": lambda: Scheduler.from_url("memory://", clock=object()),  # type: ignore[arg-type]
    "naive clock": lambda: Scheduler.from_url("memory://", clock=_Clock(datetime(2026, 1, 1))),  # noqa: DTZ001
    "clock of seconds": lambda: Scheduler.from_url("memory://", clock=_Clock(time.time())),
}


@pytest.mark.parametrize("make", SETTINGS.values(), ids=SETTINGS.keys())
def test_wrong_settings_and_parts_are_refused(make: Callable[[], object]) -> None:
    """Settings, parts and clocks are checked when they are handed over, not when something first needs them."""
    with pytest.raises(ConfigurationError):
        make()


def test_tags_of_a_node_are_written_as_those_of_jobs() -> None:
    """A node that excludes ``GPU`` excludes the jobs tagged so, whose tags are stored in lower case."""
    assert ExecutionSettings(exclude_tags=frozenset({" GPU "})).exclude_tags == {"gpu"}


def test_long_bounds_are_taken(scheduler: Scheduler) -> None:
    """The longest timeout and the largest budget can be stored; a wait of more than the standard library's too."""
    handle = (
        scheduler.enqueue(kit.add, 1)
        .with_timeout(timedelta(days=10_000))
        .with_max_retries(2**31 - 1)
        .submit()
    )
    job = handle.job()
    assert job is not None
    assert (job.timeout, job.max_retries) == (timedelta(days=10_000), 2**31 - 1)
    with scheduler:
        assert handle.result(10**400) == 2


@pytest.mark.parametrize(
    ("when", "year"),
    [
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), 1970),
        (datetime.min.replace(tzinfo=UTC), 1970),
        (datetime.max.replace(tzinfo=timezone(-timedelta(hours=14))), 9999),
    ],
)
def test_an_instant_without_a_utc_form(scheduler: Scheduler, when: datetime, year: int) -> None:
    """Before year 1 is long ago, and due at once; after 9999 is the last possible instant."""
    job = scheduler.enqueue(kit.add, 1).at(when).submit().job()
    assert job is not None
    assert job.scheduled_time.year <= max(year, 1) if year == 1970 else job.scheduled_time.year == year


@pytest.mark.parametrize("asked", [timedelta.max, timedelta(days=5_000_000)])
def test_retry_after_can_be_told_in_seconds(asked: timedelta) -> None:
    """What a child process reports as seconds becomes the same delay again, and never overflows."""
    delay = retry_after(RetryAfter(asked))
    assert delay is not None
    assert timedelta(seconds=delay.total_seconds()) == delay
    assert delay > timedelta(days=366 * 8_100)  # beyond year 9999 from now


def test_a_long_path_is_shortened_in_the_middle() -> None:
    """The error of a value nested hundreds deep can be read: its path keeps beginning and end."""
    value: object = object()
    for _ in range(300):
        value = [value]
    with pytest.raises(UnencodableValue) as caught:
        JsonCodec(allows=lambda _: True).encode_arguments((value,), {}, names=("order",))
    assert len(str(caught.value)) < 600
    assert " ... " in str(caught.value)


class Eager:
    """A gate that is closed, and says that it opens at once (or earlier)."""

    def __init__(self) -> None:
        self.asked = 0

    def retry_delay(self, service: str | None) -> timedelta:
        self.asked += 1
        return timedelta(-1)

    def execute(self, service: str | None, call: Callable[[], Any]) -> Any:
        return call()

    async def execute_async(self, service: str | None, call: Callable[[], Any]) -> Any:
        return await call()


def test_a_gate_that_opens_at_once_is_asked_once_a_second(store_url: str) -> None:
    """A strategy that defers by nothing, or less, does not make the node claim the job again and again."""
    gate = Eager()
    scheduler = Scheduler.from_url(store_url, allow=[kit.__name__], resilience=gate)
    handle = scheduler.enqueue(kit.add, 1).submit()
    with scheduler:
        began = time.monotonic()
        while gate.asked < 2:
            assert time.monotonic() - began < kit.WAIT
            time.sleep(0.01)
        assert time.monotonic() - began > 0.9
        assert handle.status in (Status.PENDING, Status.RUNNING)
    scheduler.close()
