"""Pause, resume, requeue, replace and cancel, one by one and in bulk (facts PAUSE, RETRY, BK, DUAL; F37, F64, F73)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import cast
from uuid import UUID

import pytest

from conformance_tests.contract import contract
from conformance_tests.driver import MINUTE, SECOND, Driver, ids, new_job
from conformance_tests.under_test import Time
from ratchet.domain.ids import new_id
from ratchet.domain.lifecycle import (
    CANCELABLE,
    HOLDS_BUSINESS_KEY,
    REPLACEABLE,
    Status,
    Trigger,
)
from ratchet.domain.settlement import Change, Effect, RunCallback, Settlement, Submit
from ratchet.errors import CapabilityMissing, DuplicateBusinessKey, DuplicateIdempotencyKey, UsageError
from ratchet.spi.store import Inserted, JobStore, Refused, Selection, Settled

APPLIED = {Trigger.PAUSE, Trigger.RESUME, Trigger.UNBLOCK, Trigger.REQUEUE, Trigger.SIGNAL}
SETTLED_BY = set(Trigger) - APPLIED - {Trigger.CLAIM, Trigger.RECOVER}


def by_business_key(store: JobStore, key: str) -> UUID | None:
    found = store.find_by_key(business=key)
    return found.id if found else None


# -- pause, resume, requeue -----------------------------------------------------------------------


@contract("APPLY-01", needs=("clock",))
def test_pause_01_02_and_back(driver: Driver, clock: Time) -> None:
    """Pause remembers where it came from; resume forgets it and keeps the original due time (F64)."""
    job = driver.drive(Status.PENDING)
    paused = driver.apply(Trigger.PAUSE, job.id)
    assert (paused.status, paused.paused_from_status) == (Status.PAUSED, Status.PENDING)
    clock.advance(MINUTE)
    assert driver.claim().claims == []
    resumed = driver.apply(Trigger.RESUME, job.id)
    assert (resumed.status, resumed.paused_from_status) == (Status.PENDING, None)
    assert resumed.scheduled_time == job.scheduled_time
    assert resumed.version == job.version + 2
    assert ids(driver.claim().claims) == [job.id]


@contract("APPLY-02")
@pytest.mark.parametrize("trigger", sorted(APPLIED))
def test_pause_04_retry_06_08_unknown_ids(store: JobStore, trigger: Trigger) -> None:
    """An unknown id is refused without a job, not an error."""
    job_id = new_id()
    answer = store.apply(Change(trigger, job_id))
    assert isinstance(answer, Refused)
    assert (answer.job_id, answer.current) == (job_id, None)


@contract("APPLY-03")
@pytest.mark.parametrize("trigger", sorted(set(Trigger) - APPLIED))
def test_apply_takes_only_its_own_triggers(store: JobStore, driver: Driver, trigger: Trigger) -> None:
    """A row that ends a claim or has consequences does not go by apply."""
    job = driver.drive(Status.RUNNING)
    with pytest.raises(UsageError):
        store.apply(Change(trigger, job.id, claim_seq=1, target=Status.FAILED))
    assert driver.job(job.id) == job


@contract("SETTLE-01")
@pytest.mark.parametrize("trigger", sorted(set(Trigger) - SETTLED_BY))
def test_settle_takes_only_its_own_triggers(store: JobStore, driver: Driver, trigger: Trigger) -> None:
    """A row that ends no claim and has no consequences does not go by settle, alone or in a list."""
    job = driver.drive(Status.RUNNING)
    wrong = Settlement(Change(trigger, job.id, claim_seq=1))
    right = Settlement(Change(Trigger.SUCCEED, job.id, claim_seq=1, result="1"))
    with pytest.raises(UsageError):
        store.settle(wrong)
    with pytest.raises(UsageError):
        store.settle_many([right, wrong])
    assert driver.job(job.id) == job


@contract("APPLY-04")
@pytest.mark.parametrize("trigger", [Trigger.PAUSE, Trigger.CANCEL])
def test_a_stale_version_is_refused(store: JobStore, driver: Driver, trigger: Trigger) -> None:
    """A change that insists on a version is refused at any other."""
    job = driver.drive(Status.PENDING, eventful=True)
    for version in (job.version - 1, job.version + 1):
        change = Change(trigger, job.id, version=version)
        answer = store.apply(change) if trigger in APPLIED else store.settle(Settlement(change))
        assert isinstance(answer, Refused)
        assert answer.current == job
    change = Change(trigger, job.id, version=job.version)
    answer = store.apply(change) if trigger in APPLIED else store.settle(Settlement(change))
    assert not isinstance(answer, Refused)


@contract("APPLY-09")
def test_a_change_may_insist_on_a_claim(store: JobStore, driver: Driver) -> None:
    """A change by hand that carries a claim number is refused at any other claim."""
    job = driver.drive(Status.PENDING, eventful=True)
    for claim_seq in (job.claim_seq - 1, job.claim_seq + 1):
        answer = store.apply(Change(Trigger.PAUSE, job.id, claim_seq))
        assert isinstance(answer, Refused)
        assert answer.current == job == driver.job(job.id)
    assert driver.apply(Trigger.PAUSE, job.id, claim_seq=job.claim_seq).status is Status.PAUSED


@dataclass(frozen=True)
class Unknown:
    """An effect of a capability that no store declares, as a later version may have it."""

    capability: str = "not-built-yet"


@contract("SETTLE-19")
@pytest.mark.parametrize("in_a_list", [False, True], ids=["alone", "in a list"])
def test_an_effect_needs_its_capability(store: JobStore, driver: Driver, in_a_list: bool) -> None:
    """An effect of a capability that is not declared raises CapabilityMissing before any write."""
    jobs = [driver.drive(Status.RUNNING) for _ in range(2)]
    effects = (RunCallback("on_success", "m:f", "1"), cast("Effect", Unknown()))
    first, second = (Settlement(Change(Trigger.SUCCEED, job.id, 1, result="1")) for job in jobs)
    asked = replace(second, effects=effects)
    with pytest.raises(CapabilityMissing) as raised:
        store.settle_many([first, asked]) if in_a_list else store.settle(asked)
    assert raised.value.capability == "not-built-yet"
    assert [driver.job(job.id) for job in jobs] == jobs
    assert list(store.take_callbacks("x", grace=timedelta(), limit=9)) == []


@contract("APPLY-05", needs=("clock",))
def test_retry_07_a_requeue_is_a_new_life(driver: Driver, clock: Time) -> None:
    """Requeue clears attempts, crashes, error, result and timings and is due now; the history stays."""
    failed = driver.drive(Status.FAILED, eventful=True)
    assert failed.attempts == 2
    assert failed.crash_count == 1
    clock.advance(MINUTE)
    job = driver.apply(Trigger.REQUEUE, failed.id)
    assert (job.status, job.attempts, job.crash_count, job.scheduled_time) == (
        Status.PENDING,
        0,
        0,
        clock.now(),
    )
    cleared = (job.last_error, job.result, job.started_at, job.ended_at, job.duration, job.queue_wait)
    assert cleared == (None,) * 6
    assert len(driver.store.history(job.id)) == 3
    assert driver.claim_one(job.id).claim_seq == 4


@contract("APPLY-06")
def test_dual_03_requeue_takes_its_key_again(store: JobStore, driver: Driver) -> None:
    """After a requeue the key is held by the same job and refuses others."""
    job = driver.drive(Status.FAILED, business_key="k")
    assert by_business_key(store, "k") is None
    driver.apply(Trigger.REQUEUE, job.id)
    assert by_business_key(store, "k") == job.id
    with pytest.raises(DuplicateBusinessKey):
        store.insert([new_job(business_key="k")])


@contract("APPLY-07")
def test_requeue_of_a_key_in_use(store: JobStore, driver: Driver) -> None:
    """A requeue whose key is held raises, names the holder, and changes nothing."""
    failed = driver.drive(Status.FAILED, business_key="k")
    holder = driver.submit(business_key="k")
    with pytest.raises(DuplicateBusinessKey) as raised:
        store.apply(Change(Trigger.REQUEUE, failed.id))
    assert raised.value.conflicts == {"k": holder}
    assert driver.job(failed.id) == failed
    assert by_business_key(store, "k") == holder


@contract("APPLY-08", needs=("clock",))
def test_a_signal_releases_a_waiting_job(driver: Driver, clock: Time) -> None:
    """A signal makes a waiting job due now and hands it the payload; a second one is refused."""
    job_id = driver.submit(start=Status.WAITING, delay=timedelta(hours=1))
    clock.advance(SECOND)
    job = driver.apply(Trigger.SIGNAL, job_id, signal='{"decision": "approved"}')
    assert (job.status, job.scheduled_time) == (Status.PENDING, clock.now())
    assert isinstance(driver.store.apply(Change(Trigger.SIGNAL, job_id, signal="2")), Refused)
    assert driver.claim_one(job_id).signal == '{"decision": "approved"}'


# -- business keys --------------------------------------------------------------------------------


@contract("KEY-04")
@pytest.mark.parametrize("status", list(Status))
def test_bk_01_to_05_09_12_who_holds_a_key(store: JobStore, driver: Driver, status: Status) -> None:
    """An unsettled job holds its key and refuses others; a settled one has freed it at that moment."""
    job = driver.drive(status, business_key="k")
    newcomer = new_job(business_key="k")
    if status in HOLDS_BUSINESS_KEY:
        assert store.find_by_key(business="k") == Inserted(job.id, created=False, status=status)
        with pytest.raises(DuplicateBusinessKey) as raised:
            store.insert([newcomer])
        assert raised.value.holder == job.id
        assert store.get(newcomer.id) is None
    else:
        assert store.find_by_key(business="k") is None
        store.insert([newcomer])
        assert by_business_key(store, "k") == newcomer.id
    assert driver.job(job.id).business_key == "k"


@contract("KEY-05")
def test_bk_07_08_a_key_is_held_through_a_pause(store: JobStore, driver: Driver) -> None:
    """Pause and resume keep the key throughout; cancel of a paused job frees it for a distinct one."""
    job_id = driver.submit(business_key="k")
    for trigger in (Trigger.PAUSE, Trigger.RESUME, Trigger.PAUSE):
        driver.apply(trigger, job_id)
        assert by_business_key(store, "k") == job_id
    driver.settle(Trigger.CANCEL, job_id)
    assert by_business_key(store, "k") is None
    assert driver.submit(business_key="k") != job_id


@contract("KEY-06")
def test_bk_10_11_16_keys_are_apart(store: JobStore, driver: Driver) -> None:
    """Each key resolves to its own job; settling one leaves the other's alone; an unknown key is nobody's."""
    a = driver.drive(Status.RUNNING, business_key="a")
    b = driver.submit(business_key="b")
    driver.settle(Trigger.SUCCEED, a.id, claim_seq=1, result="1")
    assert (by_business_key(store, "a"), by_business_key(store, "b")) == (None, b)
    assert by_business_key(store, "c") is None


# -- cancel and replace ---------------------------------------------------------------------------


@contract("SETTLE-02")
@pytest.mark.parametrize("status", sorted(CANCELABLE))
def test_dual_07_cancel_first(store: JobStore, driver: Driver, status: Status) -> None:
    """A canceled job is not claimed, its key is free, and a second cancel is refused."""
    job = driver.drive(status, business_key="k")
    driver.settle(Trigger.CANCEL, job.id)
    assert driver.claim().claims == []
    assert by_business_key(store, "k") is None
    assert isinstance(store.settle(Settlement(Change(Trigger.CANCEL, job.id))), Refused)
    canceled = driver.job(job.id)
    assert (canceled.ended_at, canceled.started_at) == (canceled.updated_at, None)


@contract("SETTLE-03")
@pytest.mark.parametrize("status", sorted(REPLACEABLE))
def test_replace_moves_the_key(store: JobStore, driver: Driver, status: Status) -> None:
    """The new job takes over the business key in the same unit; the old one is CANCELED and names it."""
    old = driver.drive(status, business_key="k", idempotency_key="i")
    new = new_job(idempotency_key="j")
    driver.settle(Trigger.REPLACE, old.id, Submit(new), superseded_by=new.id)
    replaced = driver.job(old.id)
    assert (replaced.status, replaced.superseded_by, replaced.business_key) == (Status.CANCELED, new.id, "k")
    assert by_business_key(store, "k") == new.id
    assert driver.job(new.id).business_key == "k"
    kept = store.find_by_key(idempotency="i")
    assert kept == Inserted(old.id, created=False, status=Status.CANCELED)
    assert ids(driver.claim().claims) == [new.id]


@contract("SETTLE-04")
def test_replace_by_the_same_or_another_key(store: JobStore, driver: Driver) -> None:
    """The new job may name the key just freed, or another that is free; then the old one's is free."""
    first = driver.submit(business_key="k")
    same, other = new_job(business_key="k"), new_job(business_key="l")
    driver.settle(Trigger.REPLACE, first, Submit(same), superseded_by=same.id)
    assert by_business_key(store, "k") == same.id
    driver.settle(Trigger.REPLACE, same.id, Submit(other), superseded_by=other.id)
    assert (by_business_key(store, "k"), by_business_key(store, "l")) == (None, other.id)


