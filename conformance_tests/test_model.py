"""Any sequence of calls by several nodes: the store under test answers as the memory store does.

The memory store is itself held to a naive reading of the rules: what a claim takes is computed here by
sorting all jobs, and counts, keys and held claims are recounted from the jobs after every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from conformance_tests.contract import contract
from conformance_tests.driver import START, ids, new_job
from conformance_tests.under_test import UnderTest
from ratchet.defaults.memory import MemoryStore
from ratchet.domain.ids import new_id
from ratchet.domain.job import Claim, Job, JobType, NewJob
from ratchet.domain.lifecycle import (
    HOLDS_BUSINESS_KEY,
    ROWS,
    UNSCHEDULED,
    Status,
    Trigger,
)
from ratchet.domain.priority import Priority, claim_order
from ratchet.domain.settlement import Change, Effect, RunCallback, Settlement, Submit
from ratchet.errors import RatchetError
from ratchet.spi.store import (
    Applied,
    Claimed,
    ClaimRequest,
    Inserted,
    JobStore,
    NodeInfo,
    Order,
    RecoverRequest,
    Recovery,
    Refused,
    Selected,
    Selection,
)

T = TypeVar("T")
MS = timedelta(milliseconds=1)
NODES = ["n0", "n1", "n2"]
KEYS = [*[None] * 10, "k", "l"]
TAGS = ["a", "b", "%"]
TARGETS = ["m:f", "m:g"]
DELAYS = [None, timedelta(), MS, timedelta(seconds=1), timedelta(minutes=20), timedelta(days=2)]
ENDS = sorted(t for t, row in ROWS.items() if row.fenced and t is not Trigger.RECOVER)
BY_HAND = [Trigger.PAUSE, Trigger.RESUME, Trigger.UNBLOCK, Trigger.REQUEUE, Trigger.SIGNAL]

nodes = st.sampled_from(NODES)
tags = st.frozensets(st.sampled_from(TAGS), max_size=2)
places = st.integers(0, 10_000)
submissions = st.fixed_dictionaries(
    {
        "priority": st.sampled_from(Priority),
        "executor": st.sampled_from(["threads", "async"]),
        "delay": st.sampled_from(DELAYS),
        "tags": tags,
        "target": st.sampled_from(TARGETS),
        "type": st.sampled_from([*[JobType.SINGLE] * 4, JobType.BATCH, JobType.BRANCH]),
        "business_key": st.sampled_from(KEYS),
        "idempotency_key": st.sampled_from(KEYS),
        "start": st.sampled_from([Status.PENDING, Status.PENDING, Status.PENDING, Status.WAITING]),
    },
    optional={"at": st.sampled_from([START, START - timedelta(days=1), UNSCHEDULED])},
)
selections = st.builds(
    Selection,
    statuses=st.frozensets(st.sampled_from(Status), max_size=3),
    tags=tags,
    types=st.frozensets(st.sampled_from(JobType), max_size=2),
    priorities=st.frozensets(st.sampled_from(Priority), max_size=2),
    business_key=st.sampled_from([None, None, "k"]),
    target=st.sampled_from([None, None, ":g"]),
    ended_from=st.sampled_from([None, None, START + timedelta(seconds=1)]),
)

filters: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {},
        optional={
            "require_tags": tags,
            "exclude_tags": tags,
            "leave_out": st.just(frozenset({("m:f", 1)})),
            "types": st.sampled_from(
                [frozenset({JobType.SINGLE}), frozenset({JobType.BRANCH, JobType.BATCH})]
            ),
        },
    ),
)


def plain(answer: Any) -> Any:
    """An answer in a form in which two stores' answers can be compared."""
    match answer:
        case Refused():
            return ("refused", answer.job_id, answer.current)
        case Recovery():
            key = sorted(answer.recovered, key=lambda orphan: orphan.job_id)
            return (key, sorted(answer.exhausted, key=lambda orphan: orphan.job_id), answer.more)
        case Selected():
            return (list(answer.ids), sorted(answer.skipped), answer.now)
        case list() | tuple():
            return [plain(entry) for entry in answer]
        case _:
            return answer


Step = tuple[str, st.SearchStrategy[dict[str, Any]]]
STEPS: list[Step] = []


def step(weight: int, **arguments: st.SearchStrategy[Any]) -> Callable[[T], T]:
    """A step of the machine, taken as often as its weight says.

    Rules of hypothesis itself are switched off at random for whole examples; a history in which nothing
    is ever submitted, or claimed, or ended, shows little.
    """

    def register(method: T) -> T:
        STEPS.extend([(method.__name__, st.fixed_dictionaries(arguments))] * weight)  # type: ignore[attr-defined]
        return method

    return register


