"""Claiming: order, limits, filters, what comes next (contract facts CLAIM; field cases F16, F56, F57)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from conformance_tests.contract import contract
from conformance_tests.driver import MINUTE, SECOND, START, Driver, at_once, ids, new_job, request, returned
from conformance_tests.under_test import Time
from ratchet.domain.job import Claim, JobType
from ratchet.domain.lifecycle import Status, Trigger
from ratchet.domain.priority import Priority
from ratchet.spi.store import JobStore


@contract("CLAIM-01", needs=("clock",))
def test_claim_01_03_04_09_claims_are_stamped(store: JobStore, driver: Driver, clock: Time) -> None:
    """Due jobs become RUNNING under the claiming node, stamped with store time; the next node gets none."""
    assert driver.claim().claims == []
    made = [driver.submit() for _ in range(2)]
    clock.advance(SECOND)
    claims = driver.claim("node-1", 10).claims
    assert ids(claims) == made
    for claim in claims:
        job = driver.job(claim.job_id)
        assert (job.status, job.picked_by, job.picked_at) == (Status.RUNNING, "node-1", clock.now())
        assert (claim.claim_seq, claim.picked_at) == (1, clock.now())
    assert driver.claim("node-2").claims == []


@contract("CLAIM-02")
def test_claim_02_limit(driver: Driver) -> None:
    """A claim takes at most its limit, says whether more is due, and 0 takes none."""
    made = [driver.submit() for _ in range(3)]
    assert driver.claim(limit=0).claims == []
    first = driver.claim(limit=2)
    assert (ids(first.claims), first.more) == (made[:2], True)
    rest = driver.claim(limit=2)
    assert (ids(rest.claims), rest.more) == (made[2:], False)


@contract("CLAIM-08")
@pytest.mark.parametrize("status", sorted(set(Status) - {Status.PENDING}))
def test_claim_08_dual_05_06_eligibility(driver: Driver, status: Status) -> None:
    """Only a PENDING job is claimed."""
    driver.drive(status)
    answer = driver.claim(limit=50)
    assert (answer.claims, answer.more, answer.next_due) == ([], False, None)


@contract("CLAIM-06", needs=("clock",))
def test_claim_06_07_order(driver: Driver, clock: Time) -> None:
    """The list is ordered by priority, then due time, then id, however the jobs were inserted."""
    rows = [
        (priority, START + due * SECOND)
        for priority in Priority
        for due in (3, 1, 2, 1)
    ]  # fmt: skip
    made = [(-priority, at, driver.submit(priority=priority, at=at)) for priority, at in rows]
    clock.advance(MINUTE)
    assert ids(driver.claim().claims) == [job_id for _, _, job_id in sorted(made)]


@contract("CLAIM-07", needs=("clock",))
def test_claim_order_takes_the_best_even_beyond_the_limit(driver: Driver, clock: Time) -> None:
    """With more due than fits, what is taken is the head of the order over all executors."""
    made = []
    for number, executor in enumerate(["threads", "async", "processes"] * 4):
        priority = Priority(number % 5)
        at = START + (number % 4) * SECOND
        made.append((-priority, at, driver.submit(executor=executor, priority=priority, at=at)))
    clock.advance(MINUTE)
    expected = [job_id for _, _, job_id in sorted(made)]
    assert ids(driver.claim(limit=5).claims) == expected[:5]
    assert ids(driver.claim(limit=50).claims) == expected[5:]


@contract("CLAIM-22")
def test_a_claim_returns_to_its_place(driver: Driver) -> None:
    """A released job keeps its due time, so it is claimed before later ones."""
    made = [driver.submit() for _ in range(3)]
    (first,) = driver.claim(limit=1).claims
    driver.end(first, Trigger.RELEASE)
    assert ids(driver.claim().claims) == made


@contract("CLAIM-23", needs=("clock",))
def test_ageing_lifts_by_whole_intervals(driver: Driver, clock: Time) -> None:
    """LOW overtakes NORMAL of the same moment never, fresh NORMAL at exactly one interval (F56)."""
    low = driver.submit(priority=Priority.LOW)
    clock.advance(15 * MINUTE - timedelta(milliseconds=1))
    normal = driver.submit(priority=Priority.NORMAL)
    assert ids(driver.claim(limit=1).claims) == [normal]
    clock.advance(timedelta(milliseconds=1))
    later = driver.submit(priority=Priority.NORMAL)
    assert ids(driver.claim(limit=2).claims) == [low, later]


@contract("CLAIM-24", needs=("clock",))
def test_without_ageing_priority_is_strict(driver: Driver, clock: Time) -> None:
    """A boost interval of 0 switches ageing off (F56)."""
    low = driver.submit(priority=Priority.LOWEST, at=START - timedelta(days=3650))
    high = driver.submit(priority=Priority.LOW)
    clock.advance(timedelta(days=1))
    assert ids(driver.claim(boost_interval=timedelta()).claims) == [high, low]


@contract("CLAIM-25", needs=("clock",))
@pytest.mark.field_case("F56")
def test_f56_an_old_due_time_does_not_overflow(driver: Driver) -> None:
    """A due time long past, and the smallest interval, still order."""
    urgent = driver.submit(priority=Priority.CRITICAL)
    old = driver.submit(priority=Priority.LOWEST, at=START - timedelta(days=3650))
    assert ids(driver.claim(boost_interval=timedelta(milliseconds=1)).claims) == [old, urgent]


@contract("CLAIM-26", needs=("clock",))
@pytest.mark.field_case("F56")
def test_f56_starvation_ends_at_45_minutes(driver: Driver, clock: Time) -> None:
    """Under a steady flow of HIGH work a LOWEST job starts at the first free slot after 45:00."""
    low = driver.submit(priority=Priority.LOWEST)
    for _ in range(2):
        driver.submit(priority=Priority.HIGH)
    for half_minutes in range(360):
        (claim,) = driver.claim(limit=1).claims
        if claim.job_id == low:
            assert clock.now() - START == 45 * MINUTE
            assert half_minutes == 90
            return
        driver.submit(priority=Priority.HIGH)
        clock.advance(30 * SECOND)
        driver.end(claim, Trigger.SUCCEED, result="1")
    pytest.fail("the LOWEST job never ran")


@contract("CLAIM-27", needs=("clock",))
@pytest.mark.field_case("F56")
def test_f56_without_boost_it_waits(driver: Driver, clock: Time) -> None:
    """With ageing off the LOWEST job does not run in 3 hours, and right after the flow ends it does."""
    low = driver.submit(priority=Priority.LOWEST)
    driver.submit(priority=Priority.HIGH)
    for _ in range(360):
        driver.submit(priority=Priority.HIGH)
        (claim,) = driver.claim(limit=1, boost_interval=timedelta()).claims
        assert claim.job_id != low
        clock.advance(30 * SECOND)
        driver.end(claim, Trigger.SUCCEED, result="1")
    assert ids(driver.claim(boost_interval=timedelta()).claims)[-1] == low


@contract("CLAIM-10")
@pytest.mark.parametrize("nodes", [3, 8])
def test_claim_10_concurrent_claimers(
    store: JobStore, open_another: Callable[[], JobStore], nodes: int
) -> None:
    """Nodes that claim at the same moment get every job once, and no error."""
    jobs = [new_job() for _ in range(nodes * 10)]
    store.insert(jobs)
    handles = [open_another() for _ in range(nodes)]
    answers = at_once(
        *(lambda n=n, s=s: s.claim(request(f"n{n}", nodes * 10)) for n, s in enumerate(handles))
    )
    got = [claim for answer in returned(answers) for claim in answer.claims]
    assert len(got) <= len(jobs)
    got += store.claim(request("last", 1000)).claims
    assert sorted(claim.job_id for claim in got) == sorted(job.id for job in jobs)


@contract("CLAIM-21")
def test_claim_21_claims_are_numbered(driver: Driver) -> None:
    """Each claim of a job has a newer number, also for the same node."""
    job_id = driver.submit()
    for number in (1, 2, 3):
        claim = driver.claim_one(job_id)
        assert claim.claim_seq == driver.job(job_id).claim_seq == number
        driver.end(claim, Trigger.RELEASE)


# -- filters --------------------------------------------------------------------------------------


@pytest.fixture
def tagged(driver: Driver) -> dict[str, UUID]:
    """Jobs tagged gpu, batch, both, and not at all."""
    return {
        name: driver.submit(tags=frozenset(tags))
        for name, tags in {"gpu": {"gpu"}, "batch": {"batch"}, "both": {"gpu", "batch"}, "none": set()}.items()
    }  # fmt: skip


@contract("CLAIM-12")
@pytest.mark.parametrize(
    ("require", "exclude", "names"),
    [
        ((), (), ["gpu", "batch", "both", "none"]),
        (("gpu",), (), ["gpu", "both"]),
        (("gpu", "batch"), (), ["both"]),
        ((), ("gpu",), ["batch", "none"]),
        ((), ("gpu", "batch"), ["none"]),
        (("gpu",), ("batch",), ["gpu"]),
        (("gpu",), ("gpu",), []),
        (("absent",), (), []),
        (("g%", "_pu"), (), []),
        ((), ("%", "g_u", "*"), ["gpu", "batch", "both", "none"]),
    ],
)  # fmt: skip
def test_claim_12_to_16_tags(
    driver: Driver,
    tagged: dict[str, UUID],
    require: tuple[str, ...],
    exclude: tuple[str, ...],
    names: list[str],
) -> None:
    """All required tags and none of the excluded ones, compared literally."""
    answer = driver.claim(require_tags=frozenset(require), exclude_tags=frozenset(exclude))
    assert ids(answer.claims) == [tagged[name] for name in names]
    assert not answer.more
    others = sorted(set(tagged.values()) - set(ids(answer.claims)))
    assert ids(driver.claim().claims) == others


@contract("CLAIM-11")
def test_claim_11_types(driver: Driver) -> None:
    """A type filter takes only these types; without one all that can be claimed."""
    made = {kind: driver.submit(type=kind) for kind in JobType}
    answer = driver.claim(types=frozenset({JobType.BATCH_CHILD, JobType.BATCH}))
    assert ids(answer.claims) == [made[JobType.BATCH_CHILD]]
    rest = [made[kind] for kind in JobType if kind not in {JobType.BATCH_CHILD, JobType.BATCH}]
    assert ids(driver.claim().claims) == rest


@contract("CLAIM-28")
def test_leave_out_is_by_pair(driver: Driver) -> None:
    """A (target, format) pair that is left out keeps other formats of the target, and other targets."""
    a1, a2, b1 = (driver.submit(target=t, format=f) for t, f in (("m:a", 1), ("m:a", 2), ("m:b", 1)))
    assert ids(driver.claim(leave_out=frozenset({("m:a", 2), ("m:c", 1)})).claims) == [a1, b1]
    assert ids(driver.claim().claims) == [a2]


@contract("CLAIM-29")
def test_filters_pass_over_any_number(store: JobStore, driver: Driver) -> None:
    """What is left out at the head does not hide what stands behind it, claim after claim."""
    store.insert([new_job(target="m:new") for _ in range(300)])
    wanted = [driver.submit(target="m:old") for _ in range(25)]
    got: list[UUID] = []
    for number in range(3):
        answer = driver.claim(limit=10, leave_out=frozenset({("m:new", 1)}))
        got += ids(answer.claims)
        assert answer.more is (number < 2)
    assert got == wanted
    assert len(driver.claim(limit=1000).claims) == 300


@contract("CLAIM-17")
def test_claim_17_to_20_executors_have_limits(driver: Driver) -> None:
    """Each executor's own limit holds; one that is absent or 0 gets nothing and is not counted as more."""
    made = {
        executor: [driver.submit(executor=executor) for _ in range(3)] for executor in ("threads", "async")
    }
    driver.submit(executor="processes")
    nothing = driver.claim(limits={"threads": 0, "processes": -1, "unknown": 5})
    assert (nothing.claims, nothing.more, nothing.next_due) == ([], False, None)
    answer = driver.claim(limits={"threads": 2, "async": 1, "processes": 0})
    assert sorted(ids(answer.claims)) == sorted([*made["threads"][:2], made["async"][0]])
    assert {claim.executor for claim in answer.claims} == {"threads", "async"}
    assert answer.more
    rest = driver.claim(limits={"threads": 1, "async": 2})
    assert (len(rest.claims), rest.more) == (3, False)