@contract("SETTLE-05")
def test_replace_without_any_key(store: JobStore, driver: Driver) -> None:
    """A job without a business key is replaced by one without."""
    old, new = driver.submit(), new_job()
    driver.settle(Trigger.REPLACE, old, Submit(new), superseded_by=new.id)
    assert driver.job(new.id).business_key is None


@contract("SETTLE-06")
@pytest.mark.parametrize("refused", ["business", "idempotency", "id"])
def test_a_replacement_that_cannot_be_inserted(store: JobStore, driver: Driver, refused: str) -> None:
    """A held business key, a taken idempotency key or a stored id raises; the old job is unchanged."""
    old = driver.drive(Status.PENDING, business_key="k")
    other = driver.drive(Status.WAITING, business_key="l", idempotency_key="i")
    new, error = {
        "business": (new_job(business_key="l"), DuplicateBusinessKey),
        "idempotency": (new_job(idempotency_key="i"), DuplicateIdempotencyKey),
        "id": (new_job(id=other.id), UsageError),
    }[refused]
    change = Change(Trigger.REPLACE, old.id, superseded_by=new.id)
    with pytest.raises(error):
        store.settle(Settlement(change, (Submit(new),)))
    assert driver.job(old.id) == old
    assert driver.job(other.id) == other
    assert by_business_key(store, "k") == old.id
    assert sum(store.counts().values()) == 2


