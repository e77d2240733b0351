"""Every kind of error that passes, told over the wire at every command of every operation, before it and after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID

import pytest
from pymongo import AsyncMongoClient, MongoClient, common

from conformance_tests.bridge import EventLoop, sync_face
from conformance_tests.driver import Driver, new_job
from conformance_tests.test_crashes import (
    BY_ROW,
    JOBS,
    NEW,
    TAG,
    WHOLE,
    Seen,
    look,
    name_of,
)
from ratchet.domain.lifecycle import Status, Trigger
from ratchet.domain.settlement import Change, RunCallback, Settlement
from ratchet.errors import RatchetError, StorePermanentError, StoreTransientError
from ratchet.spi.store import JobStore, NodeInfo, Selection
from ratchet_mongo import AsyncMongoJobStore, MongoJobStore
from ratchet_mongo._async import keys as async_keys
from ratchet_mongo._sync import keys as sync_keys
from ratchet_mongo.harness import MongoHarness
from tests.conftest import storm_scale
from tests.mongo.conftest import server_or_skip
from tests.mongo.faults import PASSING, SILENT, WRITES, At, each, told
from tests.mongo.proxy import Fault, LosingProxy
from tests.mongo.test_losses import persistently

pytestmark = pytest.mark.mongodb_needs("speed")

Operation: TypeAlias = Callable[[JobStore], object]
FLAVOURS: Final = ("sync", "async") if storm_scale() >= 1 else ("sync",)
SILENCE_MS: Final = 400
# A server that steps down tells the driver's monitor at once; here nobody does, and the monitor must look itself.
OPTIONS: Final = "directConnection=true&serverMonitoringMode=poll"

# -- operations beside those that the suite stops at each step --------------------------------------


def pause(driver: Driver) -> Operation:
    driver.submit(id=JOBS[0], business_key="b0")
    return lambda store: store.apply(Change(Trigger.PAUSE, JOBS[0]))


def callback_done(driver: Driver) -> Operation:
    driver.drive(Status.RUNNING, id=JOBS[0])
    done = Change(Trigger.SUCCEED, JOBS[0], claim_seq=1, result="1")
    driver.store.settle(Settlement(done, (RunCallback("on_success", "m:f", "1"),)))
    return lambda store: store.callback_done(JOBS[0], 1, "on_success")


def heartbeat(driver: Driver) -> Operation:
    info = NodeInfo(incarnation="n-1", name="n")
    return lambda store: (store.heartbeat(info), [node.info.incarnation for node in store.nodes()])


def forget_node(driver: Driver) -> Operation:
    driver.store.heartbeat(NodeInfo(incarnation="n-1", name="n"))
    return lambda store: store.forget_node("n-1") or store.nodes()


def spill_history(driver: Driver) -> Operation:
    """The 21st ended claim: the first one moves out of the document."""
    driver.submit(id=JOBS[0], max_retries=99)
    for _ in range(20):
        driver.end(driver.claim_one(JOBS[0]), Trigger.RELEASE)
    held = driver.claim_one(JOBS[0])
    done = Settlement(Change(Trigger.SUCCEED, JOBS[0], claim_seq=held.claim_seq, result="1"))
    return lambda store: (store.settle_many([done]), store.history(JOBS[0]))


def take_over_a_reservation(driver: Driver) -> Operation:
    """Of a submission that died after it had reserved its keys."""
    dead = new_job(id=NEW[0], idempotency_key="new-i0", business_key="new-b0")

    def die(step: str) -> None:
        if step == "key reserved":
            raise KeyboardInterrupt

    driver.store.database.reached = die  # type: ignore[attr-defined]
    with suppress(KeyboardInterrupt):
        driver.store.insert([dead])
    driver.store.database.reached = None  # type: ignore[attr-defined]
    return lambda store: store.insert([new_job(id=NEW[1], idempotency_key="new-i0", business_key="new-b0")])


def read(driver: Driver) -> Operation:
    """More jobs than fit into the first batch of an answer."""
    driver.store.insert([new_job(id=UUID(int=number), tags=TAG) for number in range(1, 151)])

    def all_of_it(store: JobStore) -> object:
        page = store.find(Selection(tags=TAG), limit=140)
        rest = store.find(Selection(tags=TAG), limit=140, cursor=page.cursor)
        return (
            [job.id for job in (*page.jobs, *rest.jobs)], store.count(Selection(tags=TAG)), store.counts(),
            store.health(window=timedelta(hours=1)), len(store.get_many([UUID(int=n) for n in range(1, 151)])),
            store.claim(_nothing()).claims, store.find_by_key(business="b0"), store.held("nobody"),
        )  # fmt: skip

    return all_of_it


def _nothing() -> Any:
    from conformance_tests.driver import request

    return request(limits={"none": 1})


OTHERS = [pause, callback_done, heartbeat, forget_node, spill_history, take_over_a_reservation, read]


# -- the rig --------------------------------------------------------------------------------------


class Rig:
    """A database, a direct handle on it, and handles behind a proxy that answers in the server's place."""

    def __init__(self, flavour: str) -> None:
        server = server_or_skip()  # the proxy stands before it, whatever deployment the environment names
        self.harness = MongoHarness(server.url())
        self.proxy = LosingProxy(server.port)
        self._loop = EventLoop() if flavour == "async" else None
        self._clients: list[Any] = [self._client(retries, silence) for retries, silence in _MODES]
        self._direct: MongoClient[dict[str, Any]] = MongoClient(self.harness.url)

    def _client(self, retries: bool, silence: bool) -> Any:
        url = f"mongodb://127.0.0.1:{self.proxy.port}/?{OPTIONS}&retryWrites={str(retries).lower()}"
        if silence:
            url += f"&socketTimeoutMS={SILENCE_MS}"
        if self._loop is None:
            return MongoClient(url)

        async def make() -> Any:
            return AsyncMongoClient(url)

        return self._loop.run(make())

    def prepared(self, prepare: Callable[[Driver], Operation]) -> tuple[JobStore, Operation]:
        """An empty database and the operation on what it needs."""
        self.proxy.choose = None
        self.harness.reset()
        store = MongoJobStore.from_client(self._direct, self.harness.name, clock=self.harness.clock)
        return store, prepare(Driver(store, self.harness.clock))

    def victim(self, mode: int, *, warm: bool = True, **options: Any) -> JobStore:
        """A handle behind the proxy, its indexes made."""
        client, name, clock = self._clients[mode], self.harness.name, self.harness.clock
        store: JobStore
        if self._loop is None:
            store = MongoJobStore.from_client(client, name, clock=clock, **options)
        else:
            store = sync_face(
                lambda: AsyncMongoJobStore.from_client(client, name, clock=clock, **options), self._loop
            )
        if warm:
            store.counts()
        return store

    def close(self) -> None:
        """All of it."""
        for client in self._clients:
            if self._loop is None:
                client.close()
            else:
                self._loop.run(client.close())
        if self._loop is not None:
            self._loop.close()
        self._direct.close()
        self.proxy.close()
        self.harness.close()


