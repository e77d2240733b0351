"""The cells of the table again, on rows that the harness has written as they stand.

Driven through the SPI a job has the counters of its few transitions; here it has had a long life, and
every field that a transition could touch by mistake has a value.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from conformance_tests.contract import contract
from conformance_tests.driver import MINUTE, SECOND, Driver
from conformance_tests.test_table import ALLOWED, KEY, REFUSED, assert_allowed, assert_refused
from conformance_tests.under_test import UnderTest
from ratchet.domain.ids import new_id
from ratchet.domain.job import Job, JobType
from ratchet.domain.lifecycle import ROWS, SETTLED, UNSCHEDULED, Status, Trigger
from ratchet.domain.priority import Priority
from ratchet.spi.store import JobStore


def seeded(under_test: UnderTest, store: JobStore, trigger: Trigger, status: Status) -> Job:
    """A job in `status` with a past, for which nothing but its status stands in the way of `trigger`."""
    now = store.now()
    matters = status in ROWS[trigger].sources
    fields: dict[str, Any] = {
        "type": JobType.BATCH if matters and trigger is Trigger.BATCH_SETTLE else JobType.SINGLE,
        "scheduled_time": UNSCHEDULED if matters and trigger is Trigger.UNBLOCK else now - MINUTE,
    }
    if status is Status.RUNNING or status in SETTLED:
        fields |= {"picked_by": "node-7", "picked_at": now - 5 * SECOND}
    if status in SETTLED:
        ran = timedelta(milliseconds=2750)
        fields |= {
            "started_at": now - 4 * SECOND,
            "ended_at": now - 4 * SECOND + ran,
            "duration": ran,
            "queue_wait": 56 * SECOND,
        }
    if status is Status.PAUSED:
        fields["paused_from_status"] = Status.PENDING
    if status is Status.SUCCEEDED:
        fields["result"] = '{"seeded": true}'
    job = Job(
        id=new_id(),
        status=status,
        target="shop.jobs:charge",
        payload='["seeded"]',
        format=2,
        executor="threads",
        priority=Priority.HIGH,
        created_at=now - 3 * MINUTE,
        updated_at=now - SECOND,
        params={"order": "7"},
        version=41,
        claim_seq=17,
        attempts=3,
        crash_count=2,
        max_retries=9,
        tags=frozenset({"seeded", "t%"}),
        business_key=KEY,
        idempotency_key="seeded",
        principal="alice",
        last_error="ValueError: before",
        signal='"before"',
        on_failure="shop.jobs:failed",
        metadata={"trace": "1"},
        **fields,
    )
    under_test.harness.seed(job)
    assert store.get(job.id) == job, "seed() writes every field as it stands"
    assert store.find_by_key(idempotency="seeded") is not None
    return job


@contract("CELL-10", needs=("seed", "clock"))
@pytest.mark.parametrize(("trigger", "status"), ALLOWED)
def test_allowed_cell_of_a_seeded_job(
    under_test: UnderTest, store: JobStore, driver: Driver, trigger: Trigger, status: Status
) -> None:
    """An allowed trigger writes the fields of its row into a job with a long life, and no others."""
    assert_allowed(store, driver, seeded(under_test, store, trigger, status), trigger)


@contract("CELL-11", needs=("seed", "clock"))
@pytest.mark.parametrize(("trigger", "status"), REFUSED)
def test_refused_cell_of_a_seeded_job(
    under_test: UnderTest, store: JobStore, driver: Driver, trigger: Trigger, status: Status
) -> None:
    """A trigger outside its source states changes nothing of a job with a long life."""
    assert_refused(store, driver, seeded(under_test, store, trigger, status), trigger)