@contract("SETTLE-07")
@pytest.mark.parametrize("status", sorted(set(Status) - REPLACEABLE))
def test_not_replaceable(store: JobStore, driver: Driver, status: Status) -> None:
    """Of a running or settled job a replacement is refused, and the new job does not exist."""
    old = driver.drive(status, business_key="k")
    new = new_job()
    change = Change(Trigger.REPLACE, old.id, superseded_by=new.id)
    answer = store.settle(Settlement(change, (Submit(new),)))
    assert isinstance(answer, Refused)
    assert answer.current == old
    assert store.get(new.id) is None


@contract("SETTLE-08")
def test_term_04_a_settlement_is_all_or_nothing(store: JobStore, driver: Driver) -> None:
    """If one effect cannot be resolved nothing is written: no field, key, history row, job or callback."""
    driver.drive(Status.WAITING, business_key="held")
    job = driver.drive(Status.RUNNING, business_key="k")
    first, second = new_job(idempotency_key="i", tags=frozenset({"t"})), new_job(business_key="held")
    effects = (RunCallback("on_success", "m:f", "1"), Submit(first), Submit(second))
    change = Change(Trigger.SUCCEED, job.id, claim_seq=1, result="1")
    before = store.counts()
    with pytest.raises(DuplicateBusinessKey):
        store.settle(Settlement(change, effects))
    assert driver.job(job.id) == job
    assert store.counts() == before
    assert list(store.get_many([first.id, second.id])) == []
    assert store.find_by_key(idempotency="i") is None
    assert store.count(Selection(tags=frozenset({"t"}))) == 0
    assert list(store.history(job.id)) == []
    assert by_business_key(store, "k") == job.id
    assert list(store.take_callbacks("x", grace=timedelta(), limit=9)) == []
    assert list(store.held("node-1")) == [(job.id, 1)]
    driver.settle(Trigger.SUCCEED, job.id, *effects[:2], claim_seq=1, result="1")
    assert driver.status(first.id) is Status.PENDING
    assert len(store.take_callbacks("x", grace=timedelta(), limit=9)) == 1