# -- what comes next ------------------------------------------------------------------------------


@contract("CLAIM-30", needs=("clock",))
def test_next_due_is_of_what_matches(driver: Driver) -> None:
    """The next due time is that of the same filters and of executors with a limit above 0."""
    driver.submit(at=START + 1 * MINUTE, tags=frozenset({"gpu"}))
    driver.submit(at=START + 2 * MINUTE, executor="async")
    driver.submit(at=START + 3 * MINUTE, target="m:new")
    driver.submit(at=START + 4 * MINUTE, type=JobType.BRANCH)
    driver.submit(at=START + 5 * MINUTE, start=Status.WAITING)
    driver.submit(at=START + 6 * MINUTE)
    assert driver.claim().next_due == START + 1 * MINUTE
    assert driver.claim(exclude_tags=frozenset({"gpu"})).next_due == START + 2 * MINUTE
    only = {"threads": 1}
    assert driver.claim(limits=only, exclude_tags=frozenset({"gpu"})).next_due == START + 3 * MINUTE
    filtered: dict[str, Any] = {"exclude_tags": frozenset({"gpu"}), "leave_out": frozenset({("m:new", 1)})}
    assert driver.claim(limits=only, **filtered).next_due == START + 4 * MINUTE
    singles = frozenset({JobType.SINGLE})
    assert driver.claim(limits=only, types=singles, **filtered).next_due == START + 6 * MINUTE


