"""Claims and callbacks of dead nodes, and who is dead (facts BULK, STAT, NODE; F19, F21, F23, F58)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from conformance_tests.contract import contract
from conformance_tests.driver import MINUTE, PENDING_LAST, SECOND, START, Driver
from conformance_tests.under_test import Time
from ratchet.domain.ids import new_id
from ratchet.domain.lifecycle import AttemptEnd, Status, Trigger
from ratchet.domain.settlement import Change, RunCallback, Settlement
from ratchet.spi.store import JobStore, NodeInfo, Orphan, PendingCallback, RecoverRequest, Recovery, Refused

GRACE = MINUTE


def sweep(store: JobStore, **fields: object) -> Recovery:
    given: dict[str, object] = {"grace": GRACE, "crash_budget": 3, **fields}
    answer = store.recover(RecoverRequest(**given))  # type: ignore[arg-type]
    return replace(answer, recovered=list(answer.recovered), exhausted=list(answer.exhausted), errors=())


def recovered(store: JobStore, **fields: object) -> list[UUID]:
    return sorted(orphan.job_id for orphan in sweep(store, **fields).recovered)


@pytest.fixture
def running(driver: Driver) -> Callable[[str], UUID]:
    """Submits a job and has it claimed by this incarnation."""

    def run(incarnation: str) -> UUID:
        return driver.claim_one(driver.submit(), incarnation).job_id

    return run


Running = Callable[[str], UUID]


# -- who is dead ----------------------------------------------------------------------------------


@contract("RECOVER-01", needs=("clock",))
def test_bulk_05_06_07_never_registered(
    store: JobStore, driver: Driver, clock: Time, running: Running
) -> None:
    """The claim of an incarnation that never sent a heartbeat is an orphan once it is older than the grace."""
    job_id = running("a")
    clock.advance(GRACE)
    assert recovered(store) == []
    clock.advance(timedelta(milliseconds=1))
    answer = sweep(store)
    assert answer == Recovery([Orphan(job_id, 1, 1, "a")], [], more=False)
    job = driver.job(job_id)
    assert (job.status, job.picked_by, job.picked_at) == (Status.PENDING, None, None)
    assert (job.crash_count, job.attempts, job.scheduled_time) == (1, 0, START)
    (execution,) = store.history(job_id)
    assert (execution.end, execution.node, execution.claim_seq) == (AttemptEnd.CRASHED, "a", 1)


@contract("RECOVER-02", needs=("clock",))
def test_bulk_08_a_live_owner_keeps_its_claims(store: JobStore, clock: Time, running: Running) -> None:
    """Old claims of an incarnation that still sends heartbeats are left; those of a silent one are not."""
    store.heartbeat(NodeInfo(incarnation="live", name="live"))
    store.heartbeat(NodeInfo(incarnation="dead", name="dead"))
    alive, dead = running("live"), running("dead")
    clock.advance(2 * GRACE)
    store.heartbeat(NodeInfo(incarnation="live", name="live"))
    assert recovered(store) == [dead]
    clock.advance(GRACE)
    assert recovered(store) == []
    clock.advance(timedelta(milliseconds=1))
    assert recovered(store) == [alive]


@contract("RECOVER-03", needs=("clock",))
def test_a_heartbeat_saves_a_claim_however_old(store: JobStore, clock: Time, running: Running) -> None:
    """A registered incarnation is judged by its heartbeat alone, also when the claim is newer."""
    store.heartbeat(NodeInfo(incarnation="a", name="a"))
    clock.advance(GRACE + SECOND)
    job_id = running("a")
    assert recovered(store) == [job_id]


@contract("RECOVER-04", needs=("clock",))
@pytest.mark.field_case("F58")
def test_f58_skewed_nodes_change_nothing(
    store: JobStore, driver: Driver, clock: Time, running: Running
) -> None:
    """Liveness is judged by store time alone: sweeps of any number of nodes leave a live claim (F58)."""
    job_id = running("a")
    for _ in range(12):
        store.heartbeat(NodeInfo(incarnation="a", name="a"))
        clock.advance(10 * SECOND)
        assert recovered(store, never=frozenset({"b"})) == recovered(store, never=frozenset({"c"})) == []
    assert driver.job(job_id).claim_seq == 1


@contract("RECOVER-05", needs=("clock",))
@pytest.mark.field_case("F23")
def test_f23_the_cut_off_is_never_frozen(store: JobStore, clock: Time, running: Running) -> None:
    """A node that idles for 2 h recovers the claim of a node that starts and dies after that (F23)."""
    for _ in range(4):
        assert recovered(store, never=frozenset({"b"})) == []
        clock.advance(timedelta(minutes=30))
        store.heartbeat(NodeInfo(incarnation="b", name="b"))
    store.heartbeat(NodeInfo(incarnation="a1", name="host:7", pid=7))
    job_id = running("a1")
    store.heartbeat(NodeInfo(incarnation="a2", name="host:7", pid=7))
    for _ in range(7):
        clock.advance(10 * SECOND)
        store.heartbeat(NodeInfo(incarnation="a2", name="host:7", pid=7))
    assert recovered(store, never=frozenset({"b"})) == [job_id]


@contract("RECOVER-06")
def test_stat_11_bulk_10_known_gone(store: JobStore, driver: Driver, running: Running) -> None:
    """The pass at start takes back all claims of incarnations known to be gone, and of no others."""
    store.heartbeat(NodeInfo(incarnation="old", name="n"))
    mine = sorted(running("old") for _ in range(2))
    other = running("other")
    assert recovered(store, known_gone=frozenset({"old", "x"}), only_known_gone=True) == mine
    assert driver.status(other) is Status.RUNNING


@contract("RECOVER-07", needs=("clock",))
def test_only_known_gone_looks_at_nobody_else(store: JobStore, clock: Time, running: Running) -> None:
    """The pass at start leaves silent incarnations to the sweeps."""
    running("silent")
    clock.advance(timedelta(days=1))
    assert recovered(store, only_known_gone=True) == []
    assert recovered(store, known_gone=frozenset({"gone"}), only_known_gone=True) == []


@contract("RECOVER-08", needs=("clock",))
def test_never_is_never(store: JobStore, clock: Time, running: Running) -> None:
    """A node does not touch its own claims, even where it looks dead or is said to be gone."""
    running("me")
    clock.advance(timedelta(days=1))
    me = frozenset({"me"})
    assert recovered(store, never=me) == []
    assert recovered(store, never=me, known_gone=me) == []


@contract("RECOVER-09", needs=("clock",))
def test_bulk_09_11_only_running_jobs_are_orphans(store: JobStore, driver: Driver, clock: Time) -> None:
    """Jobs in any other state are left alone, settled ones with their dead owner included."""
    jobs = [driver.drive(status) for status in PENDING_LAST if status is not Status.RUNNING]
    clock.advance(timedelta(days=1))
    gone = frozenset({"node-1"})
    assert sweep(store, known_gone=gone) == Recovery([], [], more=False)
    assert [driver.job(job.id) for job in jobs] == jobs


# -- what a pass does -----------------------------------------------------------------------------


@contract("RECOVER-10", needs=("clock",))
@pytest.mark.parametrize("budget", [0, 1, 2])
def test_bulk_12_17_crash_budget(store: JobStore, driver: Driver, clock: Time, budget: int) -> None:
    """A job is recovered until its budget is spent, then reported, every time, until it is settled."""
    job_id = driver.submit(max_retries=10)
    for crash in range(budget):
        driver.claim_one(job_id, f"node-{crash}")
        clock.advance(GRACE + SECOND)
        answer = sweep(store, crash_budget=budget)
        assert list(answer.recovered) == [Orphan(job_id, crash + 1, crash + 1, f"node-{crash}")]
        assert (driver.job(job_id).crash_count, driver.job(job_id).attempts) == (crash + 1, 0)
    claim = driver.claim_one(job_id, "last")
    clock.advance(GRACE + SECOND)
    expected = Recovery([], [Orphan(job_id, claim.claim_seq, budget, "last")], more=False)
    for _ in range(2):
        assert sweep(store, crash_budget=budget) == expected
        assert driver.status(job_id) is Status.RUNNING
    driver.end(claim, Trigger.CRASH_FAIL, error="the node died")
    job = driver.job(job_id)
    assert (job.status, job.attempts, job.last_error) == (Status.FAILED, 0, "the node died")
    assert sweep(store, crash_budget=budget) == Recovery([], [], more=False)
    assert store.delete([job_id]) == 1


@contract("RECOVER-11", needs=("clock",))
@pytest.mark.field_case("F21")
def test_f21_an_exhausted_job_does_not_hold_up_the_others(
    store: JobStore, driver: Driver, clock: Time
) -> None:
    """Of five claims of a dead node the one at its budget is reported, the four others recovered (F21)."""
    third = [driver.submit() for _ in range(3)][2]
    driver.claim("x", 3)
    for job_id, _ in store.held("x"):
        if job_id != third:
            driver.settle(Trigger.RELEASE, job_id, claim_seq=1)
    assert recovered(store, known_gone=frozenset({"x"})) == [third]
    for _ in range(2):
        driver.submit()
    claims = driver.claim("a").claims
    assert len(claims) == 5
    answer = sweep(store, known_gone=frozenset({"a"}), crash_budget=1)
    assert sorted(orphan.job_id for orphan in answer.recovered) == sorted(
        claim.job_id for claim in claims if claim.job_id != third
    )
    assert [orphan.job_id for orphan in answer.exhausted] == [third]
    assert list(store.held("a")) == [(third, 2)]


@contract("RECOVER-12", needs=("clock",))
def test_a_pass_is_bounded(store: JobStore, driver: Driver, clock: Time) -> None:
    """A pass takes at most its limit, says that there is more, and the next ones take the rest once."""
    made = [driver.submit() for _ in range(5)]
    driver.claim("a")
    clock.advance(GRACE + SECOND)
    seen: list[UUID] = []
    for taken, more in ((2, True), (2, True), (1, False)):
        answer = sweep(store, limit=2)
        assert (len(answer.recovered), answer.more) == (taken, more)
        seen += [orphan.job_id for orphan in answer.recovered]
    assert sorted(seen) == made


@contract("RECOVER-13", needs=("clock",))
@pytest.mark.field_case("F19")
def test_f19_a_finished_job_is_not_recovered(
    store: JobStore, driver: Driver, clock: Time, running: Running
) -> None:
    """A claim that ended after a sweep had looked is refused its crash-fail and stays SUCCEEDED (F19)."""
    job_id = running("a")
    clock.advance(GRACE + SECOND)
    (orphan,) = sweep(store, crash_budget=0).exhausted
    driver.settle(Trigger.SUCCEED, job_id, claim_seq=1, result="1")
    settled = driver.job(job_id)
    change = Change(Trigger.CRASH_FAIL, orphan.job_id, orphan.claim_seq, error="dead")
    assert isinstance(store.settle(Settlement(change)), Refused)
    assert sweep(store) == Recovery([], [], more=False)
    assert driver.job(job_id) == settled


# -- nodes ----------------------------------------------------------------------------------------


@contract("NODE-01", needs=("clock",))
def test_node_01_05_07_10_heartbeats(store: JobStore, clock: Time) -> None:
    """A heartbeat registers or renews an incarnation by store time; the latest comes first."""
    assert list(store.nodes()) == []
    for name in ("a", "b", "c"):
        info = NodeInfo(incarnation=f"{name}-1", name=name, host="h", pid=7, detail={"slots": "8 of 8"})
        assert store.heartbeat(info) == clock.now()
        clock.advance(SECOND)
    busy = NodeInfo(incarnation="a-1", name="a", state="stopping", detail={"stuck": "1"})
    store.heartbeat(busy)
    clock.advance(SECOND)
    nodes = store.nodes()
    assert [node.info.name for node in nodes] == ["a", "c", "b"]
    assert nodes[0].info == busy
    assert (nodes[0].started_at, nodes[0].last_heartbeat) == (START, START + 3 * SECOND)
    assert [node.age for node in nodes] == [SECOND, 2 * SECOND, 3 * SECOND]


@contract("NODE-02", needs=("clock",))
def test_node_08_09_forget(store: JobStore, driver: Driver, clock: Time, running: Running) -> None:
    """A node that deregistered is gone from the list; its claims become orphans after the grace."""
    store.heartbeat(NodeInfo(incarnation="a", name="a"))
    store.heartbeat(NodeInfo(incarnation="b", name="b"))
    job_id = running("a")
    assert store.forget_node("a")
    assert not store.forget_node("a")
    assert not store.forget_node("unknown")
    assert [node.info.incarnation for node in store.nodes()] == ["b"]
    assert recovered(store) == []
    clock.advance(GRACE + SECOND)
    assert recovered(store) == [job_id]


# -- callbacks ------------------------------------------------------------------------------------


def succeed_with_callback(driver: Driver, incarnation: str, argument: str = '"r"') -> PendingCallback:
    claim = driver.claim_one(driver.submit(), incarnation)
    callback = RunCallback("on_success", "shop.jobs:paid", argument)
    driver.end(claim, Trigger.SUCCEED, callback, result=argument)
    return PendingCallback(claim.job_id, claim.claim_seq, "on_success", "shop.jobs:paid", argument)


def take(store: JobStore, incarnation: str, limit: int = 100) -> list[PendingCallback]:
    return list(store.take_callbacks(incarnation, grace=GRACE, limit=limit))


@contract("CALLBACK-01", needs=("clock",))
def test_callbacks_stay_with_a_live_node(store: JobStore, driver: Driver, clock: Time) -> None:
    """A callback belongs to the settling node while that lives, and moves once after its death."""
    store.heartbeat(NodeInfo(incarnation="a", name="a"))
    told = succeed_with_callback(driver, "a")
    clock.advance(GRACE)
    for incarnation in ("a", "b"):
        store.heartbeat(NodeInfo(incarnation="b", name="b"))
        assert take(store, incarnation) == []
    clock.advance(timedelta(milliseconds=1))
    store.heartbeat(NodeInfo(incarnation="b", name="b"))
    assert take(store, "b") == [told]
    assert take(store, "b") == take(store, "c") == []
    clock.advance(GRACE + SECOND)
    assert take(store, "c") == [told]


@contract("CALLBACK-02")
def test_callbacks_of_unregistered_owners_move_at_once(store: JobStore, driver: Driver) -> None:
    """An owner without a registered heartbeat is dead; nobody takes its own."""
    told = succeed_with_callback(driver, "a")
    assert take(store, "a") == []
    assert take(store, "b") == [told]


@contract("CALLBACK-03")
def test_callbacks_are_done_once(store: JobStore, driver: Driver) -> None:
    """A callback reported done never comes back; reporting an unknown one is fine."""
    told = succeed_with_callback(driver, "a")
    store.callback_done(told.job_id, told.claim_seq + 1, told.name)
    store.callback_done(told.job_id, told.claim_seq, "on_failure")
    store.callback_done(new_id(), 1, "on_success")
    assert take(store, "b") == [told]
    store.callback_done(told.job_id, told.claim_seq, told.name)
    store.callback_done(told.job_id, told.claim_seq, told.name)
    assert take(store, "c") == []


@contract("CALLBACK-04")
def test_callbacks_are_taken_up_to_a_limit(store: JobStore, driver: Driver) -> None:
    """Calls with a limit hand out each callback once."""
    told = [succeed_with_callback(driver, "a", str(number)) for number in range(5)]
    parts = [take(store, "b", 2) for _ in range(4)]
    assert [len(part) for part in parts] == [2, 2, 1, 0]
    assert sorted(call.argument for part in parts for call in part) == [call.argument for call in told]


@contract("CALLBACK-05")
def test_a_callback_without_an_owner(store: JobStore, driver: Driver) -> None:
    """A job that never ran (a signal that timed out) has a callback that any sweep takes."""
    job_id = driver.submit(start=Status.WAITING, on_failure="m:f")
    driver.settle(
        Trigger.SIGNAL_TIMEOUT, job_id, RunCallback("on_failure", "m:f", "SignalTimeout"), error="e"
    )
    assert take(store, "b") == [PendingCallback(job_id, 0, "on_failure", "m:f", "SignalTimeout")]


@contract("CALLBACK-06")
def test_both_callbacks_of_one_job_in_two_lives(store: JobStore, driver: Driver) -> None:
    """Callbacks are keyed by claim: a requeued job's second life adds its own."""
    job_id = driver.submit()
    for name in ("on_failure", "on_success"):
        claim = driver.claim_one(job_id, "a")
        trigger = Trigger.FAIL if name == "on_failure" else Trigger.SUCCEED
        driver.end(claim, trigger, RunCallback("on_failure", "m:f", name), result="1")
        if trigger is Trigger.FAIL:
            driver.apply(Trigger.REQUEUE, job_id)
    assert sorted((call.claim_seq, call.argument) for call in take(store, "b")) == [
        (1, "on_failure"),
        (2, "on_success"),
    ]


@contract("DELETE-04")
def test_a_deleted_job_has_no_callbacks(store: JobStore, driver: Driver) -> None:
    """Pending callbacks go with their job."""
    told = succeed_with_callback(driver, "a")
    store.delete([told.job_id])
    assert take(store, "b") == []
