"""How the memory store keeps a job, and the lanes in which due ones are found in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from ratchet.domain.job import Claim, Job, JobType, NewJob
from ratchet.domain.lifecycle import UNSCHEDULED, Execution, Status, execution
from ratchet.domain.settlement import Change

_NOTHING: Final[Mapping[str, str]] = {}


class Before(NamedTuple):
    """What the history needs to know of a job before its claim ended (`ratchet.domain.lifecycle.Row`)."""

    status: Status
    version: int
    claim_seq: int
    attempts: int
    crash_count: int
    scheduled_time: datetime
    picked_at: datetime | None
    is_batch_parent: bool


Ended: TypeAlias = tuple[Before, Change, datetime, str | None]
"""An ended claim as it is kept: an `Execution` costs more to make than all the rest of settling."""


class Record:
    """A stored job: the immutable request and the fields that transitions write.

    Compared and hashed by identity, so that sets of records are cheap indexes.
    """

    __slots__ = (
        "attempts", "business_key", "claim_seq", "crash_count", "created_at", "duration", "ended_at",
        "history", "is_batch_parent", "key", "lane", "last_error", "metadata", "new", "params", "paused_from_status",
        "picked_at", "picked_by", "queue_wait", "result", "scheduled_time", "signal", "started_at", "status",
        "superseded_by", "updated_at", "version",
    )  # fmt: skip

    def __init__(self, new: NewJob, scheduled_time: datetime, now: datetime, lane: Lane | None) -> None:
        self.new = new
        self.key = new.id.int  # ordered as the id is, compared and hashed without Python code
        self.lane = lane
        self.business_key = new.business_key
        self.is_batch_parent = new.type is JobType.BATCH
        # The caller may go on changing its dicts.
        self.params = dict(new.params) if new.params else _NOTHING
        self.metadata = dict(new.metadata) if new.metadata else _NOTHING
        self.status = new.start
        self.scheduled_time = scheduled_time
        self.created_at = self.updated_at = now
        self.version = self.claim_seq = self.attempts = self.crash_count = 0
        self.picked_by: str | None = None
        self.picked_at: datetime | None = None
        self.started_at: datetime | None = None
        self.ended_at: datetime | None = None
        self.duration: timedelta | None = None
        self.queue_wait: timedelta | None = None
        self.last_error: str | None = None
        self.result: str | None = None
        self.paused_from_status: Status | None = None
        self.superseded_by: UUID | None = None
        self.signal: str | None = None
        self.history: list[Ended] | None = None

    def before(self) -> Before:
        """The job as it is, for the history."""
        return Before(
            self.status, self.version, self.claim_seq, self.attempts, self.crash_count,
            self.scheduled_time, self.picked_at, self.is_batch_parent,
        )  # fmt: skip

    def executions(self) -> list[Execution]:
        """The ended claims, oldest first."""
        made = [
            execution(before, change, now, job_id=self.new.id, node=node)
            for before, change, now, node in self.history or ()
        ]
        return [entry for entry in made if entry is not None]

    def job(self) -> Job:
        """The job as others see it."""
        new = self.new
        return Job(
            id=new.id,
            status=self.status,
            target=new.target,
            payload=new.payload,
            format=new.format,
            type=new.type,
            executor=new.executor,
            priority=new.priority,
            scheduled_time=self.scheduled_time,
            created_at=self.created_at,
            updated_at=self.updated_at,
            params=self.params,
            version=self.version,
            claim_seq=self.claim_seq,
            attempts=self.attempts,
            crash_count=self.crash_count,
            max_retries=new.max_retries,
            backoff=new.backoff,
            timeout=new.timeout,
            tags=new.tags,
            idempotency_key=new.idempotency_key,
            business_key=self.business_key,
            principal=new.principal,
            resource=new.resource,
            on_success=new.on_success,
            on_failure=new.on_failure,
            metadata=self.metadata,
            picked_by=self.picked_by,
            picked_at=self.picked_at,
            started_at=self.started_at,
            ended_at=self.ended_at,
            duration=self.duration,
            queue_wait=self.queue_wait,
            last_error=self.last_error,
            result=self.result,
            paused_from_status=self.paused_from_status,
            superseded_by=self.superseded_by,
            signal=self.signal,
        )

    def claim(self, now: datetime) -> Claim:
        """What the worker gets that has just claimed the job."""
        new = self.new
        return Claim(
            job_id=new.id,
            claim_seq=self.claim_seq,
            target=new.target,
            payload=new.payload,
            format=new.format,
            executor=new.executor,
            attempts=self.attempts,
            crash_count=self.crash_count,
            max_retries=new.max_retries,
            backoff=new.backoff,
            timeout=new.timeout,
            priority=new.priority,
            type=new.type,
            scheduled_time=self.scheduled_time,
            picked_at=now,
            params=self.params,
            tags=new.tags,
            business_key=self.business_key,
            principal=new.principal,
            resource=new.resource,
            on_success=new.on_success,
            on_failure=new.on_failure,
            metadata=self.metadata,
            signal=self.signal,
        )


Entry: TypeAlias = tuple[datetime, int, int, Record]
"""(due time, id, version, record): valid while the record still has that version."""
Wanted: TypeAlias = Callable[[Record], bool]

_LOOK_AHEAD: Final = 256
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


class Lane:
    """The PENDING jobs of one executor and priority, in order of (due time, id).

    Entries are never searched for: a job that leaves PENDING (or moves within it) gets a new version,
    and the old entry is dropped when it comes to the head, or when such entries outnumber the others.
    What is not due yet lies apart, so that a claim costs nothing for it.
    """

    __slots__ = ("_due", "_late", "_later", "_leaves", "_live", "_now", "_passed")

    def __init__(self) -> None:
        self._due: deque[Entry] = deque()  # ascending: work mostly arrives in the order in which it is due
        self._late: list[Entry] = []  # heap: due, but arrived out of order
        self._later: list[Entry] = []  # heap: not due when it was last looked at
        self._passed: list[Entry] = []  # ascending: due, and not wanted by the claim under way
        self._live = 0
        self._leaves = 0  # since it was last asked whether they are worth a clean-up
        self._now = _EARLIEST  # the latest time at which something was found due

    def push(self, record: Record, now: datetime) -> None:
        """Put in a job that is PENDING as it is now; a blocked step is never due and stays out."""
        due = record.scheduled_time
        self._live += 1
        if due > now:
            if due != UNSCHEDULED:
                heappush(self._later, (due, record.key, record.version, record))
        else:
            if now > self._now:
                self._now = now
            self._push_due((due, record.key, record.version, record))

    def _push_due(self, entry: Entry) -> None:
        due = self._due
        if not due or due[-1] <= entry:
            due.append(entry)
        else:
            heappush(self._late, entry)

    def left(self) -> None:
        """A job of this lane is no longer as it was pushed."""
        self._live -= 1
        self._leaves += 1
        if self._leaves > 64:
            self._leaves = 0
            if len(self._due) + len(self._late) + len(self._later) > 2 * self._live + 64:
                self._compact()

    def _compact(self) -> None:
        self._due = deque(entry for entry in self._due if entry[3].version == entry[2])
        self._late = [entry for entry in self._late if entry[3].version == entry[2]]
        self._later = [entry for entry in self._later if entry[3].version == entry[2]]
        heapify(self._late)
        heapify(self._later)

    def wake(self, now: datetime) -> None:
        """Move over what has become due; and back, if the clock has stepped back."""
        if now < self._now:
            self._step_back(now)
        self._now = now
        later = self._later
        while later and later[0][0] <= now:
            entry = heappop(later)
            if entry[3].version == entry[2]:
                self._push_due(entry)

    def _step_back(self, now: datetime) -> None:
        entries = [*self._due, *self._late]
        self._due.clear()
        self._late.clear()
        for entry in sorted(entries):
            if entry[0] > now:
                heappush(self._later, entry)
            else:
                self._due.append(entry)

    def head(self, wanted: Wanted | None) -> Entry | None:
        """The first due job that is wanted; what is passed over stays aside until `restore`."""
        due, late = self._due, self._late
        while True:
            while due and due[0][3].version != due[0][2]:
                due.popleft()
            while late and late[0][3].version != late[0][2]:
                heappop(late)
            if due and not (late and late[0] < due[0]):
                entry = due[0]
            elif late:
                entry = late[0]
            else:
                return None
            if wanted is None or wanted(entry[3]):
                return entry
            self.take(entry)
            self._passed.append(entry)

    def take(self, entry: Entry) -> None:
        """Remove the entry that `head` answered."""
        if self._due and self._due[0] is entry:
            self._due.popleft()
        else:
            heappop(self._late)

    def restore(self) -> None:
        """Put back what was passed over: all of it comes before everything that was not looked at."""
        if self._passed:
            self._due.extendleft(reversed(self._passed))
            self._passed.clear()

    def next_due(self, wanted: Wanted | None) -> datetime | None:
        """When the next wanted job becomes due, after `wake` and `restore`.

        Looks at a bounded number of jobs: behind them the answer is the due time of the next, wanted or
        not, so that a caller may wake too early but never too late.
        """
        later, aside = self._later, self._passed
        found: datetime | None = None
        looks = _LOOK_AHEAD
        while later:
            entry = later[0]
            if entry[3].version != entry[2]:
                heappop(later)
                continue
            if wanted is None or looks == 0 or wanted(entry[3]):
                found = entry[0]
                break
            looks -= 1
            aside.append(heappop(later))
        for entry in aside:
            heappush(later, entry)
        aside.clear()
        return found