class Stores(RuleBasedStateMachine):
    """Two stores that are told the same by the same nodes."""

    def __init__(self, under_test: UnderTest) -> None:
        super().__init__()
        under_test.reset()
        self.handles = [under_test.open() for _ in NODES]
        self.clock = under_test.time(self.handles[0])
        self.oracle = MemoryStore(clock=self.clock)
        self.jobs: list[UUID] = []
        self.claims: list[Claim] = []

    def both(self, node: str, call: Callable[[JobStore], Any], *, oracle_last: bool = False) -> Any:
        """Ask both; the answers, or the errors, must be the same."""
        answers: list[tuple[Any, Any]] = []
        stores = (self.oracle, self.handles[NODES.index(node)])
        for store in reversed(stores) if oracle_last else stores:
            try:
                answers.append((plain(call(store)), None))
            except RatchetError as error:
                answers.append((None, (type(error), getattr(error, "conflicts", None))))
        assert answers[0] == answers[1]
        return answers[0][0]

    def all_jobs(self) -> list[Job]:
        return list(self.oracle.find(Selection(), limit=1000).jobs)

    def some_job(self, place: int) -> UUID:
        return self.jobs[place % len(self.jobs)] if self.jobs else new_id()

    @rule(data=st.data(), number=st.integers(0, 10_000))
    def take_a_step(self, data: st.DataObject, number: int) -> None:
        name, arguments = STEPS[number % len(STEPS)]
        getattr(self, name)(**data.draw(arguments, label=name))

    # -- submission

    @step(4, node=nodes, entries=st.lists(submissions, min_size=1, max_size=8), claims=st.booleans())
    def insert(self, node: str, entries: list[dict[str, Any]], claims: bool) -> None:
        asked = [new_job(**fields, claim_for=node if claims else None) for fields in entries]
        granted: set[UUID] = set()  # a store may ignore the wish: the oracle is then told of none

        def insert(store: JobStore) -> list[Inserted]:
            if store is self.oracle:
                return list(store.insert([_told(new, granted) for new in asked]))
            answers = list(store.insert(asked))
            granted.update(answer.id for answer in answers if answer.claim is not None)
            return answers

        answers = self.both(node, insert, oracle_last=True)
        self.jobs += [answer.id for answer in answers or () if answer.created]
        self.claims += [answer.claim for answer in answers or () if answer.claim is not None]

    @step(1, node=nodes, at=st.lists(places, max_size=5))
    def delete(self, node: str, at: list[int]) -> None:
        self.both(node, lambda store: store.delete([self.some_job(place) for place in at]))

    # -- claiming

    @step(
        6,
        node=nodes,
        limit=st.integers(1, 4),
        limits=st.fixed_dictionaries({"threads": st.integers(1, 4)}, optional={"async": st.integers(0, 4)}),
        filters=filters,
        boost=st.sampled_from([timedelta(minutes=15), timedelta(), MS]),
    )
    def claim(
        self, node: str, limit: int, limits: dict[str, int], filters: dict[str, Any], boost: timedelta
    ) -> None:
        request = ClaimRequest(incarnation=node, limit=limit, limits=limits, boost_interval=boost, **filters)
        expected = self.naive_claim(request)
        claimed = self.both(node, lambda store: _listed(store.claim(request)))
        assert (ids(claimed.claims), claimed.more, claimed.next_due) == expected
        self.claims += claimed.claims

    def naive_claim(self, request: ClaimRequest) -> tuple[list[UUID], bool, Any]:
        """What the rules say, from a look at every job."""
        now = self.oracle.now()
        open_to = [
            job
            for job in self.all_jobs()
            if request.limits.get(job.executor, 0) > 0
            and job.status is Status.PENDING
            and request.require_tags <= job.tags
            and not request.exclude_tags & job.tags
            and (not request.types or job.type in request.types)
            and (job.target, job.format) not in request.leave_out
            and job.type is not JobType.BATCH
            and job.scheduled_time != UNSCHEDULED
        ]
        due = [job for job in open_to if job.scheduled_time <= now]
        due.sort(
            key=lambda job: claim_order(job.priority, job.scheduled_time, job.id, now, request.boost_interval)
        )
        taken: list[UUID] = []
        left = Counter(request.limits)
        for job in due:
            if left[job.executor] > 0 and len(taken) < request.limit:
                left[job.executor] -= 1
                taken.append(job.id)
        later = [job.scheduled_time for job in open_to if job.scheduled_time > now]
        return taken, len(due) > len(taken), min(later, default=None)

    # -- the end of a claim

    @step(
        6,
        node=nodes,
        outcomes=st.lists(
            st.tuples(places, st.sampled_from(ENDS), st.sampled_from(DELAYS), st.booleans(), st.booleans()),
            min_size=1,
            max_size=4,
        ),
    )
    def end(self, node: str, outcomes: list[tuple[int, Trigger, timedelta | None, bool, bool]]) -> None:
        settlements = []
        for place, trigger, delay, callback, timed_out in outcomes:
            if not self.claims:
                return
            claim = self.claims[-1 - place % len(self.claims)]
            change = Change(
                trigger,
                claim.job_id,
                claim_seq=claim.claim_seq,
                attempts=claim.attempts + 1 if callback else None,
                error="e%",
                result='"r"',
                delay=delay,
                duration=delay,
                timed_out=timed_out,
            )
            effects: tuple[Effect, ...] = (RunCallback("on_success", "m:f", "1"),) if callback else ()
            settlements.append(Settlement(change, effects))
        self.both(node, lambda store: list(store.settle_many(settlements)))

    @step(1, node=nodes, place=places, trigger=st.sampled_from([Trigger.CANCEL, Trigger.CANCEL_RUNNING]))
    def cancel(self, node: str, place: int, trigger: Trigger) -> None:
        settlement = Settlement(Change(trigger, self.some_job(place)))
        self.both(node, lambda store: store.settle(settlement))

    @step(
        1, node=nodes, place=places, trigger=st.sampled_from([Trigger.SIGNAL_TIMEOUT, Trigger.BATCH_SETTLE])
    )
    def settle_without_a_claim(self, node: str, place: int, trigger: Trigger) -> None:
        effects = (RunCallback("on_failure", "m:f", "1"),)
        change = Change(trigger, self.some_job(place), target=Status.FAILED, error="e", result="{}", age=MS)
        self.both(node, lambda store: store.settle(Settlement(change, effects)))

    @step(1, node=nodes, place=places, fields=submissions, in_a_list=st.booleans())
    def replace_job(self, node: str, place: int, fields: dict[str, Any], in_a_list: bool) -> None:
        new = new_job(**fields)
        change = Change(Trigger.REPLACE, self.some_job(place), superseded_by=new.id)
        settlement = Settlement(change, (Submit(new),))
        if in_a_list:
            self.both(node, lambda store: list(store.settle_many([settlement])))
        else:
            self.both(node, lambda store: store.settle(settlement))
        if self.oracle.get(new.id) is not None:
            self.jobs.append(new.id)

    # -- by hand

    @step(
        3,
        node=nodes,
        place=places,
        trigger=st.sampled_from(BY_HAND),
        version=st.sampled_from([None, None, 1]),
    )
    def apply(self, node: str, place: int, trigger: Trigger, version: int | None) -> None:
        change = Change(trigger, self.some_job(place), version=version, signal='"s"')
        answer = self.both(node, lambda store: store.apply(change))
        job = self.oracle.get(change.job_id)
        if isinstance(answer, Applied) and job is not None:
            assert answer.job == job

    @step(
        1,
        node=nodes,
        selection=selections,
        limit=st.integers(1, 4),
        on_conflict=st.sampled_from(["abort", "skip"]),
    )
    def requeue_many(self, node: str, selection: Selection, limit: int, on_conflict: Any) -> None:
        self.both(
            node,
            lambda store: store.apply_where(selection, Trigger.REQUEUE, limit=limit, on_conflict=on_conflict),
        )

    # -- nodes, recovery, callbacks

    @step(1, node=nodes, leaves=st.booleans())
    def heartbeat(self, node: str, leaves: bool) -> None:
        self.both(node, lambda store: store.heartbeat(NodeInfo(incarnation=node, name=node)))
        if leaves:
            self.both(node, lambda store: store.forget_node(node))

    @step(1, node=nodes, gone=st.frozensets(nodes, max_size=1), only=st.booleans(), budget=st.integers(0, 2))
    def recover(self, node: str, gone: frozenset[str], only: bool, budget: int) -> None:
        request = RecoverRequest(
            grace=timedelta(minutes=1),
            crash_budget=budget,
            known_gone=gone,
            never=frozenset({node}),
            only_known_gone=only,
        )
        self.both(node, lambda store: store.recover(request))

    @step(1, node=nodes, done=st.booleans())
    def take_callbacks(self, node: str, done: bool) -> None:
        def take(store: JobStore) -> list[tuple[UUID, int, str, str]]:
            taken = store.take_callbacks(node, grace=timedelta(minutes=1), limit=100)
            for call in taken if done else ():
                store.callback_done(call.job_id, call.claim_seq, call.name)
            return sorted((call.job_id, call.claim_seq, call.name, call.argument) for call in taken)

        self.both(node, take)

    @step(3, delta=st.sampled_from([MS, timedelta(seconds=1), timedelta(minutes=2), timedelta(hours=1), -MS]))
    def pass_time(self, delta: timedelta) -> None:
        self.clock.advance(delta)

    # -- reading

    @step(
        2,
        node=nodes,
        selection=selections,
        order=st.sampled_from(["created_desc", "created_asc", "id_asc", "ended_desc", "scheduled_asc"]),
        limit=st.integers(1, 5),
    )
    def read(self, node: str, selection: Selection, order: Order, limit: int) -> None:
        def pages(store: JobStore) -> list[list[UUID]]:
            seen, cursor = [], None
            while True:
                page = store.find(selection, order=order, limit=limit, cursor=cursor)
                seen.append(ids(page.jobs))
                cursor = page.cursor
                if cursor is None:
                    return seen

        found = self.both(node, pages)
        assert self.both(node, lambda store: store.count(selection)) == sum(map(len, found))
        self.both(node, lambda store: _counted(store.health(window=timedelta(minutes=5))))

    @invariant()
    def same(self) -> None:
        jobs = self.all_jobs()
        tested = self.handles[0]
        assert sorted(tested.get_many(self.jobs), key=lambda job: job.id) == sorted(
            jobs, key=lambda job: job.id
        )
        counted = Counter(job.status for job in jobs)
        running: dict[str, list[tuple[UUID, int]]] = {node: [] for node in NODES}
        for job in jobs:
            if job.status is Status.RUNNING:
                running[str(job.picked_by)].append((job.id, job.claim_seq))
        holders = {job.business_key: job.id for job in jobs if job.status in HOLDS_BUSINESS_KEY}
        for store in (self.oracle, tested):
            assert store.counts() == {status: counted[status] for status in Status}
            for node, held in running.items():
                assert sorted(store.held(node)) == sorted(held)
            for key in ("k", "l"):
                found = store.find_by_key(business=key)
                assert (found and found.id) == holders.get(key)
        for key in ("k", "l"):
            assert tested.find_by_key(idempotency=key) == self.oracle.find_by_key(idempotency=key)

    @invariant()
    def history(self) -> None:
        for job_id in self.jobs[-8:]:
            told = list(self.oracle.history(job_id))
            assert list(self.handles[0].history(job_id)) == told
            job = self.oracle.get(job_id)
            if job is not None:
                ended = job.claim_seq - (job.status is Status.RUNNING)
                assert [entry.claim_seq for entry in told] == list(range(1, ended + 1))

    def teardown(self) -> None:
        self.oracle.close()


