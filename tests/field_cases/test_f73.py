"""F73: retry the whole dead-letter queue, page by page, interrupted, and while the world goes on.

The story, played once per store: 100,000 failed jobs (scaled); an operator retries them by filter in pages and
is killed at about half (a process, SIGKILL; in memory: the store is cut off in the middle of a call); a second
operator goes on, while a third one retries ten of them by hand, while nodes drain the queue, and while normal
jobs arrive.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from ratchet import Job, Scheduler, Selection, Status, current_job
from ratchet.domain.ids import new_id
from ratchet.domain.job import NewJob
from ratchet.domain.lifecycle import Trigger
from ratchet.domain.settlement import Change, Settlement
from ratchet.errors import DuplicateBusinessKey, StoreTransientError, UsageError
from ratchet.spi.store import ClaimRequest, JobStore
from tests.field_cases.kit import SCALE, append, wait_until
from tests.field_cases.stage import Stage, bearable, each_store, stage_on, together

pytestmark = [pytest.mark.field_case("F73"), pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
TEN: Final = 10
LOOPING: Final = 50
"""Jobs that fail again in their new life."""
POLL: Final = 0.5
OUTSIDE: Final = ("older", "other error", "later")
"""Groups that the filter does not name."""
MEGABYTE: Final = 1024 * 1024
ERROR: Final = "builtins.ConnectionError: the dependency was down"


# -- jobs


def work(folder: str, number: int = 0) -> None:
    """Succeeds now; one line per execution."""
    append(Path(folder) / "executed", f"{current_job().id} {time.time()}\n")


def still_down(folder: str) -> None:
    """Fails again."""
    append(Path(folder) / "executed", f"{current_job().id} {time.time()}\n")
    raise ConnectionError("the dependency was down")


def executed(folder: Path) -> dict[UUID, list[float]]:
    """Job -> when its bodies began."""
    found: dict[UUID, list[float]] = {}
    path = folder / "executed"
    for line in path.read_text().splitlines() if path.exists() else ():
        job_id, at = line.split()
        found.setdefault(UUID(job_id), []).append(float(at))
    return found


def fail_all(store: JobStore, error: str = ERROR) -> int:
    """Claim everything that is due and fail it for good."""
    count, more = 0, True
    while more:
        claimed = store.claim(ClaimRequest(incarnation="past", limits={"threads": 1000}, limit=1000))
        changes = [
            Change(Trigger.FAIL, c.job_id, c.claim_seq, attempts=1, error=error) for c in claimed.claims
        ]
        store.settle_many([Settlement(change) for change in changes])
        count, more = count + len(changes), claimed.more
    return count


# -- the operator


@dataclass(frozen=True)
class Page:
    """What one call answered."""

    ids: list[UUID]
    skipped: dict[UUID, str]
    rss: int


def retry_in_pages(scheduler: Scheduler, selection: Selection, size: int, report: Path) -> None:
    """The operator's loop: until a page brings nothing. A line in the report per page."""
    while True:
        page = scheduler.retry_all(selection, limit=size, on_conflict="skip")
        line = {
            "ids": [str(each) for each in page.ids],
            "skipped": {str(key): why for key, why in page.skipped.items()},
            "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        append(report, json.dumps(line) + "\n")
        if not page.ids:
            return


def pages_of(report: Path) -> list[Page]:
    written = report.read_text().splitlines(keepends=True) if report.exists() else []
    lines = [json.loads(line) for line in written if line.endswith("\n")]  # one may be under way, or torn
    return [
        Page(
            [UUID(each) for each in line["ids"]],
            {UUID(key): why for key, why in line["skipped"].items()},
            line["rss"],
        )
        for line in lines
    ]


def operate() -> None:
    """The operator as a process."""
    url, report, size, start, stop = sys.argv[1:6]
    selection = Selection(
        error="ConnectionError",
        ended_from=datetime.fromisoformat(start),
        ended_before=datetime.fromisoformat(stop),
    )
    scheduler = Scheduler.from_url(url, allow=["tests.field_cases.test_f73"])
    retry_in_pages(scheduler, selection, int(size), Path(report))


# -- the story


@dataclass
class Story:
    """The acts, and everything that the clauses look at."""

    stage: Stage
    scheduler: Scheduler
    size: int
    selection: Selection = field(default_factory=Selection)
    groups: dict[str, list[UUID]] = field(default_factory=dict)
    first: list[Page] = field(default_factory=list)
    second: list[Page] = field(default_factory=list)
    by_hand: dict[UUID, bool] = field(default_factory=dict)
    half: list[Job] = field(default_factory=list)
    normal_before: list[UUID] = field(default_factory=list)
    normal_during: dict[UUID, float] = field(default_factory=dict)
    started: float = 0.0
    jobs: dict[UUID, Job] = field(default_factory=dict)
    runs: dict[UUID, list[float]] = field(default_factory=dict)

    @property
    def in_memory(self) -> bool:
        return self.stage.url.startswith("memory")

    def of(self, *names: str) -> list[Job]:
        """The jobs of these groups as they ended."""
        return [self.jobs[each] for name in names for each in self.groups[name]]

    @property
    def pages(self) -> list[Page]:
        return [*self.first, *self.second]

    def requeues(self, job: Job) -> int:
        """How often it was requeued: of its changes, all but two per claim, or one of a claim that runs."""
        return job.version - 2 * job.claim_seq

    # -- the acts

    def prepare(self, count: int) -> None:
        """The dead letters, and others that the filter must leave alone."""
        store, node, folder = self.scheduler.store, self.scheduler, str(self.stage.folder)
        self.groups["older"] = self._enqueue(work, 20)
        fail_all(store)
        start = self._after_the_last()
        handles = node.enqueue_many(
            work, [(folder, n) for n in range(TEN)], business_key=lambda folder, number: f"key-{number}"
        )
        self.groups["conflicting"] = [handle.id for handle in handles]
        self.groups["by hand"] = self._enqueue(work, TEN)
        self.groups["looping"] = self._enqueue(still_down, LOOPING)
        targets = [NewJob(id=new_id(), target=f"{__name__}:gone", payload="[[],{}]") for _ in range(TEN)]
        payloads = [NewJob(id=new_id(), target=f"{__name__}:work", payload="{not json") for _ in range(TEN)]
        store.insert([*targets, *payloads])
        self.groups["unresolvable"] = [job.id for job in targets]
        self.groups["undecodable"] = [job.id for job in payloads]
        self.groups["plain"] = self._enqueue(work, count - 4 * TEN - LOOPING)
        assert fail_all(store) == count
        stop = self._after_the_last()
        self.groups["other error"] = self._enqueue(work, 20)
        fail_all(store, "builtins.ValueError: no")
        self.groups["later"] = self._enqueue(work, 20)
        fail_all(store)
        for number in range(TEN):  # in use now
            node.schedule(timedelta(days=1), work, folder).with_business_key(f"key-{number}").submit()
        self.selection = Selection(error="ConnectionError", ended_from=start, ended_before=stop)
        self.normal_before = self._enqueue(work, 20)

    def _enqueue(self, function: Any, count: int) -> list[UUID]:
        return [h.id for h in self.scheduler.enqueue_many(function, [(str(self.stage.folder),)] * count)]

    def _after_the_last(self) -> datetime:
        """An instant after everything that has failed so far."""
        failed = Selection(statuses=frozenset({Status.FAILED}))
        latest = self.scheduler.query.find(failed, order="ended_desc", limit=1).jobs[0].ended_at
        assert latest is not None
        wait_until(lambda: self.scheduler.store.now() > latest, 5, "the clock moves on")
        return self.scheduler.store.now()

    def kill_at_half(self, count: int) -> None:
        """The first operator is killed in the middle of a page, when about half is done."""
        report, whole = self.stage.folder / "first", count // 2 // self.size
        if self.in_memory:
            lost = self.stage.faulty()
            lost.fail("apply_where", when="after", matches=lambda _: lost.calls["apply_where"] > whole)
            with pytest.raises(StoreTransientError):
                retry_in_pages(self.stage.node(lost.store, start=False), self.selection, self.size, report)
        else:
            process = self._operator(report)
            try:
                wait_until(lambda: len(pages_of(report)) >= whole, 120, "half of the pages")
            finally:
                process.kill()
                process.wait()
        self.first = pages_of(report)
        self.half = list(self.scheduler.store.get_many(self.groups["plain"]))

    def _operator(self, report: Path) -> subprocess.Popen[bytes]:
        assert self.selection.ended_from is not None
        assert self.selection.ended_before is not None
        dates = self.selection.ended_from.isoformat(), self.selection.ended_before.isoformat()
        code = "from tests.field_cases.test_f73 import operate; operate()"
        command = [sys.executable, "-c", code, self.stage.url, str(report), str(self.size), *dates]
        return subprocess.Popen(command, cwd=ROOT)

    def go_on(self) -> None:
        """The second operator does the rest; a third retries ten by hand; two nodes drain; normal jobs arrive."""
        report, done = self.stage.folder / "second", threading.Event()
        nodes = [self.stage.node(threads=4, poll=POLL, start=False) for _ in range(2)]
        client = self.stage.node(start=False)

        def second() -> None:
            try:
                if self.in_memory:
                    retry_in_pages(self.stage.node(start=False), self.selection, self.size, report)
                else:
                    assert self._operator(report).wait(300) == 0
            finally:
                done.set()

        def third() -> None:
            self.by_hand = {each: client.retry(each) for each in self.groups["by hand"]}

        def normal() -> None:
            while not done.wait(0.05) or len(self.normal_during) < 20:
                handle = client.enqueue(work, str(self.stage.folder)).submit()
                self.normal_during[handle.id] = time.time()

        def drain() -> None:
            self.started = time.time()
            for node in nodes:
                node.start()

        together(second, third, normal, drain)
        self.second = pages_of(report)
        keys, unresolvable = TEN, TEN

        def is_drained() -> bool:
            counts = self.scheduler.query.counts()
            return counts[Status.RUNNING] == 0 and counts[Status.PENDING] <= keys + unresolvable

        wait_until(is_drained, 300, "the queue drains")
        for node in nodes:
            node.stop(10)
        self.jobs = {job.id: job for job in self.scheduler.query.iterate()}
        self.runs = executed(self.stage.folder)


@pytest.fixture(scope="module", params=each_store())
def story(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, scaled: Callable[..., int]
) -> Iterator[Story]:
    """100,000 dead letters (scaled, as many as the store bears), pages of a twentieth of them, at most 1,000."""
    stage = stage_on(request.param, tmp_path_factory.mktemp("f73"), __name__)
    count = bearable(stage.url, scaled(100_000, least=2_000))
    story = Story(stage, stage.node(start=False), min(1000, count // 20))
    story.prepare(count)
    story.kill_at_half(count)
    story.go_on()
    yield story
    stage.close()


# -- the clauses


def test_f73_memory_grows_by_less_than_100_mb(story: Story) -> None:
    """From its first page to its last the operator grows by less than 100 MB."""
    for pages in (story.first, story.second):
        assert pages[-1].rss - pages[0].rss < 100 * MEGABYTE


def test_f73_each_call_is_bounded(story: Story) -> None:
    """No page is longer than was asked for, and none can be asked for beyond 1,000."""
    assert max(len(page.ids) for page in story.pages) == story.size
    for limit in (0, -1, 1001, 100_000):
        with pytest.raises(UsageError):
            story.scheduler.retry_all(story.selection, limit=limit)


@pytest.mark.mongodb_needs("speed")  # with so few pages the kill comes too late
def test_f73_the_interruption_left_whole_lives(story: Story) -> None:
    """After the kill at about half every job is either as it was or requeued once, with a fresh life."""
    states = {(job.status, job.version, job.attempts, job.last_error) for job in story.half}
    assert states == {(Status.FAILED, 2, 1, ERROR), (Status.PENDING, 3, 0, None)}
    requeued = sum(job.status is Status.PENDING for job in story.half)
    told = {each for page in story.first for each in page.ids} & {job.id for job in story.half}
    assert len(told) <= requeued <= len(told) + story.size
    assert len(story.half) * 0.3 < requeued < len(story.half) * 0.9


def test_f73_the_report_names_retried_and_skipped_with_reasons(story: Story) -> None:
    """Every job is reported retried once (but for the page whose reply the kill took), conflicts with their reason."""
    told = [each for page in story.pages for each in page.ids]
    assert len(told) == len(set(told))
    matching = {each for name, ids in story.groups.items() if name not in OUTSIDE for each in ids}
    assert set(told) <= matching - set(story.groups["conflicting"])
    untold = set(story.groups["plain"]) - set(told)
    assert len(untold) <= story.size
    for page in story.pages:
        assert set(page.skipped) <= set(story.groups["conflicting"])
    last = story.second[-1]
    assert last.ids == []
    assert sorted(last.skipped) == sorted(story.groups["conflicting"])
    for number, job_id in enumerate(story.groups["conflicting"]):
        holder = story.scheduler.store.find_by_key(business=f"key-{number}")
        assert holder is not None
        assert f"key-{number}" in last.skipped[job_id]
        assert str(holder.id) in last.skipped[job_id]


def test_f73_every_retriable_job_gets_exactly_one_new_life(story: Story) -> None:
    """Each is requeued once, attempt 0, and executed once when it succeeds; so are those retried by hand as well."""
    for job in story.of("plain", "by hand"):
        assert (job.status, job.attempts, job.crash_count) == (Status.SUCCEEDED, 0, 0)
        assert story.requeues(job) == 1
        assert len(story.runs[job.id]) == 1
    told = {each for page in story.pages for each in page.ids}
    for job_id, answer in story.by_hand.items():
        assert answer != (job_id in told)


def test_f73_the_conflicting_ones_stay_failed(story: Story) -> None:
    """The 10 whose business key is in use stay FAILED, untouched, and have not run."""
    for job in story.of("conflicting"):
        assert (job.status, job.version, job.last_error) == (Status.FAILED, 2, ERROR)
        assert job.id not in story.runs


def test_f73_what_the_filter_does_not_name_stays_failed(story: Story) -> None:
    """Failed before the dates, after them, or with another error class: untouched."""
    for job in story.of(*OUTSIDE):
        assert (job.status, job.version) == (Status.FAILED, 2)
        assert job.id not in story.runs


def test_f73_the_undecodable_ones_fail_again_once(story: Story) -> None:
    """Each of the 10 is requeued, fails at once for its payload, and is not retried in a loop."""
    for job in story.of("undecodable"):
        assert (job.status, job.attempts, story.requeues(job)) == (Status.FAILED, 0, 1)
        assert job.id not in story.runs
        assert job.last_error is not None


def test_f73_the_unresolvable_ones_wait_for_a_node_that_knows_them(story: Story) -> None:
    """Each of the 10 is requeued once, is not lost, not executed, and not tried in a tight loop."""
    for job in story.of("unresolvable"):
        assert (job.status, job.attempts) == (Status.PENDING, 0)
        assert job.version == 1 + 2 * job.claim_seq
        assert job.claim_seq <= 8
        assert job.id not in story.runs


def test_f73_newly_failing_jobs_are_not_retried_in_a_loop(story: Story) -> None:
    """Jobs that fail again during the run had one new life: requeued once, executed once, FAILED."""
    for job in story.of("looping"):
        assert (job.status, job.attempts, story.requeues(job)) == (Status.FAILED, 1, 1)
        assert len(story.runs[job.id]) == 1


def test_f73_normal_jobs_start_while_the_queue_drains(story: Story) -> None:
    """Normal jobs of equal priority start within 5 polls (at ten times that), due before the bulk or during it."""
    assert len(story.normal_during) >= 1
    for job_id in story.normal_before:
        (began,) = story.runs[job_id]
        assert began - story.started <= 5 * POLL * SCALE
    waits = [story.runs[job_id][0] - submitted for job_id, submitted in story.normal_during.items()]
    print(f"normal jobs during the drain waited {max(waits):.2f} s at most")
    assert max(waits) <= 5 * POLL * SCALE


def test_f73_no_normal_job_waits_behind_what_was_retried_after_it(story: Story) -> None:
    """Whatever is requeued after a normal job became due is claimed no sooner than it."""

    def claimed(job_id: UUID, claim_seq: int) -> datetime:
        picked_at = story.scheduler.store.history(job_id)[claim_seq - 1].picked_at
        assert picked_at is not None
        return picked_at

    normal = sorted(
        (story.jobs[job_id].scheduled_time, claimed(job_id, 1))
        for job_id in (*story.normal_before, *story.normal_during)
    )
    retried = sorted((job.scheduled_time, claimed(job.id, 2)) for job in story.of("plain"))
    soonest = list(accumulate((picked_at for _, picked_at in reversed(retried)), min))[::-1]
    place = 0
    for due, picked_at in normal:
        while place < len(retried) and retried[place][0] <= due:
            place += 1
        if place < len(retried):
            assert picked_at <= soonest[place]


# -- beside the story


def dead(stage: Stage, scheduler: Scheduler, count: int, **words: Any) -> list[UUID]:
    handles = scheduler.enqueue_many(work, [(str(stage.folder), n) for n in range(count)], **words)
    fail_all(scheduler.store)
    return [handle.id for handle in handles]


def test_f73_two_operators_at_once_retry_each_job_once(stage: Stage) -> None:
    """Two bulk retries with the same filter, on two nodes at once: no job twice, none left."""
    nodes = [stage.node(start=False) for _ in range(2)]
    jobs = dead(stage, nodes[0], bearable(stage.url, 1000))
    reports = [stage.folder / f"report-{place}" for place in range(2)]
    together(
        *[
            partial(retry_in_pages, node, Selection(), 50, report)
            for node, report in zip(nodes, reports, strict=True)
        ]
    )
    told = [each for report in reports for page in pages_of(report) for each in page.ids]
    assert sorted(told) == sorted(jobs)
    assert {job.version for job in nodes[0].query.iterate()} == {3}


def test_f73_conflicts_without_end_bar_nobody(stage: Stage) -> None:
    """1,200 older jobs of one key that is in use are left and named; the ten behind them are retried all the same.

    (More of them than a call may bring: where the store bears fewer jobs, the call may bring fewer.)
    """
    node = stage.node(start=False)
    limit = bearable(stage.url, 10_000) // 10
    older: list[UUID] = []
    while len(older) < limit * 1.2:  # each held the key in its time
        older += dead(stage, node, 1, business_key=lambda folder, number: "K")
    fine = dead(stage, node, 10)
    holder = node.schedule(timedelta(days=1), work, "").with_business_key("K").submit()
    page = node.retry_all(limit=limit, on_conflict="skip")
    assert sorted(page.ids) == sorted(fine)
    assert len(page.skipped) >= limit
    assert set(page.skipped) <= set(older)
    assert all(str(holder.id) in why for why in page.skipped.values())


def test_f73_abort_changes_nothing_and_names_the_conflicts(stage: Stage) -> None:
    """The default: one key in use, and nothing is changed; the error names every such key and its holder."""
    node = stage.node(start=False)
    jobs = dead(stage, node, 20, business_key=lambda folder, number: f"K{number}" if number < 3 else None)
    holders = {
        f"K{n}": node.schedule(timedelta(days=1), work, "").with_business_key(f"K{n}").submit().id
        for n in range(2)
    }
    with pytest.raises(DuplicateBusinessKey) as caught:
        node.retry_all()
    assert caught.value.conflicts == holders
    assert {job.version for job in node.store.get_many(jobs)} == {2}
    assert len(node.retry_all(on_conflict="skip").ids) == 18
