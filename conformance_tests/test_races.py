"""Two or more nodes at the same moment: exactly one wins, and the row tells who (F60, F62, F64)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import TypeVar
from uuid import UUID

import pytest

from conformance_tests.contract import contract
from conformance_tests.driver import MINUTE, Driver, at_once, ids, new_job, request, returned
from conformance_tests.under_test import Time, UnderTest
from ratchet.domain.job import NewJob
from ratchet.domain.lifecycle import AttemptEnd, Status, Trigger
from ratchet.domain.settlement import Change, RunCallback, Settlement, Submit
from ratchet.errors import DuplicateBusinessKey
from ratchet.spi.store import Applied, JobStore, NodeInfo, RecoverRequest, Refused, Selection, Settled

T = TypeVar("T")


def alternately(pair: tuple[T, T], number: int) -> tuple[T, T]:
    """Who starts first matters to a scheduler: give both the chance."""
    return pair if number % 2 else (pair[1], pair[0])


def race(number: int, first: Callable[[], object], second: Callable[[], object]) -> tuple[object, object]:
    """Both at once; what `first` and `second` returned."""
    answers = returned(at_once(*alternately((first, second), number)))
    return alternately((answers[0], answers[1]), number)


def claim(store: JobStore, incarnation: str) -> list[UUID]:
    return ids(store.claim(request(incarnation)).claims)


# -- claims ---------------------------------------------------------------------------------------


@contract("RACE-01")
def test_claim_against_claim(store: JobStore, nodes: list[JobStore]) -> None:
    """Eight nodes that claim at once until all is gone get every job exactly once, at claim 1."""
    jobs = [new_job() for _ in range(160)]
    store.insert(jobs)

    def drain(number: int, node: JobStore) -> list[tuple[UUID, int]]:
        got: list[tuple[UUID, int]] = []
        while True:
            answer = node.claim(request(f"n{number}", 7))
            assert len(answer.claims) <= 7
            got += [(held.job_id, held.claim_seq) for held in answer.claims]
            if not answer.claims and not answer.more:
                return got

    shares = returned(at_once(*(partial(drain, number, node) for number, node in enumerate(nodes))))
    assert sorted(held for share in shares for held in share) == [(job.id, 1) for job in jobs]
    for number, share in enumerate(shares):
        assert sorted(store.held(f"n{number}")) == sorted(share)


@contract("RACE-02")
def test_claim_against_cancel(driver: Driver, nodes: list[JobStore], rounds: range) -> None:
    """Either the job is claimed and the cancel refused, or it is canceled and nobody has it."""
    for number in rounds:
        job_id = driver.submit()
        canceling = Settlement(Change(Trigger.CANCEL, job_id))
        got, answer = race(number, partial(claim, nodes[0], "a"), partial(nodes[1].settle, canceling))
        job = driver.job(job_id)
        if isinstance(answer, Settled):
            assert (got, job.status, job.claim_seq) == ([], Status.CANCELED, 0)
        else:
            assert (got, job.status) == ([job_id], Status.RUNNING)
            driver.settle(Trigger.CANCEL_RUNNING, job_id)


@contract("RACE-03")
@pytest.mark.field_case("F64")
def test_f64_claim_against_pause(driver: Driver, nodes: list[JobStore], rounds: range) -> None:
    """Pause applied: PAUSED, and no later claim gets it. Pause refused: the job was RUNNING (F64)."""
    for _ in rounds:
        job_id = driver.submit()
        pausing = partial(nodes[4].apply, Change(Trigger.PAUSE, job_id))
        claiming: list[Callable[[], object]] = [partial(claim, node, "n") for node in nodes[:4]]
        *shares, answer = returned(at_once(*claiming, pausing))
        got = [job_id for share in shares if isinstance(share, list) for job_id in share]
        job = driver.job(job_id)
        if isinstance(answer, Applied):
            assert (got, job.status, job.claim_seq) == ([], Status.PAUSED, 0)
            assert [claim(node, "late") for node in nodes] == [[]] * 8
        else:
            assert (got, job.status) == ([job_id], Status.RUNNING)
        driver.settle(Trigger.CANCEL_RUNNING if job.status is Status.RUNNING else Trigger.CANCEL, job_id)


@contract("RACE-04", needs=("clock",))
@pytest.mark.field_case("F64")
def test_f64_concurrent_resumes(driver: Driver, nodes: list[JobStore], clock: Time) -> None:
    """Of many resumes one is applied; the job is due as before and is claimed once (F64)."""
    job = driver.drive(Status.PAUSED)
    clock.advance(MINUTE)
    resume = Change(Trigger.RESUME, job.id)
    answers = returned(at_once(*(partial(node.apply, resume) for node in nodes)))
    assert [isinstance(answer, Applied) for answer in answers].count(True) == 1
    assert driver.job(job.id).scheduled_time == job.scheduled_time
    got = returned(at_once(*(partial(claim, node, "n") for node in nodes)))
    assert [job_id for share in got for job_id in share] == [job.id]


@contract("RACE-05")
def test_claim_against_replace(driver: Driver, nodes: list[JobStore], rounds: range) -> None:
    """Either the old job runs and there is no new one, or the new one holds the key and the old never ran."""
    for number in rounds:
        old, new = driver.submit(business_key="k"), new_job(delay=MINUTE)
        change = Change(Trigger.REPLACE, old, superseded_by=new.id)
        replacing = partial(nodes[1].settle, Settlement(change, (Submit(new),)))
        got, answer = race(number, partial(claim, nodes[0], "a"), replacing)
        holder = driver.store.find_by_key(business="k")
        assert holder is not None
        if isinstance(answer, Settled):
            assert (got, holder.id, driver.job(old).claim_seq) == ([], new.id, 0)
            driver.settle(Trigger.CANCEL, new.id)
        else:
            assert (got, holder.id, driver.store.get(new.id)) == ([old], old, None)
            driver.settle(Trigger.CANCEL_RUNNING, old)


# -- the end of a claim ---------------------------------------------------------------------------


@contract("RACE-06")
@pytest.mark.field_case("F62")
def test_f62_settle_against_cancel(driver: Driver, nodes: list[JobStore], rounds: range) -> None:
    """Cancel applied: CANCELED, no result, no callback. Cancel refused: SUCCEEDED. One history row (F62)."""
    for number in rounds:
        held = driver.claim_one(driver.submit())
        succeeding = Settlement(
            Change(Trigger.SUCCEED, held.job_id, held.claim_seq, result="1", duration=timedelta()),
            (RunCallback("on_success", "m:f", "1"),),
        )
        canceling = Settlement(Change(Trigger.CANCEL_RUNNING, held.job_id))
        settled, canceled = race(
            number, partial(nodes[0].settle, succeeding), partial(nodes[1].settle, canceling)
        )
        assert isinstance(settled, Settled) is not isinstance(canceled, Settled)
        job = driver.job(held.job_id)
        (execution,) = driver.store.history(job.id)
        callbacks = driver.store.take_callbacks(f"s{number}", grace=MINUTE, limit=9)
        for callback in callbacks:
            driver.store.callback_done(callback.job_id, callback.claim_seq, callback.name)
        if isinstance(canceled, Settled):
            assert (job.status, job.result, execution.end) == (Status.CANCELED, None, AttemptEnd.CANCELED)
            assert len(callbacks) == 0
            assert isinstance(settled, Refused)
            assert settled.current == job
        else:
            assert (job.status, job.result, execution.end) == (Status.SUCCEEDED, "1", AttemptEnd.SUCCEEDED)
            assert len(callbacks) == 1
        assert isinstance(nodes[2].settle(canceling), Refused)


@contract("RACE-07")
@pytest.mark.parametrize("trigger", [Trigger.SUCCEED, Trigger.FAIL, Trigger.RETRY, Trigger.RELEASE])
def test_settle_against_recover(
    driver: Driver, nodes: list[JobStore], rounds: range, trigger: Trigger
) -> None:
    """The owner's own write or the sweep ends the claim, never both; a crash is charged only by the sweep."""
    sweep = RecoverRequest(grace=MINUTE, crash_budget=9, known_gone=frozenset({"node-1"}))
    for number in rounds[: len(rounds) // 2]:
        held = driver.claim_one(driver.submit())
        change = Change(trigger, held.job_id, held.claim_seq, result="1", error="e", delay=timedelta())
        settled, recovery = race(
            number, partial(nodes[0].settle, Settlement(change)), partial(nodes[1].recover, sweep)
        )
        recovered = len(recovery.recovered)  # type: ignore[attr-defined]
        assert isinstance(settled, Settled) is (recovered == 0)
        job = driver.job(held.job_id)
        assert job.crash_count == recovered
        (execution,) = driver.store.history(job.id)
        assert (execution.end is AttemptEnd.CRASHED) is (recovered == 1)
        if job.status is Status.PENDING:
            driver.settle(Trigger.CANCEL, job.id)


@contract("RACE-08")
def test_two_ends_of_one_claim(driver: Driver, nodes: list[JobStore], rounds: range) -> None:
    """Of many outcomes sent for one claim exactly one is written."""
    for _ in rounds[: len(rounds) // 3]:
        held = driver.claim_one(driver.submit())
        changes = [Change(Trigger.SUCCEED, held.job_id, 1, result=str(n)) for n in range(8)]
        sending = [
            partial(node.settle_many, [Settlement(change)])
            for node, change in zip(nodes, changes, strict=True)
        ]
        answers = [answer for (answer,) in returned(at_once(*sending))]
        winners = [n for n, answer in enumerate(answers) if isinstance(answer, Settled)]
        assert [str(n) for n in winners] == [driver.job(held.job_id).result]
        assert len(driver.store.history(held.job_id)) == 1


@contract("RACE-09", needs=("clock",))
def test_two_sweeps(driver: Driver, nodes: list[JobStore], clock: Time) -> None:
    """Sweeps of eight nodes at once recover every claim exactly once."""
    made = [driver.submit() for _ in range(40)]
    driver.claim("dead")
    clock.advance(2 * MINUTE)
    sweep = RecoverRequest(grace=MINUTE, crash_budget=9)
    answers = returned(at_once(*(partial(node.recover, sweep) for node in nodes)))
    assert sorted(orphan.job_id for answer in answers for orphan in answer.recovered) == made
    assert {driver.job(job_id).crash_count for job_id in made} == {1}
    assert {len(driver.store.history(job_id)) for job_id in made} == {1}


@contract("RACE-10")
def test_two_sweeps_of_callbacks(driver: Driver, nodes: list[JobStore]) -> None:
    """Every pending callback of a dead node moves to exactly one other."""
    made = [driver.submit() for _ in range(24)]
    for held in driver.claim("dead").claims:
        driver.end(held, Trigger.SUCCEED, RunCallback("on_success", "m:f", "1"), result="1")

    def take(place: int, node: JobStore) -> list[UUID]:
        got: list[UUID] = []
        while part := node.take_callbacks(f"n{place}", grace=timedelta(days=1), limit=5):
            got += [callback.job_id for callback in part]
        return got

    for place, _ in enumerate(nodes):
        driver.store.heartbeat(NodeInfo(incarnation=f"n{place}", name="n"))
    shares = returned(at_once(*(partial(take, place, node) for place, node in enumerate(nodes))))
    assert sorted(job_id for share in shares for job_id in share) == made


# -- keys -----------------------------------------------------------------------------------------


@contract("RACE-11")
def test_dual_09_one_business_key(store: JobStore, nodes: list[JobStore], rounds: range) -> None:
    """Of many submissions of one business key one succeeds; all others are told who holds it."""
    for number in rounds[: len(rounds) // 3]:
        jobs = [new_job(business_key=f"k{number}", tags=frozenset({"t"})) for _ in nodes]
        answers = at_once(*(partial(node.insert, [job]) for node, job in zip(nodes, jobs, strict=True)))
        winners = [
            job.id for job, answer in zip(jobs, answers, strict=True) if not isinstance(answer, Exception)
        ]
        assert len(winners) == 1
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert [error.holder for error in refused if isinstance(error, DuplicateBusinessKey)] == winners * 7
        assert ids(store.get_many([job.id for job in jobs])) == winners


@contract("RACE-12")
@pytest.mark.field_case("F60")
def test_f60_one_idempotency_key(store: JobStore, nodes: list[JobStore]) -> None:
    """Fifty callers at once get fifty equal ids, one of them created, one job (F60)."""
    jobs = [new_job(idempotency_key="k", tags=frozenset({"t"})) for _ in range(50)]
    answers = returned(at_once(*(partial(nodes[n % 8].insert, [job]) for n, job in enumerate(jobs))))
    told = Counter(answer.id for (answer,) in answers)
    assert list(told.values()) == [50]
    assert [answer.created for (answer,) in answers].count(True) == 1
    assert sum(store.counts().values()) == store.count(Selection(tags=frozenset({"t"}))) == 1
    assert store.get(next(iter(told))) is not None


@contract("RACE-13")
def test_lists_with_keys_in_opposite_orders(store: JobStore, nodes: list[JobStore], rounds: range) -> None:
    """Two lists that reserve the same keys in opposite orders neither deadlock nor split."""
    for number in rounds[: len(rounds) // 3]:
        keys = [f"{number}-{n}" for n in range(6)]
        forward = [new_job(business_key=key) for key in keys]
        backward = [new_job(business_key=key) for key in reversed(keys)]
        answers = at_once(partial(nodes[0].insert, forward), partial(nodes[1].insert, backward))
        assert [isinstance(answer, DuplicateBusinessKey) for answer in answers].count(True) == 1
        kept = {len(store.get_many([job.id for job in jobs])) for jobs in (forward, backward)}
        assert kept == {0, 6}


@contract("RACE-14")
def test_no_submission_slips_in_before_a_replacement(
    driver: Driver, nodes: list[JobStore], rounds: range
) -> None:
    """While a job is replaced its key is never free: a third submission always finds it held."""
    for number in rounds:
        old, new = driver.submit(business_key="k", delay=MINUTE), new_job(delay=MINUTE)
        change = Change(Trigger.REPLACE, old, superseded_by=new.id)

        def third() -> UUID | None:
            try:
                nodes[1].insert([new_job(business_key="k")])
            except DuplicateBusinessKey as error:
                return error.holder
            return None

        settled, holder = race(number, partial(nodes[0].settle, Settlement(change, (Submit(new),))), third)
        assert isinstance(settled, Settled)
        assert holder in {old, new.id}
        driver.settle(Trigger.CANCEL, new.id)


@contract("RACE-15")
def test_requeue_against_a_newcomer(driver: Driver, nodes: list[JobStore], rounds: range) -> None:
    """A requeue and a submission of one business key: one gets it, the other is told."""
    for number in rounds[: len(rounds) // 2]:
        failed, newcomer = driver.drive(Status.FAILED, business_key="k"), new_job(business_key="k")

        def requeue(job_id: UUID = failed.id) -> bool:
            try:
                return isinstance(nodes[0].apply(Change(Trigger.REQUEUE, job_id)), Applied)
            except DuplicateBusinessKey:
                return False

        def submit(job: NewJob = newcomer) -> bool:
            try:
                return nodes[1].insert([job])[0].created
            except DuplicateBusinessKey:
                return False

        requeued, submitted = race(number, requeue, submit)
        assert requeued is not submitted
        holder = driver.store.find_by_key(business="k")
        assert holder is not None
        assert holder.id == (failed.id if requeued else newcomer.id)
        driver.settle(Trigger.CANCEL, holder.id)


# -- by hand --------------------------------------------------------------------------------------


@contract("RACE-16")
def test_requeue_against_cancel(driver: Driver, nodes: list[JobStore], rounds: range) -> None:
    """A cancel finds the job FAILED and is refused, or requeued and cancels it; the requeue is applied once."""
    for number in rounds[: len(rounds) // 2]:
        failed = driver.drive(Status.FAILED)
        requeued, canceled = race(
            number,
            partial(nodes[0].apply, Change(Trigger.REQUEUE, failed.id)),
            partial(nodes[1].settle, Settlement(Change(Trigger.CANCEL, failed.id))),
        )
        assert isinstance(requeued, Applied)
        status = driver.status(failed.id)
        assert status is (Status.CANCELED if isinstance(canceled, Settled) else Status.PENDING)
        if status is Status.PENDING:
            driver.settle(Trigger.CANCEL, failed.id)


@contract("RACE-17")
def test_two_operators_retry_the_same(driver: Driver, nodes: list[JobStore]) -> None:
    """Bulk requeues at once give every job exactly one new life (F73)."""
    made = [driver.drive(Status.FAILED) for _ in range(20)]

    def retry_all(node: JobStore) -> list[UUID]:
        got: list[UUID] = []
        while part := node.apply_where(Selection(), Trigger.REQUEUE, limit=7).ids:
            got += part
        return got

    shares = returned(at_once(*(partial(retry_all, node) for node in nodes[:4])))
    assert sorted(job_id for share in shares for job_id in share) == [job.id for job in made]
    assert all(driver.job(job.id).version == job.version + 1 for job in made)


@contract("RACE-18")
def test_crud_07_one_of_two_stale_writes_loses(driver: Driver, nodes: list[JobStore], rounds: range) -> None:
    """Two changes that saw the same version: exactly one is refused, and no error occurs."""
    for number in rounds:
        job = driver.drive(Status.WAITING)
        answers = race(
            number,
            partial(nodes[0].apply, Change(Trigger.SIGNAL, job.id, version=job.version, signal="1")),
            partial(nodes[1].settle, Settlement(Change(Trigger.CANCEL, job.id, version=job.version))),
        )
        assert [isinstance(answer, Refused) for answer in answers].count(True) == 1
        if driver.status(job.id) is Status.PENDING:
            driver.settle(Trigger.CANCEL, job.id)


@contract("RACE-19")
def test_delete_against_requeue(driver: Driver, nodes: list[JobStore], rounds: range) -> None:
    """A failed job is deleted or requeued, not both."""
    for number in rounds[: len(rounds) // 2]:
        failed = driver.drive(Status.FAILED)
        deleted, requeued = race(
            number,
            partial(nodes[0].delete, [failed.id]),
            partial(nodes[1].apply, Change(Trigger.REQUEUE, failed.id)),
        )
        assert (deleted == 1) is isinstance(requeued, Refused)
        assert (driver.store.get(failed.id) is None) is (deleted == 1)
        if deleted == 0:
            driver.settle(Trigger.CANCEL, failed.id)


@contract("RACE-20")
def test_mixed_storm(driver: Driver, nodes: list[JobStore], under_test: UnderTest) -> None:
    """Eight nodes claim and end jobs in every way while others sweep and cancel: the books balance."""
    total = under_test.paced(least=80, most=400, unit=30)
    made = [driver.submit(max_retries=100) for _ in range(total)]
    endings = [Trigger.SUCCEED, Trigger.RETRY, Trigger.RELEASE, Trigger.DEFER, Trigger.FAIL, Trigger.SUCCEED]

    def work(place: int, node: JobStore) -> Iterator[tuple[Trigger, bool]]:
        number = place
        me = f"n{place}"
        gone = RecoverRequest(grace=MINUTE, crash_budget=99, known_gone=frozenset({f"n{(place + 1) % 8}"}))
        while claims := node.claim(request(me, 5)).claims:
            for held in claims:
                number += 1
                change = Change(endings[number % 6], held.job_id, held.claim_seq, result="1", error="e")
                if number % 11 == 0:
                    yield Trigger.RECOVER, bool(node.recover(gone).recovered)
                if number % 13 == 0:
                    canceled = node.settle(Settlement(Change(Trigger.CANCEL_RUNNING, held.job_id)))
                    yield Trigger.CANCEL_RUNNING, isinstance(canceled, Settled)
                yield change.trigger, isinstance(node.settle(Settlement(change)), Settled)

    returned(at_once(*(partial(list, work(place, node)) for place, node in enumerate(nodes))))
    for job_id in made:
        job, history = driver.job(job_id), driver.store.history(job_id)
        running = job.status is Status.RUNNING
        assert [entry.claim_seq for entry in history] == list(range(1, job.claim_seq + (not running)))
        ends = Counter(entry.trigger for entry in history)
        assert job.attempts == ends[Trigger.RETRY]
        assert job.crash_count == ends[Trigger.RECOVER]
        assert job.version == job.claim_seq + len(history)
    counts = Counter(driver.job(job_id).status for job_id in made)
    assert {status: count for status, count in driver.store.counts().items() if count} == counts


@contract("RACE-21")
def test_one_handle_for_many_threads(store: JobStore) -> None:
    """Eight threads on one handle submit, claim and settle at once: nothing is lost or doubled."""
    number = 15

    def live(place: int) -> list[UUID]:
        done: list[UUID] = []
        for _ in range(number):
            store.insert([new_job()])
            for held in store.claim(request(f"n{place}", 3)).claims:
                change = Change(Trigger.SUCCEED, held.job_id, held.claim_seq, result="1")
                assert isinstance(store.settle(Settlement(change)), Settled)
                done.append(held.job_id)
        return done

    shares = returned(at_once(*(partial(live, place) for place in range(8))))
    done = [job_id for share in shares for job_id in share]
    assert len(done) == len(set(done))
    counts = store.counts()
    assert (counts[Status.SUCCEEDED], counts[Status.RUNNING]) == (len(done), 0)
    assert sum(counts.values()) == 8 * number