@contract("MANY-01")
@pytest.mark.parametrize("taken", ["business", "idempotency"])
def test_in_a_list_a_conflict_is_one_refusal(store: JobStore, driver: Driver, taken: str) -> None:
    """An entry of settle_many whose job cannot be submitted is refused; the outcomes beside it are kept."""
    driver.drive(Status.WAITING, business_key="held", idempotency_key="held")
    jobs = [driver.drive(Status.RUNNING) for _ in range(3)]
    new = new_job(business_key="held") if taken == "business" else new_job(idempotency_key="held")
    settlements = [
        Settlement(Change(Trigger.SUCCEED, job.id, claim_seq=1, result="1"), effects)
        for job, effects in zip(jobs, ((), (Submit(new),), (Submit(new_job()),)), strict=True)
    ]
    answers = store.settle_many(settlements)
    assert [isinstance(answer, Settled) for answer in answers] == [True, False, True]
    assert isinstance(answers[1], Refused)
    assert answers[1].current == driver.job(jobs[1].id) == jobs[1]
    assert store.get(new.id) is None
    assert list(store.history(jobs[1].id)) == []


@contract("MANY-02")
def test_one_refused_entry_leaves_the_others(store: JobStore, driver: Driver) -> None:
    """In settle_many a stale or unknown entry is refused in its place; all others are applied."""
    jobs = [driver.drive(Status.RUNNING) for _ in range(3)]
    changes = [Change(Trigger.SUCCEED, job.id, claim_seq=1, result="1") for job in jobs]
    changes[1] = replace(changes[1], claim_seq=2)
    changes.insert(0, Change(Trigger.SUCCEED, new_id(), claim_seq=1, result="1"))
    changes.append(changes[1])
    answers = store.settle_many([Settlement(change) for change in changes])
    assert [isinstance(answer, Settled) for answer in answers] == [False, True, False, True, False]
    assert [answer.job_id for answer in answers] == [change.job_id for change in changes]
    statuses = [driver.status(job.id) for job in jobs]
    assert statuses == [Status.SUCCEEDED, Status.RUNNING, Status.SUCCEEDED]
    assert list(store.settle_many([])) == []


