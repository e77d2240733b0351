"""Inserting, reading and deleting jobs, and idempotency keys (contract facts CRUD, BULK, TAG)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from conformance_tests.bridge import meets
from conformance_tests.contract import contract
from conformance_tests.driver import MINUTE, START, Driver, ids, new_job, request
from conformance_tests.under_test import Time, UnderTest
from ratchet.domain.ids import new_id
from ratchet.domain.job import Job, JobType, NewJob
from ratchet.domain.lifecycle import LATEST, Status, Trigger
from ratchet.domain.priority import Priority
from ratchet.domain.retry import Backoff
from ratchet.domain.settlement import Change, Settlement, Submit
from ratchet.errors import CapabilityMissing, DuplicateBusinessKey, StoreClosed, UsageError
from ratchet.spi.capabilities import PROTOCOLS, Capability
from ratchet.spi.store import Inserted, JobStore, NodeInfo, RecoverRequest, Refused, Selection

AWKWARD = "a.b $set %_*[x]' \"\\ é 漢 \U0001f600 \N{COMBINING ACUTE ACCENT}"
HUGE = ["9223372036854775808", "-9223372036854775809", "11168737559087072609", "1" + "0" * 40]


def full_job() -> NewJob:
    return NewJob(
        id=new_id(),
        target="shop.jobs:charge",
        payload=f'[{", ".join(HUGE)}, {{"a.b": 1, "$set": {{"x": 2}}, "": 3, "_id": 4}}]',
        format=3,
        params={"a.b": "1", "$set": '{"x":2}', "": "3", "__proto__": '"\\u0000"'},
        type=JobType.BRANCH,
        executor="processes",
        priority=Priority.CRITICAL,
        delay=timedelta(hours=2),
        max_retries=2**31 - 1,
        backoff=Backoff.exponential(timedelta(milliseconds=1500), factor=1.7, jitter=0.25),
        timeout=timedelta(days=30, milliseconds=7),
        tags=frozenset({"a", "b.c", "100%", AWKWARD.lower()[:60]}),
        idempotency_key="idem " + AWKWARD,
        business_key="business " + AWKWARD,
        principal="alice",
        resource="gpu",
        on_success="shop.jobs:paid",
        on_failure="shop.jobs:unpaid",
        metadata={"trace.parent": "00-abc", "": AWKWARD},
    )


@contract("INSERT-01", needs=("clock",))
def test_crud_01_03_18_every_field_survives(store: JobStore, clock: Time) -> None:
    """A job reads back with every field as submitted, stamped by the store, at version 0 and claim 0."""
    new = full_job()
    store.insert([new])
    job = store.get(new.id)
    assert job is not None
    shared = {field.name for field in fields(NewJob)} & {field.name for field in fields(Job)}
    assert {name: getattr(job, name) for name in shared} == {name: getattr(new, name) for name in shared}
    assert (job.created_at, job.updated_at) == (clock.now(), clock.now())
    assert (job.status, job.version, job.claim_seq, job.attempts, job.crash_count) == (
        Status.PENDING, 0, 0, 0, 0,
    )  # fmt: skip
    assert job.scheduled_time == clock.now() + timedelta(hours=2)
    untouched = {field.name for field in fields(Job) if field.default is None} - shared
    assert {getattr(job, name) for name in untouched} == {None}


@contract("INSERT-15")
@pytest.mark.field_case("F38")
def test_f38_big_integers_travel_as_text(store: JobStore, driver: Driver) -> None:
    """Integers beyond 64 bits in payload, result and signal come back digit by digit (F38)."""
    for text in HUGE:
        claim = driver.claim_one(driver.submit(payload=text))
        assert claim.payload == text
        driver.end(claim, Trigger.SUCCEED, result=text)
        assert driver.job(claim.job_id).result == text
        waiting = driver.submit(start=Status.WAITING)
        assert driver.apply(Trigger.SIGNAL, waiting, signal=text).signal == text
        assert driver.claim_one(waiting).signal == text
        driver.settle(Trigger.CANCEL_RUNNING, waiting)


@contract("CLAIM-09", needs=("clock",))
def test_a_claim_carries_what_the_worker_needs(store: JobStore, driver: Driver, clock: Time) -> None:
    """Every field of a claim is the job's."""
    new = full_job()
    store.insert([new])
    clock.advance(timedelta(hours=3))
    (claim,) = driver.claim().claims
    job = driver.job(new.id)
    named = {"job_id": job.id} | {
        name: getattr(job, name) for name in type(claim).__dataclass_fields__ if name != "job_id"
    }
    assert {name: getattr(claim, name) for name in named} == named


