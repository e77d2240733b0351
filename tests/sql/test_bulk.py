"""Requeueing the whole dead-letter queue (F73): in bounded pages, interrupted and repeated, beside others."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest

from conformance_tests.driver import new_job
from ratchet.domain.lifecycle import Status, Trigger
from ratchet.domain.settlement import Change, Settlement
from ratchet.spi.store import Applied, ClaimRequest, Refused, Selection
from ratchet_sql.store import SqliteStore

Program = Callable[..., subprocess.Popen[str]]


def _fail(store: SqliteStore, number: int, error: str, **fields: object) -> list[UUID]:
    failed: list[UUID] = []
    for start in range(0, number, 1000):
        store.insert([new_job(**_numbered(fields, n)) for n in range(start, min(start + 1000, number))])
        claims = store.claim(ClaimRequest(incarnation="past", limits={"threads": 1000}, limit=1000)).claims
        changes = [
            Change(Trigger.FAIL, c.job_id, c.claim_seq, error=error, attempts=1, duration=timedelta())
            for c in claims
        ]
        store.settle_many([Settlement(change) for change in changes])
        failed += [claim.job_id for claim in claims]
    return failed


def _numbered(fields: dict[str, object], number: int) -> dict[str, object]:
    return {name: f"{value}{number}" for name, value in fields.items()}


@pytest.mark.field_case("F73")
@pytest.mark.timeout(600)
def test_the_whole_queue(store: SqliteStore, program: Program, scaled: Callable[..., int]) -> None:
    """Killed at half and run again, a paged requeue gives every job exactly one new life.

    Jobs in conflict stay FAILED and are named; jobs of another error are left alone; jobs that another
    operator requeues meanwhile are requeued once, by one of the two; memory stays flat.
    """
    number = scaled(100_000, least=2_000)
    page = number // 20
    page = min(page, 1000)
    conflicting = _fail(store, 10, "ValueError: Refused", business_key="key-")
    store.insert([new_job(business_key=f"key-{n}", executor="none") for n in range(10)])
    wanted = _fail(store, number, "ValueError: Refused by the bank")
    others = _fail(store, 10, "KeyError: 'x'")

    killed = program("requeueing", page, number // page // 2)
    output, _ = killed.communicate(timeout=300)
    assert killed.returncode == -signal.SIGKILL
    half = int(output.split()[-1])
    assert 0 < half < number
    counts = store.counts()
    assert counts[Status.FAILED] == number - half + 20, "a page is all or nothing"

    again = program("requeueing", page, 0)
    assert again.stdout is not None
    again.stdout.readline()
    by_hand = [store.apply(Change(Trigger.REQUEUE, job_id)) for job_id in wanted[-10:]]
    output, _ = again.communicate(timeout=300)
    assert again.returncode == 0
    lines = output.splitlines()
    requeued = int(lines[-2])
    _, grown, *skipped = lines[-1].split()
    applied = sum(isinstance(answer, Applied) for answer in by_hand)
    assert all(isinstance(answer, Applied | Refused) for answer in by_hand)
    assert half + requeued + applied == number
    assert set(skipped) == {str(job_id) for job_id in conflicting}
    assert int(grown) < 100

    assert store.counts()[Status.FAILED] == 20
    assert {job.id for job in store.find(Selection(statuses=frozenset({Status.FAILED}))).jobs} == {
        *conflicting,
        *others,
    }
    for start in range(0, number, 1000):
        for job in store.get_many(wanted[start : start + 1000]):
            lived = (job.status, job.attempts, job.crash_count, job.last_error, job.version)
            assert lived == (Status.PENDING, 0, 0, None, 3)