# -- in bulk --------------------------------------------------------------------------------------

LITERAL_TAGS = ["100%", "_", "%", "*", ".*", "a.b", "axb", "$set", "a", "[a]", "a\\", "é"]


@contract("FIND-15")
@pytest.mark.field_case("F37")
@pytest.mark.parametrize("tag", LITERAL_TAGS)
def test_f37_tags_and_keys_match_literally(store: JobStore, driver: Driver, tag: str) -> None:
    """A tag, business key, principal, target or error with wildcard characters matches only itself (F37)."""
    made = {
        text: driver.submit(
            tags=frozenset({text}), business_key=text, principal=text, target=f"m:{text}|", executor="none"
        )
        for text in LITERAL_TAGS
    }
    for selection in (
        Selection(tags=frozenset({tag})),
        Selection(business_key=tag),
        Selection(principal=tag),
        Selection(target=f":{tag}|"),
    ):
        assert ids(store.find(selection).jobs) == [made[tag]]
        assert store.count(selection) == 1


@contract("BULK-01")
def test_bulk_22_23_cancel_by_tag(store: JobStore, driver: Driver) -> None:
    """A page of ids by tag, then settle_many: PENDING, PAUSED and WAITING are canceled, nothing else."""
    tag = frozenset({"t%"})
    doomed = [driver.drive(s, tags=tag).id for s in (Status.WAITING, Status.PAUSED)]
    spared = [driver.drive(s, tags=tag).id for s in (Status.RUNNING, Status.SUCCEEDED)]
    doomed += [driver.submit(tags=tag) for _ in range(3)]
    spared += [driver.submit(), driver.submit(tags=frozenset({"tx"}))]
    page = store.find(Selection(tags=tag, statuses=CANCELABLE), order="id_asc")
    assert sorted(ids(page.jobs)) == sorted(doomed)
    answers = store.settle_many([Settlement(Change(Trigger.CANCEL, job.id)) for job in page.jobs])
    assert all(isinstance(answer, Settled) for answer in answers)
    assert {driver.status(job_id) for job_id in doomed} == {Status.CANCELED}
    assert Status.CANCELED not in {driver.status(job_id) for job_id in spared}
    assert list(store.find(Selection(tags=tag, statuses=CANCELABLE)).jobs) == []


