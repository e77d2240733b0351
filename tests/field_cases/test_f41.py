"""F41: an argument arrives equal and of its type or is refused by name; a result that cannot travel fails its job."""

from __future__ import annotations

import collections
import enum
import io
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from ratchet import AttemptEnd, Execution, Job, JobDlq, JobFailed, JobRetrying, Status
from ratchet.errors import PayloadError, ResultNotStored
from tests.field_cases.exact import KINDS, Once, Recorder, same, slots, submitter
from tests.field_cases.kit import Ledger, append, stays, wait_until

pytestmark = pytest.mark.field_case("F41")


class Color(enum.Enum):
    """An Enum."""

    RED = "r"
    BLUE = (1, 2)


class Level(enum.IntEnum):
    """An IntEnum."""

    LOW = 1


class Word(enum.StrEnum):
    """A StrEnum."""

    YES = "yes"


@dataclass(frozen=True)
class Point:
    """A dataclass."""

    x: int
    y: float = 0.0
    more: tuple[int, ...] = ()


@dataclass
class Order:
    """A dataclass of dataclasses."""

    at: datetime
    points: list[Point] = field(default_factory=list)
    color: Color = Color.RED


class Pair(NamedTuple):
    """A named tuple."""

    a: int
    b: int


PARIS: Final = ZoneInfo("Europe/Paris")
TRAVELS: Final[dict[str, Any]] = {
    "tuple": (1, (2, 3)),
    "empty tuple": (),
    "set": {1, 2},
    "frozenset": frozenset({(1, 2), "a"}),
    "bytes": b"\x00\xff",
    "Decimal": Decimal("1.10"),
    "Decimal infinity": Decimal("-Infinity"),
    "UUID": UUID(int=2**127 + 1),
    "aware datetime": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=PARIS),
    "fold 0": datetime(2024, 10, 27, 2, 30, tzinfo=PARIS),
    "fold 1": datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=PARIS),
    "datetime UTC": datetime(2026, 1, 2, 3, 4, 5, 1, tzinfo=UTC),
    "datetime offset": datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    "naive datetime": datetime(2026, 1, 2, 3, 4, 5, 999999),  # noqa: DTZ001 - carried as it is (section 8)
    "first and last": [datetime.min, datetime.max.replace(tzinfo=UTC)],  # noqa: DTZ901
    "date": date(2026, 1, 2),
    "time": time(1, 2, 3, 4, tzinfo=UTC),
    "timedelta": timedelta(days=-1, microseconds=1),
    "longest": timedelta.max,
    "Enum": [Color.RED, Color.BLUE],
    "IntEnum": Level.LOW,
    "StrEnum": Word.YES,
    "dataclass": Order(datetime(2026, 1, 1, tzinfo=PARIS), [Point(1, 2.0, (3,)), Point(2)], Color.BLUE),
    "nested": {"a": [({"b": {1}},)]},
    "odd text": "\0\ud800\U0001f600é",
    "list": [1, [2, [3]]],
}
REFUSED: Final[dict[str, Any]] = {
    "int key": {1: "a"},
    "IntEnum key": {Level.LOW: 1},
    "tuple key": {(1, 2): 3},
    "None key": {None: 1},
    "bool key": {True: 1},
    "bytes key": {b"k": 1},
    "deep int key": {"a": [{"b": {2: 1}}]},
    "str subclass key": {Word.YES: 1},
    "named tuple": Pair(1, 2),
    "OrderedDict": collections.OrderedDict(a=1),
    "defaultdict": collections.defaultdict(int, a=1),
    "Counter": collections.Counter("aa"),
    "deque": collections.deque([1]),
    "bytearray": bytearray(b"x"),
    "memoryview": memoryview(b"x"),
    "complex": 1j,
    "range": range(3),
    "generator": (each for each in (1, 2)),
    "object": object(),
    "class": Point,
    "function": len,
    "lock": threading.Lock(),
    "file": io.BytesIO(b""),
    "exception": ValueError("x"),
    "path": Path("/tmp"),
}


def look(name: str, value: Any) -> Any:
    """Compares what arrived with what was meant, and gives it back."""
    assert same(value, TRAVELS[name])
    return value


async def look_async(name: str, value: Any) -> Any:
    """The same on the loop."""
    return look(name, value)


