"""How many round trips each operation takes, counted by the driver's own command events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from pymongo import monitoring

from conformance_tests.driver import new_job, request
from ratchet.domain.lifecycle import Trigger
from ratchet.domain.settlement import Change, RunCallback, Settlement, Submit
from ratchet.spi.store import Settled


class Counter(monitoring.CommandListener):
    """Names of the commands sent while it counts; the driver's own handshakes are none."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.commands.append(event.command_name)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass

    @contextmanager
    def counting(self) -> Iterator[list[str]]:
        """The commands of the block."""
        self.commands = []
        yield self.commands


@pytest.fixture
def counted(mongo_url: str) -> Iterator[tuple[Any, Counter]]:
    """A store, warm, and the counter of its commands."""
    from pymongo import MongoClient

    from ratchet_mongo import MongoJobStore

    counter = Counter()
    client: MongoClient[dict[str, Any]] = MongoClient(mongo_url, event_listeners=[counter])
    store = MongoJobStore.from_client(client, mongo_url.rpartition("/")[2])
    store.counts()
    store.now()  # asks the server for its time, once a minute
    yield store, counter
    client.close()


Counted = tuple[Any, Counter]


@pytest.mark.parametrize(
    ("keys", "most"), [({}, 1), ({"idempotency_key": "i"}, 2), ({"business_key": "b"}, 2),
                       ({"idempotency_key": "i", "business_key": "b"}, 3)]
)  # fmt: skip
def test_submitting(counted: Counted, keys: dict[str, str], most: int) -> None:
    """One to submit, one more for an idempotency key, one more for a business key."""
    store, counter = counted
    with counter.counting() as commands:
        store.insert([new_job(**keys)])
    assert len(commands) == most


def test_a_list_takes_six_whatever_its_length(counted: Counted) -> None:
    """A list is an operation: recorded, inserted, committed, shown, forgotten."""
    store, counter = counted
    for length in (2, 400):
        with counter.counting() as commands:
            store.insert([new_job() for _ in range(length)])
        assert len(commands) <= 6


def test_claiming_in_batches(counted: Counted) -> None:
    """Three for a batch, one where nothing is due."""
    store, counter = counted
    with counter.counting() as commands:
        assert store.claim(request()).claims == []
    assert len(commands) == 1
    store.insert([new_job() for _ in range(50)])
    with counter.counting() as commands:
        assert len(store.claim(request(limit=50)).claims) == 50
    assert commands == ["aggregate", "update", "find"]


def test_a_life_that_begins_with_its_claim(counted: Counted) -> None:
    """One to submit and claim where a slot is free, one to settle: nothing is looked at in between."""
    store, counter = counted
    with counter.counting() as commands:
        (answer,) = store.insert([new_job(claim_for="n")])
        done = Change(Trigger.SUCCEED, answer.id, claim_seq=answer.claim.claim_seq, result="1")
        assert isinstance(store.settle(Settlement(done)), Settled)
    assert len(commands) == 2


@pytest.mark.parametrize("jobs", [1, 50])
def test_settling_claims_of_this_handle(counted: Counted, jobs: int) -> None:
    """One for all outcomes sent together; one more to clear a callback."""
    store, counter = counted
    store.insert([new_job() for _ in range(jobs)])
    claims = store.claim(request(limit=jobs)).claims
    effects = (RunCallback("on_success", "m:f", "1"),)
    done = [
        Settlement(Change(Trigger.SUCCEED, c.job_id, claim_seq=c.claim_seq, result="1"), effects)
        for c in claims
    ]
    with counter.counting() as commands:
        answers = store.settle_many(done)
    assert all(isinstance(answer, Settled) for answer in answers)
    assert commands == ["update"]
    with counter.counting() as commands:
        store.callback_done(claims[0].job_id, 1, "on_success")
    assert commands == ["update"]


def test_reading_one_job(counted: Counted) -> None:
    """One: the read at the start of an attempt."""
    store, counter = counted
    new = new_job()
    store.insert([new])
    with counter.counting() as commands:
        assert store.get(new.id) is not None
    assert commands == ["find"]


def test_replacing_is_bounded(counted: Counted) -> None:
    """A replacement: read, insert hidden, settle, move the key, show, clear."""
    store, counter = counted
    old, new = new_job(business_key="k", delay=timedelta(hours=1)), new_job()
    store.insert([old])
    change = Change(Trigger.REPLACE, old.id, superseded_by=new.id)
    with counter.counting() as commands:
        assert isinstance(store.settle(Settlement(change, (Submit(new),))), Settled)
    assert len(commands) <= 6


def test_asking_what_is_held(counted: Counted) -> None:
    """One, once a second."""
    store, counter = counted
    with counter.counting() as commands:
        store.held("n")
    assert commands == ["find"]


def test_concerns_are_those_that_correctness_needs(mongo_url: str, open_store: Callable[..., Any]) -> None:
    """Whatever the URL asks for, writes are majority and journaled, reads majority and from the primary."""
    store = open_store(url=f"{mongo_url}?w=1&journal=false&readPreference=secondary&readConcernLevel=local")
    jobs = store.database.jobs
    assert jobs.write_concern.document == {"w": "majority", "j": True}
    assert jobs.read_concern.level == "majority"
    assert jobs.read_preference.name == "Primary"
    assert jobs.codec_options.tz_aware
    store.insert([new_job()])
