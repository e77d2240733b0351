"""Reading: selections, pages and cursors, counts, health (facts Q, AN; F37)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, get_args
from uuid import UUID

import pytest

from conformance_tests.contract import contract
from conformance_tests.driver import MINUTE, PENDING_LAST, SECOND, START, Driver, ids, new_job
from conformance_tests.under_test import Time
from ratchet.domain.ids import new_id
from ratchet.domain.job import Job, JobType
from ratchet.domain.lifecycle import Status, Trigger
from ratchet.domain.priority import Priority
from ratchet.errors import UsageError
from ratchet.spi.store import JobStore, Order, Selection

ORDERS: Sequence[Order] = get_args(Order)


def found(store: JobStore, **fields: Any) -> list[UUID]:
    selection = Selection(**fields)
    answer = sorted(ids(store.find(selection, limit=1000).jobs))
    assert store.count(selection) == len(answer)
    return answer


# -- selections -----------------------------------------------------------------------------------


@contract("FIND-01")
def test_q_01_status(store: JobStore, driver: Driver) -> None:
    """One state, several, none that occurs, and no filter at all (Q-12)."""
    made = {status: driver.drive(status).id for status in PENDING_LAST}
    for status in Status:
        assert found(store, statuses=frozenset({status})) == [made[status]]
    both = frozenset({Status.FAILED, Status.PAUSED})
    assert found(store, statuses=both) == sorted([made[Status.FAILED], made[Status.PAUSED]])
    assert found(store) == sorted(made.values())
    store.delete([made[Status.CANCELED]])
    assert found(store, statuses=frozenset({Status.CANCELED})) == []


@contract("FIND-02")
def test_q_02_03_04_07_fields(store: JobStore, driver: Driver) -> None:
    """Priority, type, business key and principal narrow exactly; together they narrow further."""
    high = driver.submit(priority=Priority.HIGH, principal="alice", business_key="k")
    branch = driver.submit(type=JobType.BRANCH, principal="alice")
    driver.submit(principal="Alice")
    assert found(store, priorities=frozenset({Priority.HIGH, Priority.LOW})) == [high]
    assert found(store, types=frozenset({JobType.BRANCH})) == [branch]
    assert found(store, types=frozenset({JobType.BATCH})) == []
    assert found(store, principal="alice") == sorted([high, branch])
    assert found(store, business_key="k") == [high]
    assert found(store, business_key="K") == []
    assert found(store, principal="alice", priorities=frozenset({Priority.NORMAL})) == [branch]


@contract("FIND-03")
def test_a_settled_job_is_found_by_the_key_it_held(store: JobStore, driver: Driver) -> None:
    """Every job that ever held the key is found by it."""
    first = driver.drive(Status.SUCCEEDED, business_key="k").id
    second = driver.submit(business_key="k")
    assert found(store, business_key="k") == sorted([first, second])


@contract("FIND-04")
def test_q_05_tags(store: JobStore, driver: Driver) -> None:
    """All given tags are needed; an unknown one matches nothing."""
    a, ab = driver.submit(tags=frozenset({"a"})), driver.submit(tags=frozenset({"a", "b"}))
    assert found(store, tags=frozenset({"a"})) == sorted([a, ab])
    assert found(store, tags=frozenset({"a", "b"})) == [ab]
    assert found(store, tags=frozenset({"a", "c"})) == []


@contract("FIND-05")
def test_ids(store: JobStore, driver: Driver) -> None:
    """Known ids among the given ones, narrowed by whatever else is given."""
    made = [driver.submit() for _ in range(3)]
    assert found(store, ids=frozenset({made[0], made[2], new_id()})) == [made[0], made[2]]
    assert found(store, ids=frozenset({new_id()})) == []
    assert found(store, ids=frozenset(made), statuses=frozenset({Status.PAUSED})) == []


@contract("FIND-06")
def test_text_of_target_and_error(store: JobStore, driver: Driver) -> None:
    """Parts of the target and of the last error, case and all, taken literally."""
    claim = driver.claim_one(driver.submit(target="shop.jobs:Charge_card"))
    driver.end(claim, Trigger.FAIL, error="KeyError: 'a%b'")
    driver.submit(target="shop.jobs:ChargeXcard")
    assert found(store, target="Charge_") == [claim.job_id]
    assert found(store, target="charge_") == []
    assert len(found(store, target="shop.jobs:")) == 2
    assert found(store, error="a%b") == [claim.job_id]
    assert found(store, error="a_b") == found(store, error="keyerror") == []


@contract("FIND-07", needs=("clock",))
def test_q_08_time_ranges(store: JobStore, driver: Driver, clock: Time) -> None:
    """Ranges include their start and exclude their end; an unsettled job has no end."""
    made = []
    for number in range(3):
        made.append(driver.submit())
        clock.advance(MINUTE)
        if number < 2:
            driver.settle(Trigger.CANCEL, made[-1])
    assert found(store, created_from=START + MINUTE) == made[1:]
    assert found(store, created_before=START + MINUTE) == made[:1]
    assert found(store, created_from=START, created_before=START + 2 * MINUTE) == made[:2]
    assert found(store, created_from=START + timedelta(days=1)) == []
    assert found(store, ended_from=START + 2 * MINUTE) == made[1:2]
    assert found(store, ended_before=START + 2 * MINUTE) == made[:1]
    assert found(store, ended_from=START) == made[:2]


# -- pages ----------------------------------------------------------------------------------------


@pytest.fixture
def varied(store: JobStore, driver: Driver, clock: Time) -> list[Job]:
    """Jobs with equal and different creation, due and end times, in every order of ids."""
    for number in range(24):
        if number % 3 == 0:
            clock.advance(SECOND)
        job_id = driver.submit(at=START + (number * 7 % 5) * MINUTE)
        if number % 4 == 1:
            driver.settle(Trigger.CANCEL, job_id)
        elif number % 4 == 2:
            driver.settle(Trigger.CANCEL, job_id, age=(number % 3) * SECOND)
    store.insert([new_job(id=job.id) for job in reversed([new_job() for _ in range(6)])])
    jobs = store.find(Selection(), limit=1000).jobs
    assert len(jobs) == 30
    return list(jobs)


def sort_key(order: Order, job: Job) -> tuple[float, UUID]:
    """What an order sorts by; ties by id ascending; what has not ended comes last."""
    since = {
        "created_desc": -(job.created_at - START).total_seconds(),
        "created_asc": (job.created_at - START).total_seconds(),
        "id_asc": 0.0,
        "ended_desc": float("inf") if job.ended_at is None else -(job.ended_at - START).total_seconds(),
        "scheduled_asc": (job.scheduled_time - START).total_seconds(),
    }
    return since[order], job.id


@contract("FIND-08", needs=("clock",))
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("limit", [1, 7, 30, 31])
def test_q_09_10_13_pages(store: JobStore, varied: list[Job], order: Order, limit: int) -> None:
    """Pages follow each other in the order asked for, ties by id, without gap or repeat."""
    seen: list[UUID] = []
    cursor = None
    for _ in range(100):
        page = store.find(Selection(), order=order, limit=limit, cursor=cursor)
        seen += ids(page.jobs)
        cursor = page.cursor
        if cursor is None:
            break
        assert len(page.jobs) == limit
    assert seen == ids(sorted(varied, key=lambda job: sort_key(order, job)))


@contract("FIND-09", needs=("clock",))
def test_q_10_the_default_is_newest_first(store: JobStore, varied: list[Job]) -> None:
    """Without an order: created descending, then id ascending, at most 100."""
    assert ids(store.find(Selection()).jobs) == ids(
        sorted(varied, key=lambda job: sort_key("created_desc", job))
    )
    store.insert([new_job() for _ in range(90)])
    assert len(store.find(Selection()).jobs) == 100


@contract("FIND-10", needs=("clock",))
def test_pages_narrow(store: JobStore, varied: list[Job]) -> None:
    """A cursor goes on within the selection that it came from."""
    canceled = Selection(statuses=frozenset({Status.CANCELED}))
    first = store.find(canceled, order="id_asc", limit=5)
    rest = store.find(canceled, order="id_asc", limit=1000, cursor=first.cursor)
    expected = sorted(job.id for job in varied if job.status is Status.CANCELED)
    assert ids([*first.jobs, *rest.jobs]) == expected
    assert rest.cursor is None


@contract("FIND-11", needs=("clock",))
@pytest.mark.parametrize("order", ORDERS)
def test_a_cursor_survives_its_row(store: JobStore, varied: list[Job], order: Order) -> None:
    """The job at which a page ended may be gone; the next page goes on behind its place."""
    settled = Selection(statuses=frozenset({Status.CANCELED}))
    whole = ids(store.find(settled, order=order).jobs)
    first = store.find(settled, order=order, limit=4)
    store.delete([first.jobs[-1].id])
    assert ids(store.find(settled, order=order, cursor=first.cursor).jobs) == whole[4:]


@contract("FIND-12")
@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_page_limits(store: JobStore, limit: int) -> None:
    """A limit outside 1 to 1000 is a usage error."""
    with pytest.raises(UsageError):
        store.find(Selection(), limit=limit)


@contract("FIND-13")
@pytest.mark.parametrize("cursor", ["", "x", "a:b:c:d", "memory:id_asc:0:x", "é", "eyJhIjoxfQ==", "1|2"])
def test_foreign_cursors(store: JobStore, cursor: str) -> None:
    """A cursor that this store did not make is a usage error."""
    with pytest.raises(UsageError):
        store.find(Selection(), cursor=cursor)


@contract("FIND-14", needs=("clock",))
def test_a_cursor_of_another_order(store: JobStore, varied: list[Job]) -> None:
    """A cursor goes on only in the order in which it began."""
    cursor = store.find(Selection(), order="created_desc", limit=2).cursor
    assert cursor is not None
    for order in ORDERS[1:]:
        with pytest.raises(UsageError):
            store.find(Selection(), order=order, cursor=cursor)


# -- health ---------------------------------------------------------------------------------------


@contract("HEALTH-01", needs=("clock",))
def test_an_empty_queue_is_healthy(store: JobStore, clock: Time) -> None:
    """Nothing to tell: zeros, and None where there is no value."""
    health = store.health(window=MINUTE)
    assert (health.now, health.window, dict(health.by_status)) == (
        clock.now(),
        MINUTE,
        dict.fromkeys(Status, 0),
    )
    assert not any(health.pending_by_priority.values())
    assert not any(health.pending_by_type.values())
    assert (health.oldest_due_age, health.success_rate, health.throughput) == (None, None, 0)
    assert (health.p50, health.p95, health.p99) == (None, None, None)


@contract("HEALTH-02")
def test_an_01_02_03_counts(store: JobStore, driver: Driver) -> None:
    """By status all jobs; by priority and type only what is pending."""
    driver.drive(Status.SUCCEEDED)
    driver.drive(Status.RUNNING, priority=Priority.CRITICAL)
    for priority in (Priority.HIGH, Priority.CRITICAL):
        driver.submit(priority=priority, type=JobType.BATCH_CHILD)
    driver.submit(delay=MINUTE)
    health = store.health(window=MINUTE)
    assert health.by_status == store.counts()
    by_priority = {key: count for key, count in health.pending_by_priority.items() if count}
    assert by_priority == {Priority.HIGH: 1, Priority.CRITICAL: 1, Priority.NORMAL: 1}
    by_type = {key: count for key, count in health.pending_by_type.items() if count}
    assert by_type == {JobType.BATCH_CHILD: 2, JobType.SINGLE: 1}


@contract("HEALTH-03", needs=("clock",))
def test_the_oldest_due_job(store: JobStore, driver: Driver, clock: Time) -> None:
    """The age is since the earliest due time among jobs that wait for a claim; a future one has none."""
    driver.submit(delay=timedelta(hours=1))
    driver.submit(start=Status.WAITING, at=START - timedelta(days=9))
    driver.submit(type=JobType.BATCH, at=START - timedelta(days=9))
    assert store.health(window=MINUTE).oldest_due_age is None
    driver.submit(at=START - MINUTE)
    driver.submit()
    clock.advance(SECOND)
    assert store.health(window=MINUTE).oldest_due_age == MINUTE + SECOND


@contract("HEALTH-04", needs=("clock",))
def test_throughput_and_durations(store: JobStore, driver: Driver, clock: Time) -> None:
    """Rate, success share and percentiles are of what settled as SUCCEEDED or FAILED in the window."""

    def settle(trigger: Trigger, seconds: int) -> None:
        claim = driver.claim_one(driver.submit())
        driver.end(claim, trigger, duration=seconds * SECOND, result="1")

    for _ in range(10):
        settle(Trigger.SUCCEED, 3600)
    clock.advance(timedelta(hours=1))
    for seconds in range(1, 101):
        settle(Trigger.SUCCEED if seconds % 4 else Trigger.FAIL, seconds)
    driver.drive(Status.CANCELED)
    health = store.health(window=10 * MINUTE)
    assert health.throughput == pytest.approx(100 / 600)
    assert health.success_rate == pytest.approx(0.75)
    for percentile, seconds in ((health.p50, 50), (health.p95, 95), (health.p99, 99)):
        assert percentile is not None
        assert abs(percentile - seconds * SECOND) <= SECOND