@pytest.mark.parametrize("kind", KINDS)
def test_f41_values_arrive_and_come_back_equal_and_of_the_same_type(make_node: Any, kind: str) -> None:
    """Each value of the case reaches the body, and comes back as its result, equal and of the same type."""
    node = make_node(**slots(kind, 2))
    handles = {
        name: submitter(node, kind)(look, look_async, name, value).submit() for name, value in TRAVELS.items()
    }
    for name, handle in handles.items():
        job = handle.wait(30)
        assert job.status is Status.SUCCEEDED, (name, job.last_error)
        assert same(handle.result(), TRAVELS[name]), name


def keep(value: Any = None, *, other: Any = None) -> None:
    """Takes anything."""


@pytest.mark.parametrize("name", REFUSED)
def test_f41_what_cannot_travel_is_refused_at_the_caller_by_name(make_node: Any, name: str) -> None:
    """What has no exact form raises at submission, names the argument, and stores nothing."""
    node = make_node(start=False)
    with pytest.raises(PayloadError, match="value"):
        node.enqueue(keep, REFUSED[name]).submit()
    with pytest.raises(PayloadError, match="other"):
        node.enqueue(keep, other=[REFUSED[name]]).submit()
    with pytest.raises(PayloadError, match="'p'"):
        node.enqueue(keep).with_param("p", REFUSED[name]).submit()
    with pytest.raises(PayloadError, match="value"):
        node.enqueue_many(keep, [(1,), (REFUSED[name],)])
    assert node.query.count() == 0


def test_f41_a_refused_key_is_named_with_its_path(make_node: Any) -> None:
    """A key that is no text is refused with the place where it sits."""
    with pytest.raises(PayloadError) as caught:
        make_node(start=False).enqueue(keep, {"a": [{"b": {2: 1}}]}).submit()
    for part in ("value", "'a'", "0", "'b'", "2"):
        assert part in str(caught.value)


MICROSECONDS: Final = datetime(2026, 1, 2, 3, 4, 5, 123457, tzinfo=UTC)


def test_f41_datetimes_keep_their_microseconds(make_node: Any) -> None:
    """A datetime in arguments, params and results keeps its microseconds on every store."""
    handle = make_node().enqueue(same_moment, MICROSECONDS).with_param("at", MICROSECONDS).submit()
    assert handle.result(30) == MICROSECONDS


def same_moment(at: datetime) -> datetime:
    """Gives it back, annotated."""
    return at


def annotated(
    number: int, word: str, real: float, numbers: list[int], by_name: dict[str, int]
) -> tuple[Any, ...]:
    """Gives back what annotated parameters received."""
    return number, word, real, numbers, by_name


def test_f41_annotations_change_nothing_in_silence(make_node: Any) -> None:
    """An annotation that a value fits as it is leaves its type alone: an IntEnum member stays one."""
    given = (Level.LOW, Word.YES, 1.5, [Level.LOW, 2], {"a": Level.LOW})
    assert same(make_node().enqueue(annotated, *given).submit().result(30), given)


def test_f41_an_annotation_that_would_change_the_value_is_refused(make_node: Any) -> None:
    """An integer that no float holds is refused for a float parameter at the caller, not rounded."""
    with pytest.raises(ValueError, match="real"):
        make_node(start=False).enqueue(annotated, 1, "a", 2**63 + 1, [], {})


# -- results ----------------------------------------------------------------------------------------------


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


BAD: Final[dict[str, Callable[[], Any]]] = {
    "socket": socket.socket,
    "lock": threading.Lock,
    "object": object,
    "int key": lambda: {1: 2},
    "named tuple": lambda: Pair(1, 2),
    "exception": lambda: ValueError("x"),
    "cycle": _cycle,
    "self-made repr": lambda: Unprintable(),
    "untouchable": lambda: Untouchable(1),
}


@dataclass
class Untouchable:
    """A dataclass that raises when the codec looks into it."""

    x: int

    def __getattribute__(self, name: str) -> Any:
        if name == "x":
            raise SystemExit
        return super().__getattribute__(name)


class Unprintable:
    """Its repr raises, also within an error message about it."""

    def __repr__(self) -> str:
        raise KeyboardInterrupt


def give(name: str, folder: str) -> Any:
    """Returns what cannot travel."""
    with Ledger(folder).entry():
        value = BAD[name]()
    if isinstance(value, socket.socket):
        value.close()
    return value


async def give_async(name: str, folder: str) -> Any:
    """The same on the loop."""
    return give(name, folder)


