"""The change stream under errors told over the wire: hints go on, none of work committed meanwhile is missed."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from pymongo import common

from conformance_tests.driver import new_job
from ratchet.domain.priority import Priority
from ratchet.spi.coordinator import Hint
from ratchet_mongo import MongoJobStore
from ratchet_mongo.coordinator import MongoCoordinator
from tests.mongo.conftest import server_or_skip
from tests.mongo.faults import STEPPING, name_of, told
from tests.mongo.proxy import Document, Fault, LosingProxy

pytestmark = pytest.mark.mongodb_needs("speed")

PATIENCE = 20.0
WORK = Hint(Priority.NORMAL, None, "threads")
"""What a plain job that is due at once says."""


class Stream:
    """A coordinator behind a proxy, what it heard, and how its streams were opened.

    Attributes:
        heard: hints.
        opened: the options of each stream that was asked for.
        fault: for the next command of this name; done before it: `first`.
    """

    def __init__(self, proxy: LosingProxy, database: str) -> None:
        self.heard: queue.Queue[Hint] = queue.Queue()
        self.opened: list[Document] = []
        self.fault: tuple[str, Fault] | None = None
        self.first: Callable[[], object] = lambda: None
        self.times = 0
        proxy.choose = self._choose
        url = f"mongodb://127.0.0.1:{proxy.port}/{database}?directConnection=true&serverMonitoringMode=poll"
        self.store: Any = MongoJobStore.from_url(url)
        self.coordinator = MongoCoordinator(self.store.database)
        self.coordinator.watch(True)

    def start(self) -> None:
        self.coordinator.start("n", self.heard.put)

    def _choose(self, command: Document) -> Fault | None:
        name = name_of(command)
        opening = name == "aggregate" and "$changeStream" in (command["pipeline"] or [{}])[0]
        if opening:
            self.opened.append(command["pipeline"][0]["$changeStream"])
        if self.fault is None or self.fault[0] != ("open" if opening else name):
            return None
        fault = self.fault[1]
        self.times -= 1
        if self.times <= 0:
            self.fault = None
            self.first()
        return fault

    def meet(
        self, name: str, fault: Fault, *, times: int = 1, first: Callable[[], object] = lambda: None
    ) -> None:
        """The next `times` commands of this name meet the fault; before the last of them `first` is done."""
        self.times, self.first = times, first
        self.fault = (name, fault)

    def hears(self, wanted: Hint) -> None:
        """Wait until it has heard this."""
        while self.heard.get(timeout=PATIENCE) != wanted:
            pass

    def close(self) -> None:
        self.coordinator.close()
        self.store.close()


@pytest.fixture
def mongo_url() -> str:
    """A database of the server that the proxy stands before, whatever deployment the environment names."""
    return server_or_skip().url(f"t{uuid4().hex}")


@pytest.fixture
def stream(mongo_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    """One that is not yet open; a driver that looks again at once at a server that failed."""
    monkeypatch.setattr(common, "MIN_HEARTBEAT_INTERVAL", 0.01)
    proxy = LosingProxy(server_or_skip().port)
    stream = Stream(proxy, mongo_url.rpartition("/")[2])
    yield stream
    stream.close()
    proxy.close()


LOST = {
    **{name: Fault(reply=told(code, name, "ResumableChangeStreamError")) for code, name in STEPPING.items()},
    **{f"{name} unlabeled": Fault(reply=told(code, name)) for code, name in STEPPING.items()},
    "cursor lost": Fault(reply=told(43, "CursorNotFound", "ResumableChangeStreamError")),
    "cursor killed": Fault(reply=told(237, "CursorKilled")),
    "cut": Fault(),
    "cut after it": Fault(applied=True),
}


@pytest.mark.parametrize("kind", LOST)
def test_a_stream_that_breaks_misses_nothing(
    stream: Stream, open_store: Callable[..., Any], kind: str
) -> None:
    """Work that is committed while the stream breaks is heard of, by a stream that goes on where it broke."""
    other = open_store()
    other.counts()
    stream.start()
    stream.hears(Hint())
    stream.meet("getMore", LOST[kind], first=lambda: other.insert([new_job()]))
    stream.hears(WORK)
    assert len(stream.opened) == 2
    assert "resumeAfter" in stream.opened[1]


def test_a_stream_whose_past_is_lost_begins_anew(stream: Stream, open_store: Callable[..., Any]) -> None:
    """Where the token is older than the log, the next stream has none, and one hint tells of whatever was missed."""
    other = open_store()
    other.counts()
    stream.start()
    stream.hears(Hint())
    other.insert([new_job()])
    stream.hears(WORK)
    stream.meet("getMore", Fault(reply=told(286, "ChangeStreamHistoryLost", "NonResumableChangeStreamError")))
    stream.hears(Hint())
    assert not {"resumeAfter", "startAfter", "startAtOperationTime"} & set(stream.opened[-1])
    other.insert([new_job()])
    stream.hears(WORK)


def test_without_streams_new_work_is_looked_for(
    stream: Stream, open_store: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A deployment that has none is asked once; then new jobs are found by looking, and one line says so."""
    caplog.set_level(logging.INFO, "ratchet.store")
    other = open_store()
    other.counts()
    stream.meet("open", Fault(reply=told(40573, "Location40573")), times=1_000)
    stream.start()
    other.insert([new_job()])
    stream.hears(Hint())
    other.insert([new_job()])
    stream.hears(Hint())
    assert len(stream.opened) == 1
    assert not stream.coordinator.streaming
    assert ["no change streams" in line for line in caplog.messages] == [True]


def test_a_stream_that_cannot_be_opened_for_long_is_told_once(
    stream: Stream, open_store: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Again and again refused by a server that has stepped down, it logs one line, and works when it is let."""
    caplog.set_level(logging.INFO, "ratchet.store")
    other = open_store()
    other.counts()
    stream.meet("open", Fault(reply=told(189, "PrimarySteppedDown")), times=5)
    stream.start()
    stream.hears(Hint())
    other.insert([new_job()])
    stream.hears(WORK)
    assert len(stream.opened) == 6
    assert len(caplog.messages) == 1