@contract("BULK-02", needs=("clock",))
def test_retry_09_bulk_requeue(store: JobStore, driver: Driver, clock: Time) -> None:
    """Of the FAILED jobs of a filter the oldest up to the limit get a new life; nothing else moves."""
    a = [driver.drive(Status.FAILED, tags=frozenset({"a"})) for _ in range(3)]
    b = driver.drive(Status.FAILED, tags=frozenset({"b"}))
    other = driver.drive(Status.SUCCEEDED, tags=frozenset({"a"}))
    clock.advance(MINUTE)
    answer = store.apply_where(Selection(tags=frozenset({"a"})), Trigger.REQUEUE, limit=2)
    assert (list(answer.ids), dict(answer.skipped), answer.now) == ([a[0].id, a[1].id], {}, clock.now())
    for job in a[:2]:
        changed = driver.job(job.id)
        assert (changed.status, changed.attempts, changed.last_error) == (Status.PENDING, 0, None)
        assert (changed.version, changed.scheduled_time) == (job.version + 1, clock.now())
    assert [driver.job(job.id) for job in (a[2], b, other)] == [a[2], b, other]


@contract("BULK-03")
def test_retry_10_bulk_requeue_is_narrowed_to_failed(store: JobStore, driver: Driver) -> None:
    """Statuses of the filter are intersected with FAILED."""
    failed = driver.drive(Status.FAILED)
    waiting = driver.drive(Status.WAITING)
    not_failed = frozenset(Status) - {Status.FAILED}
    assert list(store.apply_where(Selection(statuses=not_failed), Trigger.REQUEUE, limit=9).ids) == []
    answer = store.apply_where(Selection(statuses=frozenset(Status)), Trigger.REQUEUE, limit=9)
    assert list(answer.ids) == [failed.id]
    assert driver.job(waiting.id) == waiting


@contract("BULK-04")
@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_retry_12_bulk_limits(store: JobStore, limit: int) -> None:
    """A limit outside 1 to 1000 is a usage error."""
    with pytest.raises(UsageError):
        store.apply_where(Selection(), Trigger.REQUEUE, limit=limit)