def on_failure(ctx: Any, error: BaseException) -> None:
    """Writes that it was called, and with what."""
    append(Path(ctx.params["folder"]) / "callbacks", f"{ctx.id} {error}\n".replace("\n", " ") + "\n")


def fine() -> str:
    """A job after them."""
    return "fine"


async def fine_async() -> str:
    """A job after them, on the loop."""
    return "fine"


@dataclass(frozen=True)
class Seen:
    """What was seen of the jobs with bad results (by name), each with five retries that must not be used."""

    jobs: dict[str, Job]
    histories: dict[str, Sequence[Execution]]
    executions: dict[str, int]
    callbacks: list[str]
    events: list[Any]
    afterwards: list[str]


once: Final[Once[Seen]] = Once()


@pytest.fixture(params=KINDS)
def bad_results(request: pytest.FixtureRequest, store_url: str, make_node: Any, ledger: Ledger) -> Seen:
    """One job per bad result, settled, and twenty good ones after them."""
    return once((request.param, store_url.partition(":")[0]), lambda: play(request.param, make_node, ledger))


def play(kind: str, make_node: Any, ledger: Ledger) -> Seen:
    node = make_node(**slots(kind, 2))
    recorder = Recorder(node)
    submit = submitter(node, kind)
    handles = {
        name: submit(give, give_async, name, str(ledger)).with_max_retries(5).with_param("folder", str(ledger))
        .on_failure(on_failure).submit()
        for name in BAD
    }  # fmt: skip
    for handle in handles.values():
        handle.wait(30)
    wait_until(lambda: recorder.count(JobDlq) == len(handles))
    calls = ledger.folder / "callbacks"
    wait_until(lambda: calls.exists() and len(calls.read_text().splitlines()) >= len(handles))
    stays(
        lambda: all(ledger.executions(each.id) == 1 for each in handles.values()), 0.3, "one execution each"
    )
    return Seen(
        {name: handle.job() for name, handle in handles.items()},
        {name: node.query.detail(handle.id).history for name, handle in handles.items()},
        {name: ledger.executions(handle.id) for name, handle in handles.items()},
        calls.read_text().splitlines(),
        recorder.events,
        [submit(fine, fine_async).submit().result(30) for _ in range(20)],
    )


def test_f41_an_unencodable_result_fails_its_job_with_the_reason(bad_results: Seen) -> None:
    """A job whose result cannot travel is FAILED, and its error says that the result is not serialisable."""
    for name, job in bad_results.jobs.items():
        assert job.status is Status.FAILED, name
        assert "result not serialisable" in str(job.last_error), (name, job.last_error)
        assert job.result is None


def test_f41_an_unencodable_result_is_not_executed_again(bad_results: Seen) -> None:
    """There is one execution, whatever the retry budget."""
    assert set(bad_results.executions.values()) == {1}
    assert not any(isinstance(event, JobRetrying) for event in bad_results.events)
    for history in bad_results.histories.values():
        assert [entry.end for entry in history] == [AttemptEnd.FAILED]


def test_f41_an_unencodable_result_calls_back_once(bad_results: Seen) -> None:
    """`on_failure` is called exactly once per job, and one failed and one dlq event are told."""
    ids = sorted(str(job.id) for job in bad_results.jobs.values())
    assert sorted(line.split()[0] for line in bad_results.callbacks) == ids
    for kind in (JobFailed, JobDlq):
        assert sorted(str(event.job_id) for event in bad_results.events if isinstance(event, kind)) == ids


def test_f41_the_worker_lives_after_unencodable_results(bad_results: Seen) -> None:
    """Every slot takes further jobs."""
    assert bad_results.afterwards == ["fine"] * 20


def give_many() -> Any:
    """More values than the codec encodes (while the test runs)."""
    return [(1,)] * 2_000


async def give_many_async() -> Any:
    """The same on the loop."""
    return give_many()


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_f41_a_result_too_large_to_encode_leaves_the_job_succeeded(
    make_node: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result with more values than the codec takes is replaced by its size; the job is SUCCEEDED."""
    monkeypatch.setattr("ratchet.defaults.codec_encode.MAX_VALUES", 1_000)  # the real limit is a million
    job = submitter(make_node(), kind)(give_many, give_many_async).submit().wait(60)
    assert job.status is Status.SUCCEEDED, job.last_error
    with pytest.raises(ResultNotStored):
        make_node(start=False).handle(job.id).result(1)
