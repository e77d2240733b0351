"""Nodes in processes of their own: the same races, and a node that is killed in the middle of its work."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from conformance_tests.contract import contract
from conformance_tests.driver import MINUTE, SECOND, new_job
from conformance_tests.processes import (
    answers,
    drain,
    elsewhere,
    store_time,
    submit_keys,
    succeed_all,
    sweep,
    work_until_killed,
)
from conformance_tests.under_test import UnderTest
from ratchet.domain.lifecycle import Status, Trigger
from ratchet.domain.settlement import Change, Settlement
from ratchet.spi.store import JobStore, RecoverRequest

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
"""Due whatever the clocks of these processes say."""


def due(store: JobStore, number: int) -> list[UUID]:
    jobs = [new_job(at=LONG_AGO) for _ in range(number)]
    store.insert(jobs)
    return [job.id for job in jobs]


@contract("STORE-04", needs=("open_process",))
def test_store_time_is_near_ours(under_test: UnderTest, store: JobStore) -> None:
    """Without a clock of the test's, store time is within 5 s of the machine's and in UTC milliseconds."""
    store.counts()
    with elsewhere(under_test.harness.open_process(), (store_time,)) as running:
        (now,) = answers(running)
    assert abs(now - datetime.now(UTC)) < 5 * SECOND
    assert (now.utcoffset(), now.microsecond % 1000) == (timedelta(), 0)


@contract("PROCESS-01", needs=("open_process",))
def test_processes_claim_each_job_once(under_test: UnderTest, store: JobStore) -> None:
    """Processes that claim at once until all is gone get every job exactly once, at claim 1."""
    made = due(store, 90)
    programs = [(drain, f"n{number}") for number in range(3)]
    with elsewhere(under_test.harness.open_process(), *programs) as running:
        shares = answers(running)
    assert sorted(claim for share in shares for claim in share) == [(job_id, 1) for job_id in made]
    for number, share in enumerate(shares):
        assert sorted(store.held(f"n{number}")) == sorted(share)


@contract("PROCESS-02", needs=("open_process",))
@pytest.mark.parametrize("kind", ["business", "idempotency"])
def test_processes_race_for_keys(under_test: UnderTest, store: JobStore, kind: str) -> None:
    """Of submissions of one key by several processes one is stored, and all are told the same job."""
    store.counts()
    programs = [(submit_keys, kind, 20) for _ in range(3)]
    with elsewhere(under_test.harness.open_process(), *programs) as running:
        told = answers(running)
    for each in zip(*told, strict=True):
        assert len({job_id for job_id, _ in each}) == 1
        assert [created for _, created in each].count(True) == 1
    assert sum(store.counts().values()) == 20


@contract("PROCESS-03", needs=("open_process",))
def test_settle_against_recover_of_another_process(under_test: UnderTest, store: JobStore) -> None:
    """Each claim is ended by its owner or taken back by a sweep of another process, never both."""
    made = due(store, 40)
    held = drain(store, "victim", tell=print)
    programs = [(succeed_all, held), (sweep, "victim")]
    with elsewhere(under_test.harness.open_process(), *programs) as running:
        ended, recovered = answers(running)
    assert sorted([*ended, *recovered]) == made
    for job_id in made:
        job = store.get(job_id)
        assert job is not None
        assert (job.status is Status.SUCCEEDED, job.crash_count) == (job_id in ended, job_id in recovered)
        assert len(store.history(job_id)) == 1


@contract("PROCESS-04", needs=("open_process",))
def test_a_killed_node_loses_nothing(under_test: UnderTest, store: JobStore) -> None:
    """After SIGKILL every acknowledged outcome is there, and a sweep gives every unfinished job another life."""
    made = due(store, 2000)
    with elsewhere(under_test.harness.open_process(), (work_until_killed, "victim")) as (victim,):
        victim.go()
        acknowledged = [victim.receive() for _ in range(25)]
        victim.kill()
    gone = RecoverRequest(
        grace=MINUTE, crash_budget=3, known_gone=frozenset({"victim"}), only_known_gone=True
    )
    interrupted = dict(store.held("victim"))
    recovered = [orphan.job_id for orphan in store.recover(gone).recovered]
    assert sorted(recovered) == sorted(interrupted)
    assert {job.status for job in store.get_many(acknowledged)} == {Status.SUCCEEDED}
    counts = store.counts()
    assert counts[Status.SUCCEEDED] + counts[Status.PENDING] == len(made)
    assert counts[Status.PENDING] >= len(recovered)
    late = [
        Settlement(Change(Trigger.SUCCEED, job_id, seq, result="late")) for job_id, seq in interrupted.items()
    ]
    store.settle_many(late)
    assert store.counts() == counts
