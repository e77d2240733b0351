"""Answers that get lost, servers that are killed, and errors that pass: nothing is lost or doubled."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    WriteConcernError,
)

from conformance_tests.driver import at_once, new_job, request, returned
from ratchet.domain.lifecycle import Status, Trigger
from ratchet.domain.settlement import Change, RunCallback, Settlement
from ratchet.errors import DuplicateBusinessKey, StorePermanentError, StoreTransientError
from ratchet.spi.store import JobStore, NodeInfo, Refused, Settled
from ratchet_mongo import MongoJobStore
from ratchet_mongo.translate import is_retryable, translated
from tests.mongo import servers
from tests.mongo.conftest import server_or_skip
from tests.mongo.proxy import LosingProxy


def persistently(call: Callable[[], Any], *, seconds: float = 30.0) -> Any:
    """What the engine does: the same call again while the store cannot answer."""
    until = time.monotonic() + seconds
    while True:
        try:
            return call()
        except StoreTransientError:
            if time.monotonic() > until:
                raise


@pytest.fixture
def mongo_url() -> str:
    """A database of the server that the proxy stands before, whatever deployment the environment names."""
    return server_or_skip().url(f"t{uuid4().hex}")


@pytest.fixture
def proxy() -> Iterator[LosingProxy]:
    """A proxy before the shared server."""
    proxy = LosingProxy(server_or_skip().port)
    yield proxy
    proxy.close()


# -- lost answers ---------------------------------------------------------------------------------


def submit_all(store: JobStore, number: int) -> list[UUID]:
    """Submit one by one under idempotency keys, each until it is answered."""
    made = []
    for place in range(number):
        new = new_job(idempotency_key=f"k{place}")
        (answer,) = persistently(partial(store.insert, [new]))
        made.append(answer.id)
    return made


@pytest.mark.storm
@pytest.mark.mongodb_needs("distinct in arrays")
def test_a_line_that_loses_requests_and_answers(
    proxy: LosingProxy, mongo_url: str, open_store: Callable[..., Any], scaled: Callable[..., int]
) -> None:
    """With every twentieth message lost, before the server or after it, each job is submitted and settled once."""
    number = scaled(2000, least=150)
    name = mongo_url.rpartition("/")[2]
    watcher = open_store()
    watcher.counts()
    # Directly, or the driver would go to the address that the server names itself; and without the driver's
    # own retries, which a standalone server does not have either.
    lossy = [
        open_store(url=f"mongodb://127.0.0.1:{proxy.port}/{name}?directConnection=true&retryWrites=false")
        for _ in range(3)
    ]
    proxy.loss = 0.05
    made = submit_all(lossy[0], number)
    assert len(set(made)) == number
    assert watcher.counts()[Status.PENDING] == number
    settled: Counter[UUID] = Counter()
    lock = threading.Lock()

    def work(place: int, store: JobStore) -> None:
        me = f"n{place}"
        empty = 0
        while empty < 3:
            claimed = persistently(partial(store.claim, request(me, 20)))
            known = {(c.job_id, c.claim_seq) for c in claimed.claims}
            # Claims whose answer was lost are held and not known: released, as the engine does.
            for job_id, claim_seq in persistently(partial(store.held, me)):
                if (job_id, claim_seq) not in known:
                    back = Settlement(Change(Trigger.RELEASE, job_id, claim_seq=claim_seq))
                    persistently(partial(store.settle_many, [back]))
            empty = 0 if claimed.claims else empty + 1
            done = [
                Settlement(
                    Change(Trigger.SUCCEED, c.job_id, claim_seq=c.claim_seq, result=f'"{me}"'),
                    (RunCallback("on_success", "m:f", "1"),),
                )
                for c in claimed.claims
            ]
            for answer in persistently(partial(store.settle_many, done)):
                assert isinstance(answer, Settled), answer
                with lock:
                    settled[answer.job_id] += 1

    returned(at_once(*(partial(work, place, store) for place, store in enumerate(lossy))))
    assert settled == Counter(dict.fromkeys(made, 1))
    assert watcher.counts()[Status.SUCCEEDED] == number
    assert min(proxy.dropped) > 0
    for job_id in made:
        ended = list(watcher.history(job_id))
        assert [e.claim_seq for e in ended] == list(range(1, len(ended) + 1))
        assert [e.trigger for e in ended].count(Trigger.SUCCEED) == 1
    callbacks = watcher.take_callbacks("sweep", grace=timedelta(), limit=number * 2)
    assert Counter(c.job_id for c in callbacks) == Counter(made)


class LostAnswer:
    """A collection whose next write is made and not answered."""

    def __init__(self, collection: Any, method: str, error: Exception) -> None:
        self._collection, self._method, self._error = collection, method, error
        self.lost = 0
        self.then: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._collection, name)
        if name != self._method or self.lost:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            real(*args, **kwargs)
            self.lost += 1
            self.then()
            raise self._error

        return call


PASSING = {
    "connection lost": AutoReconnect("gone"),
    "stepped down": NotPrimaryError("no", {"code": 10107}),
    "shutting down": OperationFailure("no", 91, {"code": 91}),
    "write conflict": OperationFailure(
        "no", 112, {"code": 112, "errorLabels": ["TransientTransactionError"]}
    ),
}


def losing(store: Any, method: str, error: Exception, collection: str = "jobs") -> LostAnswer:
    database = store.database
    wrapped = LostAnswer(getattr(database, collection), method, error)
    name = {"business": "business_keys", "idempotency": "idempotency_keys"}.get(collection, collection)
    database._collections[name] = wrapped
    return wrapped


@pytest.mark.parametrize("error", PASSING)
@pytest.mark.parametrize(
    ("collection", "method", "keys"),
    [("jobs", "insert_one", {}), ("business", "find_one_and_update", {"business_key": "b"}),
     ("idempotency", "insert_one", {"idempotency_key": "i"})],
)  # fmt: skip
def test_a_submission_whose_answer_is_lost(
    open_store: Callable[..., Any], error: str, collection: str, method: str, keys: dict[str, str]
) -> None:
    """Any write of a submission may be made and not answered: the job is created, once, and told as created."""
    store = open_store()
    store.counts()
    wrapped = losing(store, method, PASSING[error], collection)
    (answer,) = store.insert([new_job(**keys)])
    assert wrapped.lost == 1
    assert answer.created
    assert store.counts()[Status.PENDING] == 1


@pytest.mark.parametrize("error", PASSING)
def test_a_claim_whose_answer_is_lost(open_store: Callable[..., Any], error: str) -> None:
    """The stamp of a claim may be made and not answered: it is claimed once, and answered."""
    store = open_store()
    store.insert([new_job() for _ in range(5)])
    wrapped = losing(store, "update_many", PASSING[error])
    claims = store.claim(request()).claims
    assert wrapped.lost == 1
    assert [claim.claim_seq for claim in claims] == [1] * 5
    assert len(store.held("node-1")) == 5


@pytest.mark.parametrize("error", PASSING)
@pytest.mark.parametrize("jobs", [1, 5])
def test_an_outcome_whose_answer_is_lost(open_store: Callable[..., Any], error: str, jobs: int) -> None:
    """The write of outcomes may be made and not answered: they are answered as settled, with one history row each."""
    store = open_store()
    store.insert([new_job() for _ in range(jobs)])
    claims = store.claim(request()).claims
    wrapped = losing(store, "update_one" if jobs == 1 else "bulk_write", PASSING[error])
    done = [Settlement(Change(Trigger.SUCCEED, c.job_id, claim_seq=1, result="1")) for c in claims]
    answers = store.settle_many(done)
    assert wrapped.lost == 1
    assert all(isinstance(answer, Settled) for answer in answers)
    assert [len(store.history(c.job_id)) for c in claims] == [1] * jobs
    assert all(isinstance(answer, Refused) for answer in store.settle_many(done))


def test_a_caller_that_repeats_after_an_error_learns_the_truth(
    open_store: Callable[..., Any],
) -> None:
    """Outcomes that were written in a call that raised are answered as settled when they are sent again."""
    store = open_store()
    store.insert([new_job() for _ in range(3)])
    claims = store.claim(request()).claims
    done = [Settlement(Change(Trigger.SUCCEED, c.job_id, claim_seq=1, result="1")) for c in claims]
    losing(store, "bulk_write", NetworkTimeout("no answer"))
    with pytest.raises(StoreTransientError):
        store.settle_many(done)
    assert all(isinstance(answer, Settled) for answer in store.settle_many(done))


@pytest.mark.parametrize("method", ["find_one_and_update", "delete_one"])
def test_a_list_that_is_stored_keeps_its_keys(open_store: Callable[..., Any], method: str) -> None:
    """A call that times out while, or after, its list is decided leaves the keys of the jobs with them."""
    store, other = open_store(), open_store()
    store.counts()
    wrapped = losing(store, method, NetworkTimeout("no answer"), "operations")
    wrapped.then = other.counts  # completes what is decided, and removes its record
    new = [new_job(idempotency_key=f"i{n}", business_key=f"b{n}") for n in range(2)]
    with pytest.raises(StoreTransientError):
        store.insert(new)
    assert wrapped.lost == 1
    assert [(answer.id, answer.created) for answer in other.insert(new)] == [(job.id, False) for job in new]
    for number, job in enumerate(new):
        held = other.find_by_key(business=f"b{number}")
        assert held is not None
        assert held.id == job.id
        with pytest.raises(DuplicateBusinessKey):
            other.insert([new_job(business_key=f"b{number}")])
    assert other.counts()[Status.PENDING] == 2


@pytest.mark.parametrize("error", PASSING)
def test_a_node_whose_leaving_is_not_answered(open_store: Callable[..., Any], error: str) -> None:
    """The deletion of a node may be made and not answered: it was registered, and is not any more."""
    store = open_store()
    store.heartbeat(NodeInfo(incarnation="n-1", name="n"))
    wrapped = losing(store, "delete_one", PASSING[error], "nodes")
    assert store.forget_node("n-1")
    assert wrapped.lost == 1
    assert not store.forget_node("n-1")


@pytest.mark.parametrize("error", PASSING)
def test_what_passes_is_transient(error: str) -> None:
    """Lost connections, step-downs and write conflicts may be tried again, and end as transient errors."""
    assert is_retryable(PASSING[error])
    assert isinstance(translated(PASSING[error], "db"), StoreTransientError)


@pytest.mark.parametrize(
    ("error", "family"),
    [
        (OperationFailure("no", 13, {"code": 13}), StorePermanentError),
        (OperationFailure("no", 20, {"code": 20}), StorePermanentError),
        (OperationFailure("no", 14031, {"code": 14031}), StoreTransientError),
        (WriteConcernError("waiting", 64, {"code": 64}), StoreTransientError),
        (BulkWriteError({"writeErrors": [{"code": 112, "index": 0}]}), StoreTransientError),
        (BulkWriteError({"writeErrors": [{"code": 121, "index": 0}]}), StorePermanentError),
    ],
)
def test_errors_are_judged_by_code(error: OperationFailure, family: type[Exception]) -> None:
    """What somebody must act upon is permanent; what passes by itself is transient."""
    assert isinstance(translated(error, "db"), family)


# -- a server that is killed ----------------------------------------------------------------------


@pytest.mark.storm
def test_a_server_killed_under_load_loses_nothing_acknowledged(
    own_server: servers.Server, scaled: Callable[..., int]
) -> None:
    """Killed and restarted twice while jobs are submitted and settled: what was acknowledged is there, once."""
    url = own_server.url("killed")
    number = scaled(1000, least=200)
    acknowledged: list[UUID] = []
    settled: Counter[UUID] = Counter()
    over = threading.Event()
    with_stores = [MongoJobStore.from_url(f"{url}?serverSelectionTimeoutMS=500") for _ in range(3)]

    def submit() -> None:
        for place in range(number):
            new = new_job(idempotency_key=f"k{place}")
            (answer,) = persistently(partial(with_stores[0].insert, [new]))
            acknowledged.append(answer.id)
        over.set()

    def work(place: int) -> None:
        store, me = with_stores[place], f"n{place}"
        while not over.is_set() or len(settled) < number:
            claimed = persistently(partial(store.claim, request(me, 10)))
            known = {(c.job_id, c.claim_seq) for c in claimed.claims}
            for job_id, claim_seq in persistently(partial(store.held, me)):
                if (job_id, claim_seq) not in known:
                    back = Settlement(Change(Trigger.RELEASE, job_id, claim_seq=claim_seq))
                    persistently(partial(store.settle_many, [back]))
            done = [
                Settlement(Change(Trigger.SUCCEED, c.job_id, claim_seq=c.claim_seq, result="1"))
                for c in claimed.claims
            ]
            for answer in persistently(partial(store.settle_many, done)):
                if isinstance(answer, Settled):
                    settled[answer.job_id] += 1

    def kill() -> None:
        for share in (0.3, 0.6):
            while len(acknowledged) < number * share:
                time.sleep(0.01)
            own_server.kill()
            own_server.start()

    returned(at_once(submit, partial(work, 1), partial(work, 2), kill))
    watcher = with_stores[0]
    assert settled == Counter(dict.fromkeys(acknowledged, 1))
    assert {job.id for page in [watcher.get_many(acknowledged)] for job in page} == set(acknowledged)
    assert watcher.counts() == dict.fromkeys(Status, 0) | {Status.SUCCEEDED: number}
    for store in with_stores:
        store.close()


def test_a_server_that_is_not_there_is_transient_and_quick() -> None:
    """Without a server a call ends as a transient error within seconds, and the store works when one comes."""
    store = MongoJobStore.from_url("mongodb://127.0.0.1:9/none?serverSelectionTimeoutMS=200")
    started = time.monotonic()
    with pytest.raises(StoreTransientError):
        store.counts()
    assert time.monotonic() - started < 5
    with suppress(Exception):
        store.close()
