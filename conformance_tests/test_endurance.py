"""Hours in minutes, if asked for: a mixed load with nodes that die, and the books balanced at the end."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from conformance_tests.contract import contract
from conformance_tests.driver import MINUTE, at_once, new_job, request, returned
from conformance_tests.processes import Elsewhere, work_until_killed
from conformance_tests.under_test import UnderTest, not_offered
from ratchet.domain.lifecycle import HOLDS_BUSINESS_KEY, Status, Trigger
from ratchet.domain.settlement import Change, RunCallback, Settlement
from ratchet.errors import DuplicateBusinessKey, StoreTransientError
from ratchet.spi.store import JobStore, RecoverRequest, Selection, Settled

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
WORKERS = 4
BACKLOG = 200
KEYS = [*[None] * 6, *(f"k{number}" for number in range(12))]


@dataclass
class Load:
    """What all parts of the load share."""

    until: float
    made: list[UUID] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    acknowledged: dict[UUID, Trigger] = field(default_factory=dict)
    finished: threading.Event = field(default_factory=threading.Event)

    def goes_on(self) -> bool:
        """True until the time is over or one part has failed."""
        return time.monotonic() < self.until and not self.finished.is_set()


def submit(load: Load, store: JobStore, dice: random.Random) -> None:
    """Keep a backlog of jobs, some with keys."""
    while load.goes_on():
        if store.counts()[Status.PENDING] > BACKLOG:
            load.finished.wait(0.01)
            continue
        new = [new_job(at=LONG_AGO, business_key=dice.choice(KEYS), max_retries=99) for _ in range(5)]
        with suppress(DuplicateBusinessKey):
            load.made += [answer.id for answer in store.insert(new) if answer.created]


def work(load: Load, store: JobStore, dice: random.Random, name: str) -> None:
    """Claim, and end claims in every way; now and then die with all that is held."""
    lives = 0
    ends = [Trigger.SUCCEED] * 6 + [Trigger.RETRY, Trigger.RELEASE, Trigger.DEFER, Trigger.FAIL]
    while load.goes_on():
        me = f"{name}-{lives}"
        claims = store.claim(request(me, 4)).claims
        if claims and dice.random() < 0.05:
            load.gone.add(me)
            lives += 1
            continue
        sent = [
            Settlement(
                Change(dice.choice(ends), claim.job_id, claim.claim_seq, result="1", error="e"),
                (RunCallback("on_success", "m:f", "1"),) if dice.random() < 0.2 else (),
            )
            for claim in claims
        ]
        for each, answer in zip(sent, store.settle_many(sent), strict=True):
            if isinstance(answer, Settled) and each.change.trigger is Trigger.SUCCEED:
                load.acknowledged[each.change.job_id] = each.change.trigger


def sweep(load: Load, store: JobStore) -> None:
    """Recover what the dead held, and take over their callbacks."""
    while load.goes_on():
        asked = RecoverRequest(
            grace=MINUTE, crash_budget=999, known_gone=frozenset(load.gone), only_known_gone=True
        )
        store.recover(asked)
        for call in store.take_callbacks("sweeper", grace=timedelta(), limit=50):
            store.callback_done(call.job_id, call.claim_seq, call.name)
        load.finished.wait(0.02)


def meddle(load: Load, store: JobStore, dice: random.Random) -> None:
    """Cancel, pause, resume and requeue as operators do."""
    while load.goes_on():
        if not load.made:
            continue
        job_id = dice.choice(load.made)
        trigger = dice.choice(
            [Trigger.PAUSE, Trigger.RESUME, Trigger.RESUME, Trigger.REQUEUE, Trigger.CANCEL]
        )
        with suppress(DuplicateBusinessKey):
            if trigger is Trigger.CANCEL:
                store.settle(Settlement(Change(trigger, job_id)))
            else:
                store.apply(Change(trigger, job_id))
        load.finished.wait(0.005)


def kill_processes(load: Load, under_test: UnderTest) -> None:
    """Nodes in processes of their own, each killed in the middle of its work."""
    opener, lives = under_test.harness.open_process(), 0
    while load.goes_on():
        me = f"process-{lives}"
        lives += 1
        victim = Elsewhere(opener, work_until_killed, me)
        try:
            victim.wait_until_ready()
            victim.go()
            load.finished.wait(1.0)
            victim.kill()
        finally:
            victim.close()
        load.gone.add(me)


@contract("SOAK-01", needs=("soak",))
@pytest.mark.timeout(0)  # as long as was asked for
def test_endurance(request: pytest.FixtureRequest, under_test: UnderTest) -> None:
    """After a long mixed load with nodes that die no job is lost, doubled or miscounted."""
    seconds = float(request.config.getoption("--ratchet-soak") or 0)
    if not seconds:
        not_offered("--ratchet-soak SECONDS was not given")
    store = under_test.open()
    store.counts()
    load = Load(time.monotonic() + seconds)

    def part(call: Callable[..., None], *arguments: object) -> Callable[[], None]:
        handle = under_test.open()

        def run() -> None:
            try:
                while load.goes_on():
                    with suppress(StoreTransientError):
                        call(load, handle, *arguments)
            except BaseException:
                load.finished.set()
                raise

        return run

    parts = [part(work, random.Random(number), f"n{number}") for number in range(WORKERS)]
    parts += [part(submit, random.Random(7)), part(meddle, random.Random(8)), part(sweep)]
    if under_test.harness.offers("open_process") and under_test.flavour == "sync":
        parts.append(lambda: kill_processes(load, under_test))
    returned(at_once(*parts, patience=seconds + 120))
    balance(store, load)


def balance(store: JobStore, load: Load) -> None:
    """The invariants, whatever happened."""
    statuses: Counter[Status] = Counter()
    holders: Counter[str] = Counter()
    for job_id in load.made:
        job = store.get(job_id)
        assert job is not None
        statuses[job.status] += 1
        if job.business_key is not None and job.status in HOLDS_BUSINESS_KEY:
            holders[job.business_key] += 1
        history = store.history(job_id)
        running = job.status is Status.RUNNING
        assert [entry.claim_seq for entry in history] == list(range(1, job.claim_seq + (not running)))
        assert job.version >= job.claim_seq + len(history)
    assert sum(statuses.values()) == sum(store.counts().values()) == store.count(Selection())
    assert {status: number for status, number in store.counts().items() if number} == statuses
    assert set(holders.values()) <= {1}
    for job in store.get_many(list(load.acknowledged)):
        assert job.status is Status.SUCCEEDED
