"""The front door with a running node: the public contract facts, on every store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from ratchet import AttemptEnd, Backoff, JobOptions, Scheduler, Selection, Status
from ratchet.errors import (
    ConfigurationError,
    DuplicateBusinessKey,
    JobCanceledError,
    JobFailedError,
    JobPurged,
    NotReplaceable,
    NotRunning,
    UsageError,
)
from tests.unit import scheduler_kit as kit
from tests.unit.scheduler_kit import WAIT, Gate, Heard

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def scheduler(store_url: str) -> Iterator[Scheduler]:
    scheduler = Scheduler.from_url(store_url, allow=[kit.__name__])
    yield scheduler
    for gate in kit.gates.values():
        gate.leave.set()
    kit.gates.clear()
    scheduler.close()


@pytest.fixture
def name() -> str:
    """Under which the bodies of one test count and wait."""
    text = uuid4().hex
    kit.gates[text] = Gate()
    return text


# -- lifecycle ---------------------------------------------------------------------------------------------------


def test_a_job_runs_once_and_its_result_is_known(scheduler: Scheduler, name: str) -> None:
    """API-LIFE-01: a no-op job completes, a started event exists, and the body ran exactly once."""
    heard = Heard(scheduler)
    with scheduler:
        handle = scheduler.enqueue(kit.count, name).submit()
        assert handle.result(timeout=WAIT) == 1
        heard.until_told("JobCompleted", handle.id)
    assert heard.names(handle.id) == ["JobStarted", "JobCompleted"]
    assert kit.runs[name] == 1
    assert handle.created
    assert handle.status is Status.SUCCEEDED


def test_a_raising_job_without_retries_fails_once(scheduler: Scheduler, name: str) -> None:
    """API-LIFE-02, API-RETRY-02: max retries 0 runs the body once; failed is told before dlq."""
    heard = Heard(scheduler)
    with scheduler:
        handle = scheduler.enqueue(kit.fail, name).submit()
        with pytest.raises(JobFailedError, match="RuntimeError: no luck") as caught:
            handle.result(timeout=WAIT)
        heard.until_told("JobDlq", handle.id)
    assert caught.value.job_id == handle.id
    assert heard.names(handle.id) == ["JobStarted", "JobFailed", "JobDlq"]
    assert kit.runs[name] == 1


def test_retries_run_the_body_once_more_each(scheduler: Scheduler, name: str) -> None:
    """API-RETRY-01: max retries 2 with a fixed back-off of 100 ms runs the body three times, then fails."""
    heard = Heard(scheduler)
    with scheduler:
        builder = scheduler.enqueue(kit.fail, name).with_max_retries(2)
        handle = builder.with_backoff(Backoff.fixed(timedelta(milliseconds=100))).submit()
        assert handle.wait(WAIT).status is Status.FAILED
        heard.until_told("JobDlq", handle.id)
    assert kit.runs[name] == 3
    one, last = ["JobStarted", "JobRetrying"], ["JobStarted", "JobFailed", "JobDlq"]
    assert heard.names(handle.id) == [*one, *one, *last]


def test_an_async_body_runs(scheduler: Scheduler) -> None:
    """An `async def` body needs no word of its own: its kind decides where it runs."""
    with scheduler:
        handle = scheduler.enqueue(kit.add_later, 2, b=3).submit()
        assert handle.result(timeout=WAIT) == 5
        job = handle.job()
    assert job is not None
    assert job.executor == "async"


def test_a_result_is_known_in_another_scheduler(scheduler: Scheduler, store_url: str) -> None:
    """A handle made from an id waits and answers also where the job was not submitted."""
    with scheduler, _second(store_url) as other:
        handle = scheduler.enqueue(kit.add, 2, 3, scale=2).submit()
        assert other.handle(handle.id).result(timeout=WAIT) == 10


def _second(store_url: str) -> Scheduler:
    return Scheduler.from_url(store_url, allow=[kit.__name__])


def test_the_handle_gives_up_in_time(scheduler: Scheduler) -> None:
    """`result(timeout=)` raises the builtin TimeoutError, names the state, and takes a timedelta too."""
    handle = scheduler.enqueue(kit.add, 1).submit()
    with pytest.raises(TimeoutError, match=f"{handle.id}.*PENDING"):
        handle.result(timeout=0.01)
    with pytest.raises(TimeoutError):
        handle.wait(timedelta(0))


def test_a_deleted_job_is_purged_to_its_handle(scheduler: Scheduler) -> None:
    """The handle of a job that was deleted has no status, and its result raises JobPurged."""
    handle = scheduler.enqueue(kit.add, 1).with_idempotency_key(f"k-{uuid4()}").submit()
    assert scheduler.cancel(handle.id)
    scheduler.store.delete([handle.id])
    assert handle.status is None
    with pytest.raises(JobPurged):
        handle.result(timeout=1)


# -- cancel ------------------------------------------------------------------------------------------------------


def test_a_delayed_job_can_be_canceled(scheduler: Scheduler, name: str) -> None:
    """API-CAN-01: cancel of a job delayed 30 s answers True, canceled is told, and the body never starts."""
    heard = Heard(scheduler)
    with scheduler:
        handle = scheduler.schedule(timedelta(seconds=30), kit.count, name).submit()
        assert scheduler.cancel(handle.id)
        heard.until_told("JobCanceled", handle.id)
        after = scheduler.enqueue(kit.add, 1).submit()
        assert after.result(timeout=WAIT) == 2
    assert kit.runs[name] == 0
    assert heard.names(handle.id) == ["JobCanceled"]
    with pytest.raises(JobCanceledError):
        handle.result(timeout=1)


def test_a_settled_job_cannot_be_canceled(scheduler: Scheduler, name: str) -> None:
    """API-CAN-02: cancel of a SUCCEEDED, FAILED or CANCELED job, or of none, answers False."""
    with scheduler:
        done = scheduler.enqueue(kit.count, name).submit()
        bad = scheduler.enqueue(kit.fail, name).submit()
        done.wait(WAIT)
        bad.wait(WAIT)
    gone = scheduler.enqueue(kit.count, name).submit()
    assert scheduler.cancel(gone.id)
    for job_id in (done.id, bad.id, gone.id, uuid4()):
        assert scheduler.cancel(job_id) is False


@pytest.mark.parametrize("body", [kit.stay, kit.stay_async])
def test_a_running_job_can_be_canceled(scheduler: Scheduler, name: str, body: Any) -> None:
    """API-CAN-03: canceling is told at the commit, canceled when the body has ended; its result is discarded."""
    heard = Heard(scheduler)
    with scheduler:
        handle = scheduler.enqueue(body, name).submit()
        assert kit.gates[name].entered.wait(WAIT)
        assert scheduler.cancel(handle.id)
        assert scheduler.cancel(handle.id) is False
        heard.until_told("JobCanceling", handle.id)
        kit.gates[name].leave.set()
        heard.until_told("JobCanceled", handle.id)
    assert heard.names(handle.id) == ["JobStarted", "JobCanceling", "JobCanceled"]
    assert handle.status is Status.CANCELED


def test_paused_and_waiting_jobs_can_be_canceled(scheduler: Scheduler, name: str) -> None:
    """A PAUSED job is canceled like a PENDING one."""
    handle = scheduler.enqueue(kit.count, name).submit()
    assert scheduler.pause(handle.id)
    assert scheduler.cancel(handle.id)
    assert handle.status is Status.CANCELED


def test_cancel_by_tag_leaves_what_runs(scheduler: Scheduler, name: str) -> None:
    """Cancel by tag touches unstarted jobs with all the tags, counts them, and leaves a running one."""
    heard = Heard(scheduler)
    with scheduler:
        running = scheduler.enqueue(kit.stay, name).with_tags("red").submit()
        assert kit.gates[name].entered.wait(WAIT)
        hour = timedelta(hours=1)
        both = [scheduler.schedule(hour, kit.add, 1).with_tags("Red ", "blue").submit() for _ in range(3)]
        red = scheduler.schedule(hour, kit.add, 1).with_tags("red").submit()
        assert scheduler.pause(both[0].id)
        assert scheduler.cancel_tagged("red", "BLUE") == 3
        assert scheduler.cancel_tagged("red", "blue") == 0
        assert running.status is Status.RUNNING
        assert red.status is Status.PENDING
        heard.until(lambda: heard.names().count("JobCanceled") == 3)
        kit.gates[name].leave.set()
        running.wait(WAIT)
    with pytest.raises(UsageError, match="at least one tag"):
        scheduler.cancel_tagged()


# -- delay -------------------------------------------------------------------------------------------------------


def test_a_delay_is_kept_by_a_running_node(scheduler: Scheduler, name: str) -> None:
    """A job with a short delay is not started before it is due, and is not left until the next slow poll."""
    with scheduler:
        handle = scheduler.enqueue(kit.count, name).with_delay(timedelta(milliseconds=200)).submit()
        job = handle.wait(WAIT)
    assert job.started_at is not None
    assert job.started_at >= job.created_at + timedelta(milliseconds=199)
    assert job.started_at < job.created_at + timedelta(seconds=5)


# -- keys --------------------------------------------------------------------------------------------------------


def test_a_held_business_key_refuses_a_second_job(scheduler: Scheduler, name: str) -> None:
    """API-BK-01, API-BK-03: the holder is named while it runs; after it the key is free and each runs once."""
    key = f"invoice-{name}"
    with scheduler:
        first = scheduler.enqueue(kit.stay, name).with_business_key(key).submit()
        assert kit.gates[name].entered.wait(WAIT)
        with pytest.raises(DuplicateBusinessKey) as caught:
            scheduler.enqueue(kit.stay, name).with_business_key(key).submit()
        assert caught.value.conflicts == {key: first.id}
        assert kit.runs[name] == 1
        kit.gates[name].leave.set()
        assert first.result(timeout=WAIT) == name
        second = scheduler.enqueue(kit.stay, name).with_business_key(key).submit()
        assert second.result(timeout=WAIT) == name
    assert kit.runs[name] == 2


def test_racing_submissions_of_a_business_key_run_once(scheduler: Scheduler, name: str) -> None:
    """API-BK-02: of submissions at the same moment exactly one is accepted, and the body runs once."""
    start = threading.Barrier(4)
    created: list[UUID] = []
    refused: list[DuplicateBusinessKey] = []

    def submit() -> None:
        start.wait(WAIT)
        try:
            created.append(scheduler.enqueue(kit.stay, name).with_business_key(name).submit().id)
        except DuplicateBusinessKey as error:
            refused.append(error)

    with scheduler:
        threads = [threading.Thread(target=submit) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        kit.gates[name].leave.set()
        assert len(created) == 1
        assert len(refused) == 3
        assert scheduler.handle(created[0]).result(timeout=WAIT) == name
    assert kit.runs[name] == 1


def test_an_idempotency_key_answers_the_original(scheduler: Scheduler, name: str) -> None:
    """API-IDEM-01: while the holder runs and after, a second submission is merged, never run."""
    key = f"once-{name}"
    with scheduler:
        first = scheduler.enqueue(kit.stay, name).with_idempotency_key(key).submit()
        assert kit.gates[name].entered.wait(WAIT)
        second = scheduler.enqueue(kit.stay, name).with_idempotency_key(key).submit()
        assert (second.id, second.created, first.created) == (first.id, False, True)
        kit.gates[name].leave.set()
        assert second.result(timeout=WAIT) == name
        third = scheduler.enqueue(kit.stay, name).with_idempotency_key(key).submit()
        assert (third.id, third.created) == (first.id, False)
    assert kit.runs[name] == 1


def test_distinct_idempotency_keys_are_distinct_jobs(scheduler: Scheduler, name: str) -> None:
    """API-IDEM-03: two keys, two ids, both run once."""
    with scheduler:
        handles = [
            scheduler.enqueue(kit.count, name).with_idempotency_key(f"{name}-{i}").submit() for i in (1, 2)
        ]
        assert sorted(handle.result(timeout=WAIT) for handle in handles) == [1, 2]
    assert handles[0].id != handles[1].id


# -- control -----------------------------------------------------------------------------------------------------


def test_retry_gives_a_failed_job_a_new_life(scheduler: Scheduler, name: str) -> None:
    """API-CTRL-01: retry of a FAILED job answers True, requeued is told before started, the body runs again."""
    heard = Heard(scheduler)
    with scheduler:
        handle = scheduler.enqueue(kit.fail_times, name, 1).submit()
        assert handle.wait(WAIT).status is Status.FAILED
        heard.until_told("JobDlq", handle.id)
        assert scheduler.retry(handle.id)
        assert handle.result(timeout=WAIT) == 2
        heard.until_told("JobCompleted", handle.id)
    assert heard.names(handle.id)[3:] == ["JobRequeued", "JobStarted", "JobCompleted"]
    job = handle.job()
    assert job is not None
    assert (job.attempts, job.last_error) == (0, None)


def test_retry_of_anything_else_is_refused(scheduler: Scheduler) -> None:
    """API-CTRL-02: an unknown id and a job that is not FAILED answer False."""
    handle = scheduler.enqueue(kit.add, 1).submit()
    assert scheduler.retry(handle.id) is False
    assert scheduler.retry(uuid4()) is False


def test_pause_is_idempotent_and_resume_lets_it_run(scheduler: Scheduler, name: str) -> None:
    """API-CTRL-03: a paused job is not run, pausing it again is True, and resumed it completes."""
    heard = Heard(scheduler)
    handle = scheduler.enqueue(kit.count, name).submit()
    assert scheduler.pause(handle.id)
    assert scheduler.pause(handle.id)
    with scheduler:
        assert scheduler.enqueue(kit.add, 1).submit().result(timeout=WAIT) == 2
        assert (handle.status, kit.runs[name]) == (Status.PAUSED, 0)
        assert scheduler.resume(handle.id)
        assert handle.result(timeout=WAIT) == 1
        heard.until_told("JobCompleted", handle.id)
    assert heard.names(handle.id) == ["JobPaused", "JobResumed", "JobStarted", "JobCompleted"]


def test_only_pending_jobs_pause_and_only_paused_ones_resume(scheduler: Scheduler, name: str) -> None:
    """API-CTRL-04, API-CTRL-05: unknown, RUNNING and settled jobs answer False to both."""
    with scheduler:
        handle = scheduler.enqueue(kit.stay, name).submit()
        assert kit.gates[name].entered.wait(WAIT)
        assert scheduler.pause(handle.id) is False
        assert scheduler.resume(handle.id) is False
        kit.gates[name].leave.set()
        handle.wait(WAIT)
    for job_id in (handle.id, uuid4()):
        assert scheduler.pause(job_id) is False
        assert scheduler.resume(job_id) is False
    pending = scheduler.enqueue(kit.add, 1).submit()
    assert scheduler.resume(pending.id) is False


def test_retry_all_requeues_failed_jobs_of_the_selection(scheduler: Scheduler, name: str) -> None:
    """Only FAILED jobs with the tag are put back, at most `limit`, oldest first; the bulk event names them."""
    heard = Heard(scheduler)
    with scheduler:
        red = scheduler.enqueue_many(kit.fail, [(name,)] * 3, options=JobOptions(tags=frozenset({"red"})))
        blue = scheduler.enqueue(kit.fail, name).with_tags("blue").submit()
        for handle in (*red, blue):
            handle.wait(WAIT)
    chosen = scheduler.retry_all(Selection(tags=frozenset({"red"})), limit=2)
    assert list(chosen.ids) == sorted(handle.id for handle in red)[:2]
    assert chosen.skipped == {}
    assert [handle.status for handle in (*red, blue)] == [Status.PENDING] * 2 + [Status.FAILED] * 2
    heard.until_told("JobsBulkRetried")
    assert heard.names()[-3:] == ["JobRequeued", "JobRequeued", "JobsBulkRetried"]
    pending = Selection(statuses=frozenset({Status.PENDING}))
    assert scheduler.retry_all(pending).ids == []
    for limit in (0, 1001):
        with pytest.raises(UsageError, match="1000"):
            scheduler.retry_all(limit=limit)


def test_retry_all_meets_a_business_key_in_use(scheduler: Scheduler, name: str) -> None:
    """Under abort nothing changes and the conflict is named; under skip the others are put back."""
    with scheduler:
        first = scheduler.enqueue(kit.fail, name).with_business_key(name).submit()
        free = scheduler.enqueue(kit.fail, name).submit()
        first.wait(WAIT)
        free.wait(WAIT)
    holder = scheduler.schedule(timedelta(hours=1), kit.add, 1).with_business_key(name).submit()
    with pytest.raises(DuplicateBusinessKey) as caught:
        scheduler.retry_all()
    assert caught.value.holder == holder.id
    assert first.status is free.status is Status.FAILED
    chosen = scheduler.retry_all(on_conflict="skip")
    assert list(chosen.ids) == [free.id]
    assert list(chosen.skipped) == [first.id]
    with pytest.raises(DuplicateBusinessKey):
        scheduler.retry(first.id)


def test_replace_swaps_a_job_and_its_business_key(scheduler: Scheduler, name: str) -> None:
    """The old job is canceled and names its successor, which holds the key; the event says so too."""
    heard = Heard(scheduler)
    old = scheduler.schedule(timedelta(hours=1), kit.add, 1).with_business_key(name).submit()
    new = scheduler.replace(old.id, scheduler.enqueue(kit.add, 5))
    assert new.created
    job = old.job()
    assert job is not None
    assert (job.status, job.superseded_by) == (Status.CANCELED, new.id)
    holder = scheduler.store.find_by_key(business=name)
    assert holder is not None
    assert holder.id == new.id
    heard.until_told("JobCanceled", old.id)
    assert getattr(heard.events[-1], "superseded_by", None) == new.id
    with scheduler:
        assert new.result(timeout=WAIT) == 6
    with pytest.raises(JobCanceledError, match=str(new.id)):
        old.result(timeout=1)


def test_replace_refuses_what_has_begun(scheduler: Scheduler, name: str) -> None:
    """A RUNNING, settled or unknown job is not replaced, and the builder can be used again."""
    with scheduler:
        handle = scheduler.enqueue(kit.stay, name).submit()
        assert kit.gates[name].entered.wait(WAIT)
        builder = scheduler.enqueue(kit.add, 1)
        with pytest.raises(NotReplaceable, match="RUNNING"):
            scheduler.replace(handle.id, builder)
        kit.gates[name].leave.set()
        handle.wait(WAIT)
        with pytest.raises(NotReplaceable, match="SUCCEEDED"):
            scheduler.replace(handle.id, builder)
        with pytest.raises(NotReplaceable, match="unknown"):
            scheduler.replace(uuid4(), builder)
        assert builder.submit().result(timeout=WAIT) == 2


def test_replace_with_taken_keys_changes_nothing(scheduler: Scheduler, name: str) -> None:
    """A held business key is refused, a taken idempotency key answers the original; the old job stays."""
    hour = timedelta(hours=1)
    old = scheduler.schedule(hour, kit.add, 1).with_business_key(f"{name}-a").submit()
    other = scheduler.schedule(hour, kit.add, 1).with_business_key(f"{name}-b").submit()
    once = scheduler.schedule(hour, kit.add, 1).with_idempotency_key(name).submit()
    with pytest.raises(DuplicateBusinessKey) as caught:
        scheduler.replace(old.id, scheduler.enqueue(kit.add, 2).with_business_key(f"{name}-b"))
    assert caught.value.holder == other.id
    merged = scheduler.replace(old.id, scheduler.enqueue(kit.add, 2).with_idempotency_key(name))
    assert (merged.id, merged.created) == (once.id, False)
    assert old.status is Status.PENDING


# -- many --------------------------------------------------------------------------------------------------------


def test_enqueue_many_takes_tuples_and_dicts(scheduler: Scheduler) -> None:
    """Each entry is one call, by position or by name, and each has its own result, in order."""
    with scheduler:
        handles = scheduler.enqueue_many(kit.add, [(1,), (1, 2), {"a": 3, "scale": 10}])
        assert [handle.result(timeout=WAIT) for handle in handles] == [2, 3, 40]
    assert scheduler.enqueue_many(kit.add, []) == []


def test_enqueue_many_with_keys_merges_what_is_there(scheduler: Scheduler, name: str) -> None:
    """A taken idempotency key answers the original, a repeat within the list the first of them."""
    first = scheduler.enqueue(kit.count, "x").with_idempotency_key(f"{name}-2").submit()
    handles = scheduler.enqueue_many(
        kit.add, [(1,), (2,), (3,), (1,)], idempotency_key=f"{name}-{{0}}".format
    )
    assert [handle.created for handle in handles] == [True, False, True, False]
    assert handles[1].id == first.id
    assert handles[3].id == handles[0].id
    assert scheduler.query.count() == 3


def test_enqueue_many_is_all_or_nothing(scheduler: Scheduler, name: str) -> None:
    """A business key in use, one that occurs twice, or a wrong entry, and nothing is stored."""
    holder = scheduler.schedule(timedelta(hours=1), kit.add, 1).with_business_key(f"{name}-2").submit()
    with pytest.raises(DuplicateBusinessKey) as caught:
        scheduler.enqueue_many(kit.add, [(1,), (2,), (3,)], business_key=f"{name}-{{0}}".format)
    assert caught.value.conflicts == {f"{name}-2": holder.id}
    with pytest.raises(DuplicateBusinessKey):
        scheduler.enqueue_many(kit.add, [(7,), (7,)], business_key=f"{name}-{{0}}".format)
    with pytest.raises(UsageError):
        scheduler.enqueue_many(kit.add, [(1,), ()])
    assert scheduler.query.count() == 1


def test_submit_many_stores_different_functions_in_one_unit(scheduler: Scheduler, name: str) -> None:
    """Builders of several functions are stored together or not at all, and can be submitted after a refusal."""
    holder = scheduler.schedule(timedelta(hours=1), kit.add, 1).with_business_key(name).submit()
    builders = [scheduler.enqueue(kit.add, 4), scheduler.enqueue(kit.count, name).with_business_key(name)]
    with pytest.raises(DuplicateBusinessKey):
        scheduler.submit_many(builders)
    assert scheduler.query.count() == 1
    assert scheduler.cancel(holder.id)
    with scheduler:
        assert [handle.result(timeout=WAIT) for handle in scheduler.submit_many(builders)] == [5, 1]
    with pytest.raises(UsageError, match="has been submitted"):
        builders[0].submit()
    twice = scheduler.enqueue(kit.add, 1)
    with pytest.raises(UsageError):
        scheduler.submit_many([twice, twice])
    twice.submit()


# -- reading -----------------------------------------------------------------------------------------------------


def test_query_finds_jobs_with_their_history(scheduler: Scheduler, name: str) -> None:
    """API-Q-01 to API-Q-03: detail by id, None for an unknown one, find without a filter, one row per claim."""
    with scheduler:
        handle = scheduler.enqueue(kit.fail_times, name, 1).with_max_retries(1).submit()
        assert handle.result(timeout=WAIT) == 2
    detail = scheduler.query.detail(handle.id)
    assert detail is not None
    assert detail.job.id == handle.id
    assert [(each.claim_seq, each.attempt, each.end) for each in detail.history] == [
        (1, 1, AttemptEnd.FAILED),
        (2, 2, AttemptEnd.SUCCEEDED),
    ]
    assert scheduler.query.detail(uuid4()) is None
    assert handle.id in [job.id for job in scheduler.query.find(limit=100).jobs]
    assert scheduler.query.arguments(detail.job) == ((name, 1), {})
    assert scheduler.query.counts()[Status.SUCCEEDED] == scheduler.query.count() == 1
    assert scheduler.query.health().by_status[Status.SUCCEEDED] == 1
    assert scheduler.query.nodes() == []


def test_iterate_reads_every_page(scheduler: Scheduler) -> None:
    """Iterating passes over more jobs than a page holds, each once."""
    handles = scheduler.enqueue_many(kit.add, [(i,) for i in range(1203)])
    seen = [job.id for job in scheduler.query.iterate()]
    assert sorted(seen) == sorted(handle.id for handle in handles)


# -- starting and stopping ---------------------------------------------------------------------------------------


def test_an_empty_policy_refuses_to_start(store_url: str) -> None:
    """A scheduler that may execute nothing does not start, and says what to write."""
    scheduler = Scheduler.from_url(store_url)
    with pytest.raises(ConfigurationError, match=r"allow=\['shop'\]"):
        scheduler.start()
    assert scheduler.node is None
    assert scheduler.stop().drained


def test_start_twice_is_refused_and_stop_twice_is_not(scheduler: Scheduler) -> None:
    """A running scheduler cannot be started again; stopping one that does not run does nothing."""
    with scheduler:
        with pytest.raises(NotRunning, match="running already"):
            scheduler.start()
        assert [node.info.name for node in scheduler.query.nodes()] == [
            scheduler.node and scheduler.node.info.name
        ]
    assert scheduler.stop().released == ()


def test_a_scheduler_can_be_started_again(scheduler: Scheduler) -> None:
    """After a stop the same scheduler starts anew and is woken as before."""
    scheduler.enqueue_now(kit.add, 1)  # before the first start: the hint needs a coordinator of its own
    for n in (1, 2, 3):
        with scheduler:
            assert scheduler.enqueue(kit.add, n).submit().result(timeout=WAIT) == n + 1


def test_jobs_submitted_without_a_node_are_run_by_one_later(scheduler: Scheduler) -> None:
    """Submitting needs no running node; one that starts finds what is due."""
    handle = scheduler.enqueue(kit.add, 1, b=2).submit()
    with scheduler:
        assert handle.result(timeout=WAIT) == 3


def test_stop_gives_back_a_body_that_does_not_end(scheduler: Scheduler, name: str) -> None:
    """A body beyond the timeout is released with nothing charged, asked to stop, and reported as running."""
    scheduler.start()
    handle = scheduler.enqueue(kit.stay, name).submit()
    assert kit.gates[name].entered.wait(WAIT)
    stopped = scheduler.stop(timeout=0.2)
    assert (stopped.drained, stopped.released, stopped.stuck) == (False, (handle.id,), (handle.id,))
    job = handle.job()
    assert job is not None
    assert (job.status, job.attempts, job.crash_count) == (Status.PENDING, 0, 0)


# -- services and names ------------------------------------------------------------------------------------------


def test_methods_of_services_are_jobs(scheduler: Scheduler) -> None:
    """A method runs on the registered object; static and class methods need none."""
    scheduler.register(kit.Service("Ada"))
    with scheduler:
        assert (
            scheduler.enqueue(kit.Service("nobody").greet, "Bob").submit().result(timeout=WAIT)
            == "Ada greets Bob"
        )
        assert scheduler.enqueue(kit.Service.double, 4).submit().result(timeout=WAIT) == 8
        assert scheduler.enqueue(kit.Service.named).submit().result(timeout=WAIT) == "Service"


def test_a_decorated_function_stays_callable_and_keeps_its_defaults(store_url: str) -> None:
    """`@job` stores the given name and its options; the builder and its words win over them."""
    scheduler = Scheduler.from_url(store_url)
    assert scheduler.job(name="sum", max_retries=4, tags=["Maths"])(kit.add) is kit.add
    assert kit.add(1, 2) == 3
    handle = scheduler.enqueue(kit.add, 1).with_tags("extra").submit()
    job = handle.job()
    assert job is not None
    assert (job.target, job.max_retries, job.tags) == ("sum", 4, frozenset({"maths", "extra"}))
    other = scheduler.enqueue(kit.add, 1).with_max_retries(0).submit().job()
    assert other is not None
    assert other.max_retries == 0
    with scheduler:
        assert handle.result(timeout=WAIT) == 2
    scheduler.close()


def test_callbacks_run_after_the_outcome(scheduler: Scheduler, name: str) -> None:
    """Success and failure each call their callback; one that raises is told and changes no outcome."""
    heard = Heard(scheduler)
    kit.said.clear()
    with scheduler:
        good = (
            scheduler.enqueue(kit.add, 1).on_success(kit.after_success).on_failure(kit.after_failure).submit()
        )
        bad = (
            scheduler.enqueue(kit.fail, name)
            .on_success(kit.after_success)
            .on_failure(kit.after_failure)
            .submit()
        )
        broken = scheduler.enqueue(kit.add, 1).on_success(kit.broken_callback).submit()
        heard.until_told("JobCallbackFailed", broken.id)
        good.wait(WAIT)
        bad.wait(WAIT)
    assert sorted(kit.said, key=str) == sorted(  # stop() lets callbacks finish
        [("success", good.id, 2), ("failure", bad.id, "no luck")], key=str
    )
    assert broken.status is Status.SUCCEEDED


def test_at_takes_an_aware_instant(scheduler: Scheduler) -> None:
    """A due time in another zone is stored as the same instant, in whole milliseconds."""
    paris = datetime(2031, 7, 1, 12, 0, 0, 123456, tzinfo=UTC)
    job = scheduler.schedule(paris, kit.add, 1).submit().job()
    assert job is not None
    assert job.scheduled_time == datetime(2031, 7, 1, 12, 0, 0, 123000, tzinfo=UTC)
