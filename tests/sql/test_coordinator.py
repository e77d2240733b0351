"""Wake-ups between processes: a commit elsewhere is a hint, one's own is not, and trouble is quiet."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from conformance_tests.driver import new_job
from ratchet.spi.coordinator import ClusterCoordinator, Hint
from ratchet.spi.store import NodeInfo
from ratchet_sql.coordinator import SqliteCoordinator
from ratchet_sql.store import SqliteStore

Opener = Callable[..., SqliteStore]
SOON = 10.0  # the bound of the case is far below; a busy machine is allowed for


class Listener:
    """Remembers hints; waits for the next one."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []
        self._changed = threading.Condition()

    def __call__(self, hint: Hint) -> None:
        with self._changed:
            self.hints.append(hint)
            self._changed.notify_all()

    def wait_for(self, number: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: len(self.hints) >= number, timeout=SOON)


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def watching(store: SqliteStore, listener: Listener) -> Iterator[SqliteCoordinator]:
    """A started coordinator that has had its first look."""
    store.insert([new_job()])
    coordinator = store.coordinator()
    assert isinstance(coordinator, ClusterCoordinator)
    assert isinstance(coordinator, SqliteCoordinator)
    coordinator.start("node", listener)
    coordinator.watch(True)
    _looks(store, 3)
    yield coordinator
    coordinator.close()


def _looks(store: SqliteStore, number: int) -> None:
    """Wait until the watcher has looked so many times more."""
    enough, original = threading.Event(), store.database.data_version
    looked = [0]

    def counted() -> int | None:
        answer = original()
        looked[0] += answer is not None
        if looked[0] >= number:
            enough.set()
        return answer

    store.database.data_version = counted  # type: ignore[method-assign]
    assert enough.wait(SOON)
    store.database.data_version = original  # type: ignore[method-assign]


@pytest.mark.usefixtures("watching")
def test_another_process(listener: Listener, program: Callable[..., subprocess.Popen[str]]) -> None:
    """A job submitted by another process is a hint here soon, each time."""
    other = program("submitting")
    assert other.stdin is not None
    assert other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    for number in range(1, 4):
        before = len(listener.hints)
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline()
        assert listener.wait_for(before + 1), number
    assert set(listener.hints) == {Hint()}


@pytest.mark.usefixtures("watching")
def test_own_commits_are_no_news(store: SqliteStore, listener: Listener, open_store: Opener) -> None:
    """What this store commits itself wakes nobody; what another handle commits does."""
    for _ in range(5):
        store.insert([new_job()])
        store.heartbeat(NodeInfo(incarnation="n", name="n"))
        _looks(store, 2)
    assert listener.hints == []
    open_store().insert([new_job()])
    assert listener.wait_for(1)


def test_rest(
    store: SqliteStore, watching: SqliteCoordinator, listener: Listener, open_store: Opener
) -> None:
    """At rest it does not look; when it may look again it tells of what was missed."""
    watching.watch(False)
    looked: list[int] = []
    original = store.database.data_version
    resting = threading.Event()
    active = watching._active

    def waiting() -> bool:
        resting.set()
        return threading.Event.wait(active)

    active.wait = waiting  # type: ignore[method-assign,assignment]
    assert resting.wait(SOON)
    store.database.data_version = lambda: looked.append(1) or original()  # type: ignore[method-assign,func-returns-value]
    open_store().insert([new_job()])
    assert looked == []
    assert listener.hints == []
    watching.watch(True)
    assert listener.wait_for(1)
    assert looked


def test_a_listener_that_raises(
    store: SqliteStore, open_store: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    """A listener that raises is counted and logged, and called again for the next hint."""
    store.insert([new_job()])
    called = threading.Semaphore(0)

    def fail(_hint: Hint) -> None:
        called.release()
        raise ValueError("no")

    coordinator = SqliteCoordinator(store.database)
    coordinator.start("node", fail)
    coordinator.watch(True)
    _looks(store, 2)
    other = open_store()
    for _ in range(2):
        other.insert([new_job()])
        assert called.acquire(timeout=SOON)
    coordinator.close()
    assert coordinator.listener_failures == 2
    assert coordinator.received == 0
    assert "a listener of hints raised" in caplog.text


def test_close(
    store: SqliteStore, watching: SqliteCoordinator, listener: Listener, open_store: Opener
) -> None:
    """Closing twice is fine; afterwards no listener is called, and notify and watch do nothing."""
    watching.close()
    watching.close()
    watching.notify(Hint())
    watching.watch(True)
    watching.start("again", listener)
    open_store().insert([new_job()])
    assert listener.hints == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ratchet-hints-")]


@pytest.mark.usefixtures("watching")
def test_a_closed_store_ends_it(store: SqliteStore) -> None:
    """When the store is closed the watcher ends by itself."""
    store.close()
    deadline = time.monotonic() + SOON
    for thread in threading.enumerate():
        if thread.name.startswith("ratchet-hints-"):
            thread.join(deadline - time.monotonic())
            assert not thread.is_alive()


@pytest.mark.usefixtures("watching")
def test_trouble_is_quiet(
    store: SqliteStore, listener: Listener, open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that cannot answer for a while is asked again later, and hints come again."""
    from ratchet.errors import StoreTransientError

    failed, original = threading.Event(), store.database.data_version
    answers = iter([True, False])

    def failing() -> int | None:
        if next(answers, False):
            failed.set()
            raise StoreTransientError("not now")
        return original()

    monkeypatch.setattr(store.database, "data_version", failing)
    assert failed.wait(SOON)
    open_store().insert([new_job()])
    assert listener.wait_for(1)