@contract("BULK-05")
@pytest.mark.parametrize("trigger", sorted(set(Trigger) - {Trigger.REQUEUE, Trigger.SIGNAL}))
def test_bulk_does_only_requeue(store: JobStore, trigger: Trigger) -> None:
    """No other row is applied in bulk."""
    with pytest.raises(UsageError):
        store.apply_where(Selection(), trigger, limit=1)


@contract("BULK-06")
@pytest.mark.field_case("F73")
def test_f73_abort_is_all_or_nothing(store: JobStore, driver: Driver) -> None:
    """With abort one key in use raises with every conflict, and no job is requeued (F73)."""
    free = driver.drive(Status.FAILED)
    held = [driver.drive(Status.FAILED, business_key=key) for key in ("a", "b")]
    holders = {key: driver.submit(business_key=key) for key in ("a", "b")}
    with pytest.raises(DuplicateBusinessKey) as raised:
        store.apply_where(Selection(), Trigger.REQUEUE, limit=10)
    assert raised.value.conflicts == holders
    assert [driver.job(job.id) for job in (free, *held)] == [free, *held]


@contract("BULK-07")
@pytest.mark.field_case("F73")
def test_f73_skip_names_what_it_left(store: JobStore, driver: Driver) -> None:
    """With skip, jobs whose key is in use stay FAILED and are named with the reason (F73)."""
    held = driver.drive(Status.FAILED, business_key="a")
    free = driver.drive(Status.FAILED, business_key="b")
    driver.submit(business_key="a")
    answer = store.apply_where(Selection(), Trigger.REQUEUE, limit=10, on_conflict="skip")
    assert list(answer.ids) == [free.id]
    assert list(answer.skipped) == [held.id]
    assert "'a'" in answer.skipped[held.id]
    assert driver.job(held.id) == held
    assert by_business_key(store, "b") == free.id


@contract("BULK-08")
@pytest.mark.field_case("F73")
def test_f73_two_failed_jobs_of_one_key(store: JobStore, driver: Driver) -> None:
    """Of two FAILED jobs with one key only the older gets it back."""
    first, second = (driver.drive(Status.FAILED, business_key="k") for _ in range(2))
    with pytest.raises(DuplicateBusinessKey):
        store.apply_where(Selection(), Trigger.REQUEUE, limit=10)
    assert driver.status(first.id) is Status.FAILED
    answer = store.apply_where(Selection(), Trigger.REQUEUE, limit=10, on_conflict="skip")
    assert (list(answer.ids), list(answer.skipped)) == ([first.id], [second.id])


@contract("BULK-09")
@pytest.mark.field_case("F73")
def test_f73_conflicts_do_not_block_a_page(store: JobStore, driver: Driver) -> None:
    """The limit counts what is requeued, so that conflicts at the head cannot stop a bulk retry (F73)."""
    for key in ("a", "b", "c"):
        driver.drive(Status.FAILED, business_key=key)
    free = [driver.drive(Status.FAILED).id for _ in range(2)]
    for key in ("a", "b", "c"):
        driver.submit(business_key=key)
    answer = store.apply_where(Selection(), Trigger.REQUEUE, limit=2, on_conflict="skip")
    assert list(answer.ids) == free


@contract("BULK-10", needs=("clock",))
def test_bulk_requeue_by_error_and_age(store: JobStore, driver: Driver, clock: Time) -> None:
    """The filter's error text and time range narrow a bulk requeue."""
    old = driver.drive(Status.FAILED)
    clock.advance(MINUTE)
    claim = driver.claim_one(driver.submit())
    driver.end(claim, Trigger.FAIL, error="KeyError: 100%")
    assert list(store.apply_where(Selection(error="100_"), Trigger.REQUEUE, limit=9).ids) == []
    answer = store.apply_where(Selection(ended_before=clock.now()), Trigger.REQUEUE, limit=9)
    assert list(answer.ids) == [old.id]
    answer = store.apply_where(Selection(error="Error: 100%"), Trigger.REQUEUE, limit=9)
    assert list(answer.ids) == [claim.job_id]