def _told(new: NewJob, granted: set[UUID]) -> NewJob:
    return new if new.id in granted else replace(new, claim_for=None)


def _listed(claimed: Claimed) -> Claimed:
    return replace(claimed, claims=list(claimed.claims))


def _counted(health: Any) -> Any:
    nonzero = {name: _nonzero(getattr(health, name)) for name in ("pending_by_priority", "pending_by_type")}
    return replace(health, **nonzero)


def _nonzero(counts: Any) -> dict[Any, int]:
    return {key: count for key, count in counts.items() if count}


LENGTHS = (8, 20, 40)
"""Short sequences first: what they find is short without minutes of shrinking it."""


@contract("MODEL-01", needs=("clock",))
@pytest.mark.timeout(400)  # of a very slow store
def test_any_sequence_of_calls(under_test: UnderTest) -> None:
    """Whatever several nodes ask, the store answers as the rules and the memory store say, step by step."""
    examples = under_test.paced(least=60, most=200, unit=200)
    for steps in LENGTHS:
        run_state_machine_as_test(
            cast("type[Stores]", partial(Stores, under_test)),  # it calls it, once for each example
            settings=settings(
                max_examples=examples if steps == LENGTHS[-1] else examples // 2,
                stateful_step_count=steps,
                phases=[phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)],
                deadline=None,
                suppress_health_check=[
                    HealthCheck.too_slow,
                    HealthCheck.data_too_large,
                    HealthCheck.filter_too_much,
                ],
                print_blob=True,
            ),
        )
