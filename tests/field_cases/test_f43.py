"""F43: an exception that cannot be printed, compared, walked or copied ends its attempt like any other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NoReturn

import pytest

from ratchet import AttemptEnd, DoNotRetry, RetryAfter, Status
from ratchet.domain.lifecycle import LATEST
from tests.field_cases.exact import KINDS, slots, submitter
from tests.field_cases.kit import Gates, Ledger, wait_until

# What is shown is the engine's: the embedded stores are enough.
pytestmark = [pytest.mark.field_case("F43"), pytest.mark.stores("memory", "sqlite")]

RETRIES: Final = 1


class StrRaises(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class StrAnswersNoText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307


class StrInterrupts(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class StrExits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class StrRecurses(Exception):
    def __str__(self) -> str:
        return str(self)


class StrIsHuge(Exception):
    def __str__(self) -> str:
        return "x" * 20_000_000


class StrSubclass(str):
    """A text whose own methods raise."""

    __slots__ = ()

    def __len__(self) -> int:
        raise ValueError

    def lower(self) -> str:
        raise ValueError


class StrAnswersItsOwnKind(Exception):
    def __str__(self) -> str:
        return StrSubclass("text")


class ReprRaises(Exception):
    def __repr__(self) -> str:
        raise ValueError("no repr")


class NeedsThree(Exception):
    def __init__(self, one: int, two: int, three: int) -> None:
        super().__init__()
        self.all = (one, two, three)


class Unprintable:
    """An object with neither text nor repr."""

    def __str__(self) -> str:
        raise ValueError

    def __repr__(self) -> str:
        raise ValueError


class ClassLies(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise ValueError


class CauseRaises(Exception):
    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise ValueError


class ContextRaises(Exception):
    @property
    def __suppress_context__(self) -> bool:  # type: ignore[override]
        raise KeyboardInterrupt


class NothingIsThere(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class NeverEqual(Exception):
    def __eq__(self, other: object) -> bool:
        raise ValueError

    __hash__ = None  # type: ignore[assignment]


class DelayRaises(RetryAfter):
    @property
    def delay(self) -> timedelta:
        raise ValueError

    @delay.setter
    def delay(self, value: timedelta) -> None: ...


class NamelessMeta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__qualname__", "__module__", "__name__"):
            raise ValueError(name)
        return super().__getattribute__(name)


class GroupLies(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> tuple[Any, ...]:
        raise ValueError


def cyclic() -> BaseException:
    one, two = ValueError("one"), KeyError("two")
    one.__cause__, two.__cause__ = two, one
    one.__context__, two.__context__ = two, one
    return one


def self_caused() -> BaseException:
    error = ValueError("self")
    error.__cause__ = error
    return error


def noted() -> BaseException:
    error = ValueError("noted")
    error.__notes__ = 5  # type: ignore[assignment]
    return error


def deep() -> BaseException:
    error: BaseException = ValueError("innermost")
    for _ in range(5_000):
        outer = RuntimeError("outer")
        outer.__cause__ = error
        error = outer
    return error


def deep_group() -> BaseException:
    error: Exception = ValueError("innermost")
    for _ in range(1_000):
        error = ExceptionGroup("outer", [error])
    return error


ERRORS: Final[dict[str, tuple[Callable[[], BaseException], str]]] = {
    "str raises": (StrRaises, "StrRaises"),
    "str answers no text": (StrAnswersNoText, "StrAnswersNoText"),
    "str interrupts": (StrInterrupts, "StrInterrupts"),
    "str exits": (StrExits, "StrExits"),
    "str recurses": (StrRecurses, "StrRecurses"),
    "str is huge": (StrIsHuge, "StrIsHuge"),
    "str answers its own kind": (StrAnswersItsOwnKind, "StrAnswersItsOwnKind"),
    "repr raises": (ReprRaises, "ReprRaises"),
    "three arguments": (lambda: NeedsThree(1, 2, 3), "NeedsThree"),
    "unprintable argument": (lambda: ValueError(Unprintable()), "ValueError"),
    "unprintable arguments": (lambda: KeyError(Unprintable(), Unprintable()), "KeyError"),
    "cyclic": (cyclic, "ValueError"),
    "self-caused": (self_caused, "ValueError"),
    "deep": (deep, "RuntimeError"),
    "deep group": (deep_group, "ExceptionGroup"),
    "group of 1,000": (
        lambda: ExceptionGroup("many", [ValueError(Unprintable()) for _ in range(1_000)]),
        "ExceptionGroup",
    ),
    "group of the worst": (
        lambda: BaseExceptionGroup("worst", [KeyboardInterrupt(), SystemExit(), GeneratorExit()]),
        "BaseExceptionGroup",
    ),
    "group lies": (lambda: GroupLies("g", [ValueError()]), "GroupLies"),
    "class lies": (ClassLies, "ClassLies"),
    "cause raises": (CauseRaises, "CauseRaises"),
    "context raises": (ContextRaises, "ContextRaises"),
    "nothing is there": (NothingIsThere, "NothingIsThere"),
    "never equal": (NeverEqual, "NeverEqual"),
    "notes are no list": (noted, "ValueError"),
    "delay raises": (lambda: DelayRaises(timedelta(seconds=1)), "DelayRaises"),
    "delay of no type": (lambda: RetryAfter("soon"), "RetryAfter"),  # type: ignore[arg-type]
    "delay from the past": (lambda: RetryAfter(timedelta.min), "RetryAfter"),
    "nameless class": (lambda: NamelessMeta("N", (Exception,), {})(), "Exception"),
    "interrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "exit": (lambda: SystemExit(1), "SystemExit"),
    "generator exit": (GeneratorExit, "GeneratorExit"),
    "cancelled": (asyncio.CancelledError, "CancelledError"),
    "memory": (MemoryError, "MemoryError"),
    "odd text": (lambda: ValueError("\0\ud800 text"), "ValueError"),
}  # fmt: skip


def fail(name: str, folder: str) -> NoReturn:
    """Raises it."""
    with Ledger(folder).entry():
        error = ERRORS[name][0]()
        raise error


async def fail_async(name: str, folder: str) -> NoReturn:
    """Raises it on the loop."""
    fail(name, folder)


def fine() -> str:
    """A normal job."""
    return "fine"


async def fine_async() -> str:
    """A normal job on the loop."""
    return "fine"


@pytest.mark.parametrize("kind", KINDS)
def test_f43_each_ends_failed_after_its_retries_with_its_class_name(
    make_node: Any, kind: str, ledger: Ledger
) -> None:
    """Each is FAILED after R + 1 executions with an error that names its class, and normal jobs beside it succeed."""
    node = make_node(**slots(kind, 3))
    submit = submitter(node, kind)
    handles = {
        name: submit(fail, fail_async, name, str(ledger)).with_max_retries(RETRIES).submit()
        for name in ERRORS
    }
    normal = [submit(fine, fine_async).submit() for _ in range(10)]
    for name, handle in handles.items():
        job = handle.wait(60)
        assert job.status is Status.FAILED, name
        assert ledger.executions(handle.id) == RETRIES + 1, (name, job.last_error)
        assert ERRORS[name][1] in job.last_error, (name, job.last_error)
        assert len(job.last_error) <= 2_000, name
        # What was claimed ahead and found no free slot in time was given back before it began.
        history = [e for e in node.query.detail(handle.id).history if e.end is not AttemptEnd.RELEASED]
        assert [entry.end for entry in history] == [AttemptEnd.FAILED] * (RETRIES + 1), name
        assert all(ERRORS[name][1] in entry.error for entry in history), name
    assert [handle.result(30) for handle in normal] == ["fine"] * 10


# -- the slow one -----------------------------------------------------------------------------------------


class StrBlocks(Exception):
    """Blocks for as long as its gate is closed (a case's 10 s)."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def __str__(self) -> str:
        Gates(self.folder).wait("text")
        return "at last"


def fail_slowly(folder: str) -> NoReturn:
    """Raises what blocks."""
    raise StrBlocks(folder)


async def fail_slowly_async(folder: str) -> NoReturn:
    """Raises what blocks, on the loop."""
    raise StrBlocks(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_f43_the_slow_one_delays_only_its_own_slot(make_node: Any, kind: str, gates: Gates) -> None:
    """While the text of an error blocks, ten normal jobs of the same executor run to their end in the other slot."""
    node = make_node(**slots(kind, 2))
    submit = submitter(node, kind)
    slow = submit(fail_slowly, fail_slowly_async, str(gates.folder)).submit()
    wait_until(lambda: gates.reached("text"), what="the error is being printed")
    normal = [submit(fine, fine_async).submit() for _ in range(10)]
    assert [handle.result(20) for handle in normal] == ["fine"] * 10
    assert slow.status is Status.RUNNING
    gates.open("text")
    job = slow.wait(20)
    assert job.status is Status.FAILED
    assert "StrBlocks: at last" in job.last_error


# -- permanent ones ---------------------------------------------------------------------------------------


class NoRetryUnprintable(DoNotRetry):
    """Only an ordinary subclass: not permanent by itself."""


def fail_for_good(folder: str) -> NoReturn:
    """Raises the permanent error with an unprintable message."""
    with Ledger(folder).entry():
        raise DoNotRetry(Unprintable())


async def fail_for_good_async(folder: str) -> NoReturn:
    """The same on the loop."""
    fail_for_good(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_f43_a_permanent_error_that_cannot_be_printed(make_node: Any, kind: str, ledger: Ledger) -> None:
    """`DoNotRetry` with an unprintable message is FAILED after one execution, with its name."""
    node = make_node(**slots(kind, 1))
    job = (
        submitter(node, kind)(fail_for_good, fail_for_good_async, str(ledger))
        .with_max_retries(3).submit().wait(30)
    )  # fmt: skip
    assert job.status is Status.FAILED
    assert "DoNotRetry" in job.last_error
    assert ledger.executions(job.id) == 1


def ask_for_ever(folder: str) -> NoReturn:
    """Asks for the longest delay there is."""
    with Ledger(folder).entry():
        raise RetryAfter(timedelta.max)


def test_f43_a_delay_beyond_all_dates_is_clamped(make_node: Any, ledger: Ledger) -> None:
    """`RetryAfter(timedelta.max)` leaves the job PENDING at the last instant, and the engine goes on."""
    node = make_node()
    handle = node.enqueue(ask_for_ever, str(ledger)).with_max_retries(RETRIES).submit()
    wait_until(lambda: handle.job().attempts == 1)
    job = handle.job()
    assert job.status is Status.PENDING
    assert job.scheduled_time == LATEST
    assert node.enqueue(fine).submit().result(30) == "fine"


class BrokenPolicy:
    """A retry policy whose answers are of no use."""

    def should_retry(self, attempt: int, error: BaseException) -> bool:
        return True

    def delay(self, attempt: int) -> Any:
        return 5 if attempt == 1 else NotImplementedError()


def test_f43_a_retry_policy_that_answers_nonsense_is_left_out(make_node: Any, ledger: Ledger) -> None:
    """A retry policy whose delay is no timedelta counts as the default one; jobs settle all the same."""
    node = make_node(parts={"retry_policy": BrokenPolicy()})
    handles = [node.enqueue(fail, "cyclic", str(ledger)).with_max_retries(2).submit() for _ in range(5)]
    for handle in handles:
        assert handle.wait(30).status is Status.FAILED
        assert ledger.executions(handle.id) == 3


# -- arguments and callbacks ------------------------------------------------------------------------------


@dataclass
class Shy:
    """A value whose repr raises."""

    x: int

    def __repr__(self) -> str:
        raise ValueError("no repr")


def fail_with_argument(shy: Shy, folder: str) -> NoReturn:
    """Raises with the argument in the error."""
    with Ledger(folder).entry():
        raise LookupError("with argument", shy)


async def fail_with_argument_async(shy: Shy, folder: str) -> NoReturn:
    """The same on the loop."""
    fail_with_argument(shy, folder)


@pytest.mark.parametrize("kind", KINDS)
def test_f43_an_argument_whose_repr_raises(make_node: Any, kind: str, ledger: Ledger) -> None:
    """A job with an argument whose repr raises can be submitted and shown, and fails as it is told to."""
    node = make_node(**slots(kind, 1))
    builder = submitter(node, kind)(fail_with_argument, fail_with_argument_async, Shy(1), str(ledger))
    assert "fail_with_argument" in repr(builder)
    handle = builder.with_max_retries(RETRIES).submit()
    job = handle.wait(30)
    assert job.status is Status.FAILED
    assert "LookupError" in job.last_error
    assert ledger.executions(job.id) == RETRIES + 1
    for each in (handle, job, node, node.query.detail(job.id)):
        assert repr(each)


def calls_back(ctx: Any, error: BaseException) -> NoReturn:
    """A callback that raises what cannot be printed."""
    raise StrInterrupts


def test_f43_a_callback_that_raises_what_cannot_be_printed(make_node: Any, ledger: Ledger) -> None:
    """A callback may raise anything: the job's outcome stays, and later callbacks run."""
    node = make_node()
    handles = [
        node.enqueue(fail, name, str(ledger)).on_failure(calls_back).submit()
        for name in ("str exits", "cyclic")
    ]
    for handle in handles:
        assert handle.wait(30).status is Status.FAILED
    wait_until(
        lambda: not node.store.take_callbacks("other", grace=timedelta(0), limit=10), what="all callbacks ran"
    )
    assert node.enqueue(fine).submit().result(30) == "fine"


def test_f43_every_slot_is_free_afterwards(make_node: Any, ledger: Ledger) -> None:
    """After all of them nothing is held: no slot is busy, no claim is known, and no thread has died with an error."""
    node = make_node(threads=3, async_=3)
    before = threading.active_count()
    for name in ERRORS:
        node.enqueue(fail, name, str(ledger)).submit().wait(30)
        node.enqueue(fail_async, name, str(ledger)).submit().wait(30)
    wait_until(lambda: node.node.known == 0, what="no claim is known")
    parts = node.node.parts
    wait_until(lambda: not (parts.threads.busy() or parts.loop.busy()), what="all slots are free")
    end = time.monotonic() + 5
    while threading.active_count() > before + 12 and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before + 12