@contract("INSERT-02")
def test_what_the_caller_changes_later_is_not_the_job(store: JobStore) -> None:
    """The store keeps its own copy of params and metadata."""
    params = {"a": "1"}
    new = new_job(params=params, metadata=params)
    store.insert([new])
    params["a"] = "2"
    job = store.get(new.id)
    assert job is not None
    assert (job.params, job.metadata) == ({"a": "1"}, {"a": "1"})


@contract("INSERT-03")
@pytest.mark.parametrize("start", [Status.PENDING, Status.WAITING])
def test_a_job_starts_where_it_says(store: JobStore, driver: Driver, start: Status) -> None:
    """PENDING and WAITING are the states in which a job begins."""
    assert driver.status(driver.submit(start=start)) is start


@contract("INSERT-04")
@pytest.mark.parametrize("start", sorted(set(Status) - {Status.PENDING, Status.WAITING}))
def test_a_job_starts_nowhere_else(store: JobStore, start: Status) -> None:
    """Another first state is a usage error and inserts nothing."""
    with pytest.raises(UsageError):
        store.insert([new_job(), new_job(start=start)])
    assert sum(store.counts().values()) == 0


@contract("INSERT-05", needs=("clock",))
@pytest.mark.parametrize(
    ("fields", "due"),
    [
        ({}, START),
        ({"delay": timedelta()}, START),
        ({"delay": -MINUTE}, START),
        ({"delay": timedelta(milliseconds=1, microseconds=1)}, START + timedelta(milliseconds=2)),
        ({"delay": timedelta(days=365 * 7999)}, LATEST),
        ({"delay": timedelta.max}, LATEST),
        ({"at": START - timedelta(days=3650)}, START - timedelta(days=3650)),
        ({"at": START + MINUTE}, START + MINUTE),
        ({"at": (START + MINUTE).astimezone(timezone(timedelta(hours=5, minutes=45)))}, START + MINUTE),
        ({"at": datetime.max.replace(tzinfo=timezone(-timedelta(hours=9)))}, LATEST),
        ({"at": datetime(1969, 7, 20, 20, 17, tzinfo=UTC)}, datetime(1969, 7, 20, 20, 17, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_due_times(store: JobStore, driver: Driver, fields: dict[str, object], due: datetime) -> None:
    """The due time is the given instant, or store time + delay rounded up and clamped, or store time."""
    new = new_job(**fields)
    (answer,) = store.insert([new])
    assert answer.scheduled_time == due
    assert driver.job(new.id).scheduled_time == due


@contract("INSERT-06", needs=("clock",))
def test_instants_are_whole_milliseconds(store: JobStore, driver: Driver, clock: Time) -> None:
    """A clock with microseconds is cut to milliseconds, never rounded up."""
    clock.advance(timedelta(microseconds=1999))
    job = driver.job(driver.submit())
    assert job.created_at == job.scheduled_time == START + timedelta(milliseconds=1)
    assert store.now() == START + timedelta(milliseconds=1)


@contract("GET-01")
def test_crud_05_09_bulk_04_many_reads(store: JobStore) -> None:
    """501 known ids and an unknown one answer exactly the known jobs, once each."""
    jobs = [new_job() for _ in range(501)]
    store.insert(jobs)
    wanted = [job.id for job in jobs]
    assert sorted(ids(store.get_many([*wanted, new_id(), *wanted[:7]]))) == sorted(wanted)
    assert list(store.get_many([])) == []
    assert store.get(new_id()) is None


@contract("GET-02")
@pytest.mark.field_case("F38")
@pytest.mark.parametrize("job_id", [UUID(int=0), UUID(int=2**128 - 1)])
def test_f38_a_strange_id_is_unknown(store: JobStore, job_id: UUID) -> None:
    """An id that nobody made is not found, rather than an error."""
    assert store.get(job_id) is None
    assert list(store.history(job_id)) == []
    assert store.delete([job_id]) == 0


@contract("COUNT-01")
def test_crud_15_counts(store: JobStore, driver: Driver) -> None:
    """Counts name every state, zeros included."""
    assert store.counts() == dict.fromkeys(Status, 0)
    driver.drive(Status.RUNNING)
    store.insert([new_job() for _ in range(3)])
    assert store.counts() == dict.fromkeys(Status, 0) | {Status.PENDING: 3, Status.RUNNING: 1}


@contract("INSERT-07")
def test_crud_17_an_id_is_inserted_once(store: JobStore, driver: Driver) -> None:
    """An id that is stored, or repeated in the list, is an error: nothing is overwritten or inserted."""
    job = driver.job(driver.submit(payload="[1]"))
    for repeated in ([new_job(), new_job(id=job.id)], [twice := new_job(), twice]):
        with pytest.raises(UsageError):
            store.insert(repeated)
    assert driver.job(job.id) == job
    assert sum(store.counts().values()) == 1


@contract("INSERT-16", needs=("clock",))
def test_crud_18_created_at_stays(driver: Driver) -> None:
    """Transitions leave created_at alone."""
    job = driver.drive(Status.FAILED, eventful=True)
    assert job.created_at == START < job.updated_at


# -- the first claim ------------------------------------------------------------------------------


def _inserted_for(store: JobStore, **fields: Any) -> tuple[Inserted, Job]:
    """A job that asks for its claim with the insert, and how it is stored: a store may grant that, or not."""
    (answer,) = store.insert([new_job(claim_for="node-1", **fields)])
    job = store.get(answer.id)
    assert job is not None
    assert job.status is answer.status is (Status.PENDING if answer.claim is None else Status.RUNNING)
    return answer, job


@contract("INSERT-17", needs=("clock",))
def test_a_first_claim_is_an_insert_and_a_claim(store: JobStore, driver: Driver) -> None:
    """A claim that came with an insert, and its row, are those of an insert and a claim in one instant."""
    words = {
        name: getattr(full_job(), name) for name in ("priority", "tags", "params", "backoff", "metadata")
    }
    answer, job = _inserted_for(store, **words)
    if answer.claim is None:
        assert (job.claim_seq, job.picked_by) == (0, None)
        driver.claim_one(job.id)
        job = driver.job(job.id)
    twin = driver.submit(**words)
    claim = driver.claim_one(twin)
    assert driver.job(twin) == replace(job, id=twin)
    if answer.claim is not None:
        assert answer.claim == replace(claim, job_id=job.id)
    assert {(job.claim_seq, job.version, job.picked_by, job.picked_at)} == {(1, 1, "node-1", START)}


@contract("INSERT-18")
def test_a_first_claim_is_held(store: JobStore, driver: Driver) -> None:
    """Whoever got a claim with an insert holds it: nobody else does, and what follows is fenced by it."""
    answer, job = _inserted_for(store, business_key="b", idempotency_key="i")
    if answer.claim is None:
        assert driver.claim_one(job.id, "node-2").claim_seq == 1
        return
    assert list(driver.claim("node-2").claims) == []
    assert list(store.held("node-1")) == [(job.id, 1)]
    assert store.find_by_key(business="b") == Inserted(job.id, created=False, status=Status.RUNNING)
    with pytest.raises(DuplicateBusinessKey):
        store.insert([new_job(claim_for="node-2", business_key="b")])
    stale = store.settle(Settlement(Change(Trigger.SUCCEED, job.id, claim_seq=0)))
    assert isinstance(stale, Refused)
    driver.end(answer.claim, Trigger.RETRY, delay=timedelta())
    assert [each.claim_seq for each in driver.history(job.id)] == [1]
    assert driver.claim_one(job.id, "node-2").claim_seq == 2


@contract("INSERT-19")
def test_a_first_claim_dies_with_its_node(store: JobStore, driver: Driver) -> None:
    """A claim that came with an insert is recovered from a dead node like any other."""
    answer, job = _inserted_for(store)
    if answer.claim is None:
        driver.claim_one(job.id)
    gone = RecoverRequest(grace=MINUTE, crash_budget=3, known_gone=frozenset({"node-1"}))
    assert [(orphan.job_id, orphan.claim_seq) for orphan in store.recover(gone).recovered] == [(job.id, 1)]
    assert (driver.job(job.id).status, driver.job(job.id).crash_count) == (Status.PENDING, 1)


@contract("INSERT-20")
def test_what_could_not_be_claimed_gets_no_first_claim(store: JobStore, driver: Driver) -> None:
    """No claim comes with an insert that names no node, nor for a job that a claim would not have taken."""
    assert store.insert([new_job()])[0].claim is None
    driver.claim("node-0")
    for words, status in (
        ({"delay": MINUTE}, Status.PENDING),
        ({"at": LATEST}, Status.PENDING),
        ({"start": Status.WAITING}, Status.WAITING),
        ({"type": JobType.BATCH}, Status.PENDING),
    ):
        (answer,) = store.insert([new_job(claim_for="node-1", **words)])
        assert (answer.claim, answer.status) == (None, status)
        assert driver.job(answer.id).status is status
    first, repeat = (new_job(claim_for="node-1", idempotency_key="k") for _ in range(2))
    answers = store.insert([first, repeat])
    assert (answers[1].id, answers[1].created, answers[1].claim) == (first.id, False, None)
    assert answers[1].status is answers[0].status is driver.job(first.id).status
    assert store.insert([repeat])[0].claim is None
    driver.submit(business_key="b")
    with pytest.raises(DuplicateBusinessKey):
        store.insert([new_job(claim_for="node-3"), new_job(business_key="b")])
    assert list(store.held("node-3")) == []


@contract("SETTLE-20")
def test_a_job_that_a_settlement_submits_gets_no_first_claim(store: JobStore, driver: Driver) -> None:
    """Nobody would learn of the claim of a job that is inserted as an effect: it is PENDING."""
    old, new = driver.submit(), new_job(claim_for="node-1")
    driver.settle(Trigger.REPLACE, old, Submit(new), superseded_by=new.id)
    assert (driver.status(new.id), list(store.held("node-1"))) == (Status.PENDING, [])


# -- idempotency keys -----------------------------------------------------------------------------


@contract("INSERT-08")
def test_crud_06_a_taken_key_answers_the_original(store: JobStore, driver: Driver) -> None:
    """A second job under an idempotency key is not inserted; it answers the first, whatever its state."""
    original = driver.submit(idempotency_key="k")
    claim = None
    for status in (Status.PENDING, Status.RUNNING, Status.SUCCEEDED):
        assert store.find_by_key(idempotency="k") == Inserted(original, created=False, status=status)
        answer = store.insert([new_job(idempotency_key="k", business_key="free")])
        assert list(answer) == [Inserted(original, created=False, status=status)]
        if status is Status.PENDING:
            claim = driver.claim_one(original)
        elif claim is not None and status is Status.RUNNING:
            driver.end(claim, Trigger.SUCCEED, result="1")
    assert store.find_by_key(idempotency="other") is None
    assert store.find_by_key(business="free") is None
    assert sum(store.counts().values()) == 1


@contract("INSERT-09")
def test_a_lost_reply_may_be_repeated(store: JobStore) -> None:
    """The same submission with its idempotency key again answers the same job (F60)."""
    new = new_job(idempotency_key="k")
    assert [store.insert([new])[0].created, store.insert([new])[0].created] == [True, False]
    assert store.find_by_key(idempotency="k") == Inserted(new.id, created=False, status=Status.PENDING)


@contract("INSERT-10")
def test_bulk_01_taken_keys_inside_a_list(store: JobStore, driver: Driver) -> None:
    """In a list a taken key answers its original, a repeat answers the first, and the others are inserted."""
    original = driver.submit(idempotency_key="a", start=Status.WAITING)
    jobs = [
        new_job(),
        new_job(idempotency_key="a"),
        new_job(idempotency_key="b"),
        new_job(idempotency_key="b"),
    ]
    answers = store.insert(jobs)
    assert [(answer.id, answer.created, answer.status) for answer in answers] == [
        (jobs[0].id, True, Status.PENDING),
        (original, False, Status.WAITING),
        (jobs[2].id, True, Status.PENDING),
        (jobs[2].id, False, Status.PENDING),
    ]
    assert sum(store.counts().values()) == 3


@contract("INSERT-11")
def test_bulk_01_a_business_conflict_inserts_nothing(store: JobStore, driver: Driver) -> None:
    """A held business key in the middle inserts no row, reserves no key and names every conflict."""
    first, second = driver.submit(business_key="a"), driver.submit(business_key="b")
    jobs = [
        new_job(idempotency_key="fresh", business_key="c"),
        new_job(business_key="a"),
        new_job(business_key="b"),
        new_job(business_key="c"),
        new_job(),
    ]
    with pytest.raises(DuplicateBusinessKey) as raised:
        store.insert(jobs)
    assert raised.value.conflicts == {"a": first, "b": second, "c": jobs[0].id}
    assert list(store.get_many([job.id for job in jobs])) == []
    assert store.find_by_key(idempotency="fresh") is None
    assert store.find_by_key(business="c") is None
    assert sum(store.counts().values()) == 2


@contract("INSERT-12")
def test_an_entry_that_is_not_inserted_needs_no_business_key(store: JobStore, driver: Driver) -> None:
    """A taken idempotency key wins over a held business key: the entry answers the original."""
    original = driver.submit(idempotency_key="k", business_key="b")
    (answer,) = store.insert([new_job(idempotency_key="k", business_key="b")])
    assert (answer.id, answer.created) == (original, False)


@contract("INSERT-13")
def test_bulk_02_03_lists(store: JobStore) -> None:
    """A list is inserted as one; an empty one does nothing."""
    assert list(store.insert([])) == []
    jobs = [new_job() for _ in range(3)]
    assert [answer.created for answer in store.insert(jobs)] == [True, True, True]
    assert len(store.get_many([job.id for job in jobs])) == 3


@contract("KEY-01")
def test_keys_are_taken_for_ever(store: JobStore, driver: Driver) -> None:
    """A deleted job's idempotency key answers its id with no status, and is never taken again."""
    job = driver.drive(Status.SUCCEEDED, idempotency_key="k")
    assert store.delete([job.id]) == 1
    gone = Inserted(job.id, created=False, status=None)
    assert store.find_by_key(idempotency="k") == gone
    assert list(store.insert([new_job(idempotency_key="k")])) == [gone]


@contract("KEY-02")
def test_find_by_key_takes_one_key(store: JobStore) -> None:
    """Both keys, or none, is a usage error."""
    with pytest.raises(UsageError):
        store.find_by_key()
    with pytest.raises(UsageError):
        store.find_by_key(idempotency="a", business="a")


@contract("KEY-03")
def test_keys_are_compared_exactly(store: JobStore, driver: Driver) -> None:
    """Case, accents, wildcards and surrounding blanks make different keys (F37)."""
    keys = ["k", "K", "k ", " k", "ḱ", "k%", "k_", "k*", "k.", "$k", "%", "_"]
    made = {key: driver.submit(idempotency_key=key, business_key=key) for key in keys}
    for key, job_id in made.items():
        idempotency, business = store.find_by_key(idempotency=key), store.find_by_key(business=key)
        assert (idempotency and idempotency.id, business and business.id) == (job_id, job_id)


# -- deleting -------------------------------------------------------------------------------------


@contract("DELETE-01")
def test_crud_10_bulk_19_20_21_delete(store: JobStore, driver: Driver) -> None:
    """Settled jobs are deleted with their history; unsettled and unknown ids are left out."""
    settled = [driver.drive(s).id for s in (Status.SUCCEEDED, Status.FAILED, Status.CANCELED)]
    unsettled = [driver.drive(s).id for s in (Status.RUNNING, Status.PAUSED, Status.WAITING, Status.PENDING)]
    assert store.delete([]) == 0
    assert store.delete([settled[0], new_id()]) == 1
    assert store.delete([*settled, *unsettled, settled[1]]) == 2
    assert list(store.get_many(settled)) == []
    assert list(store.history(settled[0])) == []
    assert sorted(ids(store.get_many(unsettled))) == sorted(unsettled)
    assert sum(store.counts().values()) == 4


@contract("DELETE-02")
def test_delete_takes_any_number(store: JobStore, driver: Driver) -> None:
    """Over a thousand ids in one call."""
    jobs = [new_job() for _ in range(1100)]
    store.insert(jobs)
    for job in jobs[:3]:
        driver.settle(Trigger.CANCEL, job.id)
    assert store.delete([job.id for job in jobs]) == 3


@contract("DELETE-03")
def test_tag_02_a_deleted_job_is_found_by_no_tag(store: JobStore, driver: Driver) -> None:
    """Tags go with their job."""
    job = driver.drive(Status.SUCCEEDED, tags=frozenset({"t"}))
    assert store.count(Selection(tags=frozenset({"t"}))) == 1
    store.delete([job.id])
    assert store.count(Selection(tags=frozenset({"t"}))) == 0


CALLS: dict[str, Callable[[JobStore], object]] = {
    "now": lambda store: store.now(),
    "insert": lambda store: store.insert([new_job()]),
    "get": lambda store: store.get(new_id()),
    "get_many": lambda store: store.get_many([new_id()]),
    "find_by_key": lambda store: store.find_by_key(business="k"),
    "delete": lambda store: store.delete([new_id()]),
    "counts": lambda store: store.counts(),
    "claim": lambda store: store.claim(request()),
    "held": lambda store: store.held("node-1"),
    "apply": lambda store: store.apply(Change(Trigger.PAUSE, new_id())),
    "settle": lambda store: store.settle(Settlement(Change(Trigger.CANCEL, new_id()))),
    "settle_many": lambda store: store.settle_many([Settlement(Change(Trigger.CANCEL, new_id()))]),
    "apply_where": lambda store: store.apply_where(Selection(), Trigger.REQUEUE, limit=1),
    "recover": lambda store: store.recover(RecoverRequest(grace=MINUTE, crash_budget=3)),
    "take_callbacks": lambda store: store.take_callbacks("node-1", grace=MINUTE, limit=1),
    "callback_done": lambda store: store.callback_done(new_id(), 1, "on_success"),
    "heartbeat": lambda store: store.heartbeat(NodeInfo(incarnation="a", name="a")),
    "nodes": lambda store: store.nodes(),
    "forget_node": lambda store: store.forget_node("a"),
    "history": lambda store: store.history(new_id()),
    "find": lambda store: store.find(Selection()),
    "count": lambda store: store.count(Selection()),
    "health": lambda store: store.health(window=MINUTE),
}
"""A plain call of every method but close."""


# -- the store as a whole -------------------------------------------------------------------------


@contract("STORE-01")
def test_capabilities_are_known_and_met(store: JobStore) -> None:
    """A store declares only known capabilities, and meets the protocol of each."""
    for name in store.capabilities:
        protocol = PROTOCOLS.get(Capability(name))
        assert protocol is None or meets(store, protocol)
    assert isinstance(store, JobStore)


@contract("INSERT-14")
def test_a_unit_is_one_that_the_store_can_join(store: JobStore) -> None:
    """What is no open transaction is refused, and every one by a store without the capability; nothing is inserted."""
    joins = Capability.TRANSACTIONAL_ENQUEUE in store.capabilities
    with pytest.raises(UsageError if joins else CapabilityMissing):
        store.insert([new_job()], unit=object())
    assert sum(store.counts().values()) == 0


@contract("STORE-02")
def test_two_handles_see_the_same_jobs(under_test: UnderTest, store: JobStore, driver: Driver) -> None:
    """What one handle has written the next one reads at once, and closing one leaves the other."""
    other = under_test.open()
    job = driver.drive(Status.RUNNING)
    assert other.get(job.id) == job
    other.close()
    assert store.get(job.id) == job


@contract("STORE-03")
@pytest.mark.parametrize("method", CALLS)
def test_a_closed_store_says_so(under_test: UnderTest, method: str) -> None:
    """Closing is idempotent; every later call raises StoreClosed."""
    closed = under_test.open()
    closed.close()
    closed.close()
    with pytest.raises(StoreClosed):
        CALLS[method](closed)
