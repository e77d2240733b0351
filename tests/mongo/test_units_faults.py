"""Submitting in a transaction of the application, while servers, connections and processes fail."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pymongo import MongoClient

from conformance_tests.driver import new_job
from ratchet.errors import (
    DuplicateBusinessKey,
    StorePermanentError,
    StoreTransientError,
)
from ratchet.spi.store import Inserted, Selection
from ratchet_mongo import MongoJobStore
from tests.field_cases.stage import together
from tests.mongo import servers
from tests.mongo.conftest import server_or_skip
from tests.mongo.faults import PASSING, STEPPING, At, each, told
from tests.mongo.proxy import Fault, LosingProxy
from tests.mongo.units import Undone, count, orders

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]


# -- faults -----------------------------------------------------------------------------------------


@pytest.fixture
def proxy() -> Iterator[LosingProxy]:
    """A proxy before the shared server."""
    made = LosingProxy(server_or_skip().port)
    yield made
    made.close()


@contextmanager
def through(
    proxy: LosingProxy, store: MongoJobStore
) -> Iterator[tuple[MongoJobStore, MongoClient[dict[str, Any]]]]:
    """A store on the jobs of `store`, and its client, behind the proxy."""
    name = store.database.name
    made: MongoClient[dict[str, Any]] = MongoClient(
        f"mongodb://127.0.0.1:{proxy.port}/{name}", directConnection=True, heartbeatFrequencyMS=500
    )
    with made:
        yield MongoJobStore.from_client(made, name), made


IN_A_UNIT = frozenset({"find", "insert", "commitTransaction"})
_SLOW = frozenset(STEPPING.values()) - {"NotWritablePrimary", "ShutdownInProgress"}
DRIVEN = ("cut", "retryable", "NotWritablePrimary", "ShutdownInProgress")
"""Begin the names of what the driver itself sees to when it commits."""
PASSING_IN_A_UNIT = {
    name: (
        fault,
        met_by | {"commitTransaction"} if name.startswith(DRIVEN) else met_by,
    )
    for name, (fault, met_by) in PASSING.items()
    if name.split()[0] not in _SLOW
}
"""After each step-down the driver waits for half a second: two kinds of them."""


def test_every_passing_error_at_every_command(
    store: MongoJobStore, client: MongoClient[dict[str, Any]], proxy: LosingProxy
) -> None:
    """Whatever passes by itself, wherever in the transaction: `with_transaction` ends with one order and one job."""
    with through(proxy, store) as (apart, theirs):
        apart.now()

        def place(number: int) -> UUID:
            def callback(session: Any) -> UUID:
                orders(theirs).insert_one({"_id": number}, session=session)
                new = new_job(business_key=f"b{number}", idempotency_key=f"i{number}")
                answer: Inserted = apart.insert([new], unit=session)[0]
                return answer.id

            with theirs.start_session() as session:
                job_id: UUID = session.with_transaction(callback)
            return job_id

        proxy.choose = dry = At(counted=IN_A_UNIT)
        made = [place(0)]
        assert dry.seen == ["insert", "find", "find", "insert", "insert", "insert", "commitTransaction"]
        faults = [
            found for found in each(PASSING_IN_A_UNIT, dry.seen) if found[0] > 1
        ]  # the first is not ours
        for number, (at, _, fault) in enumerate(faults, 1):
            proxy.choose = At(at, fault, IN_A_UNIT)
            made.append(place(number))
        proxy.choose = None
    assert proxy.answered == len(faults) > 60
    assert sorted(order["_id"] for order in orders(client).find()) == list(range(len(made)))
    assert {job.id for job in store.find(Selection(), limit=1000).jobs} == set(made)


def test_a_storm_of_transactions(
    store: MongoJobStore, client: MongoClient[dict[str, Any]], open_store: Callable[..., Any]
) -> None:
    """Transactions that meet on few keys, some rolled back, beside plain submissions: an order for each job."""
    begun = threading.Barrier(8)

    def worker(place: int) -> None:
        own: MongoJobStore = open_store()
        dice = random.Random(place)
        begun.wait(30)
        for number in range(15):
            key = f"K{dice.randrange(4)}.{number}"

            def callback(
                session: Any,
                key: str = key,
                name: str = f"{place}.{number}",
                undone: bool = dice.random() < 0.3,
            ) -> None:
                orders(client).insert_one({"_id": name, "key": key}, session=session)
                new = new_job(business_key=key, params={"order": name})
                if own.insert([new], unit=session)[0].created and undone:
                    raise Undone

            with suppress(Undone, DuplicateBusinessKey), client.start_session() as session:
                session.with_transaction(callback)

    def plain(place: int) -> None:
        own: MongoJobStore = open_store()
        dice = random.Random(-place)
        begun.wait(30)
        for number in range(15):
            with suppress(DuplicateBusinessKey, StoreTransientError):
                own.insert([new_job(business_key=f"K{dice.randrange(4)}.{number}")])

    together(
        *[lambda place=place: worker(place) for place in range(6)],
        *[lambda place=place: plain(place) for place in range(2)],
    )
    jobs = store.find(Selection(), limit=1000).jobs
    assert len({job.business_key for job in jobs}) == len(jobs) <= 60
    ordered = {job.params["order"]: job.business_key for job in jobs if "order" in job.params}
    assert ordered == {order["_id"]: order["key"] for order in orders(client).find()}
    assert ordered


def test_a_server_without_transactions_says_so(
    store: MongoJobStore, client: MongoClient[dict[str, Any]], proxy: LosingProxy
) -> None:
    """A standalone server (its answer told by a proxy: the stand-in takes transactions) is to become a replica set."""
    refusal = told(
        20,
        "IllegalOperation",
        errmsg="Transaction numbers are only allowed on a replica set member or mongos",
    )
    proxy.choose = lambda command: Fault(reply=refusal) if "startTransaction" in command else None
    with through(proxy, store) as (apart, theirs), theirs.start_session() as session:
        session.start_transaction()
        with pytest.raises(StorePermanentError, match="make it a replica set"):
            apart.insert([new_job()], unit=session)
        assert apart.insert([new_job()])[0].created
    assert count(store) == 1


# -- death ------------------------------------------------------------------------------------------


def test_a_process_that_dies_in_its_transaction(own_server: servers.Server) -> None:
    """A process killed in its open transaction leaves no job; with the transaction its key is free."""
    url = own_server.url("jobs")
    store = MongoJobStore.from_url(url)
    store.counts()
    process = subprocess.Popen(
        [sys.executable, "-c", "from tests.mongo.test_units_faults import hold; hold()", url],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "inserted\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert count(store) == 0
    assert store.find_by_key(business="b") is None
    own_server.kill()  # and the server with it, whose transactions would otherwise live for a minute
    own_server.start()
    assert store.insert([new_job(business_key="b")])[0].created
    store.close()


def hold() -> None:
    """A process that inserts in a transaction and never ends it."""
    url = sys.argv[1]
    client: MongoClient[dict[str, Any]] = MongoClient(url)
    session = client.start_session()
    session.start_transaction()
    MongoJobStore.from_url(url).insert([new_job(business_key="b")], unit=session)
    print("inserted", flush=True)
    signal.pause()