@contract("CLAIM-31", needs=("clock",))
def test_next_due_follows_the_jobs(driver: Driver, clock: Time) -> None:
    """It moves with cancel, pause, retry and the passing of time; None when nothing is known."""
    assert driver.claim().next_due is None
    early, late = (driver.submit(delay=n * MINUTE) for n in (1, 2))
    assert driver.claim().next_due == START + MINUTE
    driver.settle(Trigger.CANCEL, early)
    assert driver.claim().next_due == START + 2 * MINUTE
    driver.apply(Trigger.PAUSE, late)
    assert driver.claim().next_due is None
    driver.apply(Trigger.RESUME, late)
    clock.advance(2 * MINUTE)
    answer = driver.claim()
    assert (ids(answer.claims), answer.next_due, answer.now) == ([late], None, clock.now())
    driver.end(answer.claims[0], Trigger.RETRY, delay=5 * SECOND)
    assert driver.claim().next_due == clock.now() + 5 * SECOND


@contract("CLAIM-32", needs=("clock",))
def test_a_clock_that_steps_back_loses_nothing(driver: Driver, clock: Time) -> None:
    """After the clock steps back a job is simply not due yet, and is claimed when it is (F58)."""
    job_id = driver.submit()
    clock.advance(-timedelta(hours=1))
    answer = driver.claim()
    assert (answer.claims, answer.more, answer.next_due) == ([], False, START)
    clock.advance(timedelta(hours=1))
    assert ids(driver.claim().claims) == [job_id]