_MODES: Final = ((True, False), (False, False), (False, True))
"""(the driver tries writes again itself, its time-out is short)."""
_SHORT: Final = 2


@pytest.fixture(params=FLAVOURS)
def rig(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """One rig; its drivers look again at a server that failed at once, not half a second later."""
    monkeypatch.setattr(common, "MIN_HEARTBEAT_INTERVAL", 0.01)
    for keys in (sync_keys, async_keys):  # nobody here is slow: what is not there is called off at once
        monkeypatch.setattr(keys, "PATIENCE", 0.0)
    rig = Rig(request.param)
    yield rig
    rig.close()


def undisturbed(rig: Rig, prepare: Callable[[Driver], Operation]) -> tuple[list[str], object, Seen]:
    """The commands, the answer and what is there afterwards."""
    store, operation = rig.prepared(prepare)
    victim = rig.victim(0)
    rig.proxy.choose = at = At()
    answer = operation(victim)
    rig.proxy.choose = None
    return at.seen, answer, look(store)


def spread(entries: list[tuple[int, str, Fault]], share: float) -> Iterator[tuple[int, str, Fault]]:
    """A share of them, at least one for each place, and another kind at each place."""
    by_place: dict[int, list[tuple[int, str, Fault]]] = {}
    for entry in entries:
        by_place.setdefault(entry[0], []).append(entry)
    for place, found in by_place.items():
        for number in range(max(1, round(share * len(found)))):
            yield found[(place * 7 + number * 5) % len(found)] if share < 1 else found[number]


# -- errors that pass -----------------------------------------------------------------------------


@pytest.mark.storm
@pytest.mark.timeout(900)
@pytest.mark.parametrize("prepare", [*WHOLE, *BY_ROW, *OTHERS], ids=name_of)
def test_an_error_that_passes_at_any_command(rig: Rig, prepare: Callable[[Driver], Operation]) -> None:
    """Whatever passing error any command meets, no call fails of it, and answer and outcome are those without it."""
    commands, answer, after = undisturbed(rig, prepare)
    entries = list(each(PASSING, commands))
    met: Counter[str] = Counter()
    for mode, (place, kind, fault) in enumerate(spread(entries, storm_scale())):
        store, operation = rig.prepared(prepare)
        victim = rig.victim(mode % 2)
        rig.proxy.choose = at = At(place, fault)
        where = f"{kind} at {place} of {commands}"
        try:
            told_now = operation(victim)
        except RatchetError as error:
            raise AssertionError(where) from error
        rig.proxy.choose = None
        assert len(at.seen) >= place, where
        met[at.seen[place - 1]] += 1
        assert told_now == answer, where
        assert look(store) == after, where
    assert set(met) == set(commands)


@pytest.mark.storm
@pytest.mark.timeout(900)
@pytest.mark.parametrize("prepare", [*WHOLE, *BY_ROW, *OTHERS], ids=name_of)
def test_silence_at_any_command(rig: Rig, prepare: Callable[[Driver], Operation]) -> None:
    """No answer to any command is a transient error after the driver's time-out; repeated, the call works."""
    commands, _, after = undisturbed(rig, prepare)
    entries = list(each(SILENT, commands))
    chosen = list(spread(entries, storm_scale()))
    for place, kind, fault in chosen if storm_scale() >= 1 else chosen[::3]:
        store, operation = rig.prepared(prepare)
        victim = rig.victim(_SHORT)
        rig.proxy.choose = at = At(place, fault)
        persistently(lambda o=operation, v=victim: _again(o, v))  # type: ignore[misc]
        rig.proxy.choose = None
        assert len(at.seen) >= place
        assert look(store) == after, f"{kind} at {place} of {commands}"


def _again(operation: Operation, store: JobStore) -> None:
    """As its caller would; a refusal because it was applied before is an answer."""
    try:
        operation(store)
    except StoreTransientError:
        raise
    except RatchetError:
        pass


@pytest.mark.parametrize("kind", sorted(k for k, (_, met_by) in PASSING.items() if "createIndexes" in met_by))
def test_the_first_use_of_a_database(rig: Rig, kind: str) -> None:
    """Making the indexes outlives the same errors; afterwards they are there."""
    rig.prepared(pause)
    fault, _ = PASSING[kind]
    prefix = "first_" + "".join(c for c in kind if c.isalnum()) + "_"
    rig.proxy.choose = at = At(1, fault)
    store = rig.victim(0, prefix=prefix)
    rig.proxy.choose = None
    assert at.seen[0] == "createIndexes"
    store.insert([new_job()])
    direct = MongoJobStore.from_url(rig.harness.url, prefix=prefix)
    assert "claim" in direct.database.jobs.index_information()
    direct.close()


def test_store_time_outlives_errors(rig: Rig) -> None:
    """Asking the server for its time outlives a step-down and a lost connection."""
    for kind in ("NotWritablePrimary", "cut", "cut after it"):
        rig.proxy.choose = at = At(1, PASSING[kind][0], frozenset({"hello"}))
        client: MongoClient[dict[str, Any]] = MongoClient(f"mongodb://127.0.0.1:{rig.proxy.port}/?{OPTIONS}")
        with client:
            assert MongoJobStore.from_client(client, "time").now().tzinfo is not None
        assert len(at.seen) >= 1, kind
    assert rig.proxy.answered >= 3


# -- errors that do not ---------------------------------------------------------------------------

SECRET: Final = "hunter2-of-the-payload"


@pytest.mark.parametrize("prepare", [*WHOLE, *BY_ROW, *OTHERS], ids=name_of)
def test_what_the_user_may_not_do_is_permanent(rig: Rig, prepare: Callable[[Driver], Operation]) -> None:
    """Unauthorized from any command on is a permanent error, in a sentence that quotes nothing of the command."""
    commands, _, _ = undisturbed(rig, prepare)
    reply = told(
        13,
        "Unauthorized",
        errmsg=f'not authorized on jobs to execute command {{ insert: "x", payload: "{SECRET}" }}',
    )
    for place in range(1, len(commands) + 1) if storm_scale() >= 1 else {1, len(commands)}:
        _, operation = rig.prepared(prepare)
        victim = rig.victim(0)
        rig.proxy.choose = At(place, Fault(reply=reply), onward=True)
        try:
            answer: object = operation(victim)
        except StorePermanentError as error:
            answer = str(error)
        # A sweep that comes with a recovery tells of its errors, and does not stop for them.
        assert "log in as a user" in str(answer), f"at {place} of {commands}"
        assert SECRET not in str(answer)


@pytest.mark.parametrize("code", [18, 8000])
def test_wrong_credentials_are_permanent(rig: Rig, code: int) -> None:
    """A refused log-in is a permanent error that says what to see to, without the password."""
    rig.proxy.choose = At(1, Fault(reply=told(code, "AuthenticationFailed")), frozenset({"saslStart"}))
    store = MongoJobStore.from_url(f"mongodb://somebody:{SECRET}@127.0.0.1:{rig.proxy.port}/jobs?{OPTIONS}")
    with pytest.raises(StorePermanentError) as told_so:
        store.counts()
    store.close()
    assert rig.proxy.answered == 1
    assert "see to the user" in str(told_so.value)
    assert SECRET not in f"{told_so.value!r}{told_so.value.__cause__!r}"


@pytest.mark.parametrize(
    "url",
    [f"mongodb://us@er:{SECRET}@host/db", f"mongodb://user:{SECRET}/x@host/db", f"mongodb://user:{SECRET}%zz@host:99999/db"],
)  # fmt: skip
def test_a_url_that_no_client_can_be_made_from(url: str) -> None:
    """It is a permanent error that says what to encode, and shows no part of a password."""
    with pytest.raises(StorePermanentError, match="percent-encode") as told_so:
        MongoJobStore.from_url(url).counts()
    assert SECRET not in str(told_so.value)


def test_a_document_that_is_refused_is_not_quoted(rig: Rig) -> None:
    """An error of single writes names codes only: the driver's own text would quote the whole document."""
    store, _ = rig.prepared(pause)
    victim = rig.victim(0)
    refused = {"ok": 1.0, "n": 0, "writeErrors": [{"index": 0, "code": 121, "errmsg": SECRET}]}
    rig.proxy.choose = At(1, Fault(reply=refused), WRITES)
    with pytest.raises(StorePermanentError) as told_so:
        victim.insert([new_job(payload=f'["{SECRET}"]')])
    assert SECRET not in str(told_so.value)
    assert store.counts()[Status.PENDING] == 1


# -- everything that the store sends --------------------------------------------------------------


def test_every_command_is_covered(rig: Rig) -> None:
    """The operations above send every command that the store ever sends."""
    sent: set[str] = set()
    for prepare in (*WHOLE, *BY_ROW, *OTHERS):
        sent |= set(undisturbed(rig, prepare)[0])
    assert sent == {"insert", "update", "delete", "findAndModify", "find", "getMore", "aggregate", "distinct"}