@contract("CLAIM-33", needs=("clock",))
@pytest.mark.field_case("F16")
def test_f16_a_long_delay_stays_unowned(
    driver: Driver, open_another: Callable[[], JobStore], clock: Time
) -> None:
    """A job delayed by 6 h is PENDING, unowned, at claim 0 before that, and claimed once after (F16)."""
    nodes = [Driver(open_another(), clock) for _ in range(8)]
    job_id = driver.submit(delay=timedelta(hours=6))
    claims: list[Claim] = []
    for _ in range(84):
        clock.advance(5 * MINUTE)
        for number, node in enumerate(nodes):
            claims += node.claim(f"node-{number}").claims
        if clock.now() < START + timedelta(hours=6):
            job = driver.job(job_id)
            assert (job.status, job.picked_by, job.claim_seq) == (Status.PENDING, None, 0)
    assert [(claim.job_id, claim.claim_seq) for claim in claims] == [(job_id, 1)]
    assert claims[0].picked_at == START + timedelta(hours=6)


@contract("HELD-01")
def test_held_names_running_claims_of_one_incarnation(store: JobStore, driver: Driver) -> None:
    """Held answers the claims that an incarnation holds now, and of nobody else."""
    first, second, third = (driver.submit() for _ in range(3))
    driver.claim("a", 2)
    driver.claim("b", 1)
    assert sorted(store.held("a")) == sorted([(first, 1), (second, 1)])
    assert list(store.held("b")) == [(third, 1)]
    driver.settle(Trigger.SUCCEED, first, claim_seq=1, result="1")
    driver.settle(Trigger.CANCEL_RUNNING, second)
    driver.settle(Trigger.RELEASE, third, claim_seq=1)
    assert [*store.held("a"), *store.held("b"), *store.held("nobody")] == []
    assert [claim.claim_seq for claim in driver.claim("a").claims] == [2]
    assert list(store.held("a")) == [(third, 2)]


@contract("CLAIM-34")
@pytest.mark.field_case("F57")
def test_f57_future_and_settled_jobs_cost_nothing_to_see_past(store: JobStore, driver: Driver) -> None:
    """Among thousands of future, settled and running jobs exactly the due ones are claimed, once each."""
    store.insert([new_job(delay=timedelta(days=30)) for _ in range(2000)])
    for status in (Status.FAILED, Status.SUCCEEDED, Status.RUNNING):
        for _ in range(10):
            driver.drive(status)
    due = [driver.submit() for _ in range(100)]
    got: list[UUID] = []
    calls = 0
    while claims := driver.claim(limit=10).claims:
        got += ids(claims)
        calls += 1
    assert got == due
    assert calls <= 14


@contract("CLAIM-35")
def test_unknown_executors_wait(driver: Driver) -> None:
    """A job of an executor that a node has not got waits for one that has."""
    job_id = driver.submit(executor="elsewhere")
    assert driver.claim().claims == []
    assert ids(driver.claim(limits={"elsewhere": 1}).claims) == [job_id]
