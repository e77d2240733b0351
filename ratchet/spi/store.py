"""The store: where jobs live, and the only place where anything about them is decided for good.

A store author implements these methods; `ratchet.domain.lifecycle` supplies their semantics
(`refusal`, `assign`, `execution`). General rules, for every method:

* It may be called from any thread, and from several at once.
* All instants are UTC in whole milliseconds and made by the store (`now()`), except those a user gave.
* *Atomic* means: no reader or claimer sees a part of it before the decision is durable.
* It raises `StoreTransientError` when the same call may work later, `StorePermanentError` when an
  operator must act first, and never lets a driver's own exception out. A call that raised may or may
  not have been applied; every write here is safe to repeat because of its fence, key or id.
* What it does not know (an id, a node) is an answer, not an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, Protocol, TypeAlias, runtime_checkable
from uuid import UUID

from ratchet.domain.insertion import due_time, first_claim
from ratchet.domain.job import CallbackKind, Claim, Job, JobType, NewJob
from ratchet.domain.lifecycle import Execution, Status, Trigger
from ratchet.domain.priority import BOOST_INTERVAL, Priority
from ratchet.domain.settlement import Change, Settlement
from ratchet.domain.value import ValueObject

# -- submission -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Inserted(ValueObject):
    """What became of one entry of `insert`.

    Attributes:
        id: the job: the new one, or the one that already holds the idempotency key.
        created: False if the key was taken.
        status: the job's status; None if it has been purged.
        scheduled_time: when it is due, of a created one.
        claim: what the node that asked for it (`NewJob.claim_for`) holds at once; None: nothing.
    """

    id: UUID
    created: bool
    status: Status | None
    scheduled_time: datetime | None = None
    claim: Claim | None = None

    @classmethod
    def of(cls, new: NewJob, now: datetime) -> Inserted:
        """The answer for a job that is inserted now, with its claim where it has one (`first_claim`)."""
        due = due_time(new, now)
        claim = first_claim(new, due, now)
        return cls(
            new.id,
            created=True,
            status=new.start if claim is None else Status.RUNNING,
            scheduled_time=due,
            claim=claim,
        )

    def again(self) -> Inserted:
        """The answer for another entry with the same idempotency key."""
        return Inserted(self.id, created=False, status=self.status)


# -- claiming -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class ClaimRequest(ValueObject):
    """What a node can take now.

    Attributes:
        incarnation: who asks; stamped as `picked_by`.
        limits: executor -> how many at most; an executor that is absent or 0 gets none.
        limit: how many in all.
        boost_interval: of ageing; 0 switches it off.
        require_tags: only jobs that carry all of these.
        exclude_tags: no job that carries any of these.
        types: only these job types; empty: all that can be claimed.
        leave_out: (target, payload format) pairs that this node cannot run at present.
    """

    incarnation: str
    limits: Mapping[str, int]
    limit: int = 50
    boost_interval: timedelta = BOOST_INTERVAL
    require_tags: frozenset[str] = frozenset()
    exclude_tags: frozenset[str] = frozenset()
    types: frozenset[JobType] = frozenset()
    leave_out: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Claimed(ValueObject):
    """The answer to a `ClaimRequest`.

    Attributes:
        claims: what the node now holds, in order of effective priority.
        more: True if further due jobs match the same filters and executors (limit above 0).
        next_due: when the next job that matches them becomes due; None if none is known. A blocked step
            (UNSCHEDULED) is never it. It may be too early, never too late.
        now: store time of the claim.
    """

    claims: Sequence[Claim]
    more: bool
    next_due: datetime | None
    now: datetime


# -- changes --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Applied(ValueObject):
    """The change was written; `job` is the job as it is now."""

    job: Job


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Refused(ValueObject):
    """Nothing was written.

    Attributes:
        job_id: which job.
        current: the job as it is; None if there is none with this id.
        reason: one sentence for a log.
    """

    job_id: UUID
    current: Job | None
    reason: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Settled(ValueObject):
    """The settlement was written, with all its effects, whatever the target state.

    Attributes:
        job_id: which job.
        status: where it is now.
        version: its new version.
        now: store time of the commit.
        scheduled_time: its due time now.
        queue_wait: of a settled job: from due to start; else zero.
    """

    job_id: UUID
    status: Status
    version: int
    now: datetime
    scheduled_time: datetime
    queue_wait: timedelta


SettleAnswer: TypeAlias = Settled | Refused
OnConflict: TypeAlias = Literal["abort", "skip"]


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Selection(ValueObject):
    """Which jobs; every given field narrows, an empty one does not.

    Attributes:
        ids: these ids.
        statuses: in one of these states.
        types: of one of these types.
        priorities: of one of these priorities.
        tags: carrying all of these.
        business_key: exactly this key (also of a settled job that held it).
        principal: exactly this principal.
        target: text that the target contains, literally.
        error: text that the last error contains, literally.
        created_from, created_before: created in [from, before).
        ended_from, ended_before: settled in [from, before).
    """

    ids: frozenset[UUID] = frozenset()
    statuses: frozenset[Status] = frozenset()
    types: frozenset[JobType] = frozenset()
    priorities: frozenset[Priority] = frozenset()
    tags: frozenset[str] = frozenset()
    business_key: str | None = None
    principal: str | None = None
    target: str | None = None
    error: str | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None
    ended_from: datetime | None = None
    ended_before: datetime | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Selected(ValueObject):
    """What a bulk change did.

    Attributes:
        ids: the jobs that were changed, ascending.
        skipped: job -> why it was left as it is (only with ``on_conflict="skip"``).
        now: store time of the commit.
    """

    ids: Sequence[UUID]
    skipped: Mapping[UUID, str]
    now: datetime


# -- recovery -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class RecoverRequest(ValueObject):
    """Which claims of dead nodes to take back.

    Attributes:
        grace: an incarnation is dead once its last heartbeat (if it never sent one: the claim's
            `picked_at`) is older than this.
        crash_budget: a job whose `crash_count` has reached it is not recovered but reported.
        known_gone: incarnations that are dead whatever their heartbeat says.
        never: incarnations that are not to be touched: the caller's own.
        only_known_gone: look at no other incarnations (the pass at start).
        limit: at most this many jobs in one call.
    """

    grace: timedelta
    crash_budget: int
    known_gone: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    only_known_gone: bool = False
    limit: int = 100


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Orphan(ValueObject):
    """A claim whose owner is dead.

    Attributes:
        job_id: the job.
        claim_seq: the claim that was seen dead.
        crash_count: of a recovered job: the new count.
        incarnation: the dead owner.
    """

    job_id: UUID
    claim_seq: int
    crash_count: int
    incarnation: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Recovery(ValueObject):
    """What a recovery pass found.

    Attributes:
        recovered: put back to PENDING, crash charged.
        exhausted: left RUNNING; the caller settles each as crash-fail, fenced by its `claim_seq`.
        more: True if the limit was reached.
        errors: row by row, what could not be recovered this time; the next pass tries again.
    """

    recovered: Sequence[Orphan]
    exhausted: Sequence[Orphan]
    more: bool
    errors: Sequence[str] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PendingCallback(ValueObject):
    """A recorded callback that has not been reported done.

    Attributes:
        job_id, claim_seq, name: its key.
        target: the callable.
        argument: codec text of the result (on_success) or sanitized error text (on_failure).
    """

    job_id: UUID
    claim_seq: int
    name: CallbackKind
    target: str
    argument: str


# -- nodes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class NodeInfo(ValueObject):
    """What a node says of itself with every heartbeat.

    Attributes:
        incarnation: unique per start.
        name: stable across starts.
        host, boot_id, pid_namespace, pid, pid_started: how another process on the same host can tell
            whether this one is gone; `pid_started` in clock ticks since boot.
        state: ``running``, ``stopping`` or ``unhealthy``.
        detail: slots, stuck bodies and the like, for people.
    """

    incarnation: str
    name: str
    host: str = ""
    boot_id: str = ""
    pid_namespace: str = ""
    pid: int = 0
    pid_started: int = 0
    state: str = "running"
    detail: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Node(ValueObject):
    """A registered incarnation.

    Attributes:
        info: what it said last.
        started_at: its first heartbeat.
        last_heartbeat: its latest.
        age: store time - `last_heartbeat`, at the time of the answer.
    """

    info: NodeInfo
    started_at: datetime
    last_heartbeat: datetime
    age: timedelta


# -- reading --------------------------------------------------------------------------------------

Order: TypeAlias = Literal["created_desc", "created_asc", "id_asc", "ended_desc", "scheduled_asc"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Page(ValueObject):
    """One page of jobs.

    Attributes:
        jobs: in the order asked for; ties by id ascending.
        cursor: hand it back for the next page; None at the end.
    """

    jobs: Sequence[Job]
    cursor: str | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Health(ValueObject):
    """The state of the queue.

    Attributes:
        now: store time.
        by_status: status -> how many.
        pending_by_priority, pending_by_type: of unsettled PENDING jobs.
        oldest_due_age: how long the oldest due job has been waiting; None if none is due.
        throughput: jobs settled as SUCCEEDED or FAILED per second over `window`.
        success_rate: share of SUCCEEDED among them; None if there were none.
        p50, p95, p99: of the durations of those jobs; None if there were none.
        window: over which the last five were taken.
    """

    now: datetime
    by_status: Mapping[Status, int]
    pending_by_priority: Mapping[Priority, int]
    pending_by_type: Mapping[JobType, int]
    oldest_due_age: timedelta | None
    throughput: float
    success_rate: float | None
    p50: timedelta | None
    p95: timedelta | None
    p99: timedelta | None
    window: timedelta


# -- the protocol ---------------------------------------------------------------------------------


@runtime_checkable
class JobStore(Protocol):
    """What every store offers. Optional groups are in `ratchet.spi.capabilities`.

    Contracts: ASYNC-01 ... ASYNC-03, CELL-01 ... CELL-11, CRASH-01 ... CRASH-04, MODEL-01, PROCESS-01
    ... PROCESS-04, RACE-01 ... RACE-21, SOAK-01.
    """

    @property
    def capabilities(self) -> frozenset[str]:
        """Names of the optional groups that this store declares (`ratchet.spi.capabilities.Capability`).

        Contracts: STORE-01.
        """
        ...

    def now(self) -> datetime:
        """Store time, UTC, whole milliseconds: the clock that judges what is due and who is dead.

        Contracts: INSERT-06, STORE-04.
        """
        ...

    def close(self) -> None:
        """Let go of connections. Idempotent; every later call raises `StoreClosed`.

        Contracts: STORE-03.
        """
        ...

    # -- submission and reading by key

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        """Insert all of `jobs` or none; called by submission.

        Each becomes PENDING (or WAITING, by `start`), `version` 0, `claim_seq` 0, `created_at` and
        `updated_at` = now, `scheduled_time` = `at`, or now + `delay`, or now. Ids already stored are an error
        (`UsageError`), never an overwrite.

        An entry whose idempotency key is taken is not inserted; it answers the original with
        `created=False` (`status=None` if that job was purged). A repeat of a key within `jobs` answers the
        first. Keys are taken for ever, by `delete` too.

        An entry with `claim_for` comes from a node with a free slot. The store may ignore that. Or it inserts
        the job as claimed, if it is due and would be claimed (`ratchet.domain.insertion.first_claim`), and
        answers `status` RUNNING and the claim: the same as `insert` and `claim` in one instant, for one commit
        instead of two. Never with `unit`: nobody may run what its caller might still roll back.

        Args:
            jobs: in order; empty: nothing happens.
            unit: the caller's open transaction, where the store declares ``transactional-enqueue``; of what
                kind is the store's to say. All that the submission writes is written in it, keys included:
                nobody sees or claims a part before the commit, and a rollback leaves nothing. If the call
                raises nothing of it may be committed. A key that an open transaction has taken is taken by
                nobody yet: others wait, or are told to come again. The caller of `insert` sends no wake-up;
                a store with ``wake-ups`` wakes every node after the commit, the inserting one included.

        Returns:
            One answer per entry, in order.

        Raises:
            DuplicateBusinessKey: an entry that would be inserted names a key that is held, by a stored
                job or by an earlier entry; nothing is inserted. Names all such keys.
            DuplicateIdempotencyKey: with `unit`, where the database aborts a transaction because another one
                has used the key since it began; in a new one the key is answered.
            UsageError: `unit` is no open transaction that this store can join.
            CapabilityMissing: `unit` was given and the store does not declare it.

        Contracts: INSERT-01 ... INSERT-20, UNIT-01 ... UNIT-11.
        """
        ...

    def get(self, job_id: UUID) -> Job | None:
        """The job as it is now (never a cached or lagging read); None if unknown.

        Contracts: GET-02, STORE-02.
        """
        ...

    def get_many(self, job_ids: Sequence[UUID]) -> Sequence[Job]:
        """The known ones among `job_ids`, once each, any order; any number of ids.

        Contracts: GET-01.
        """
        ...

    def find_by_key(self, *, idempotency: str | None = None, business: str | None = None) -> Inserted | None:
        """Who holds a key: give exactly one of the two (`UsageError` otherwise).

        `idempotency` finds the original for ever (`status=None` once purged); `business` only a job that
        holds the key now, that is, an unsettled one. `created` is False in the answer.

        Contracts: KEY-01 ... KEY-06.
        """
        ...

    def delete(self, job_ids: Sequence[UUID]) -> int:
        """Delete settled jobs with their history and pending callbacks; used by purges and tests.

        Unsettled and unknown ids are left out. Idempotency keys stay taken. Returns how many were deleted.

        Contracts: DELETE-01 ... DELETE-04.
        """
        ...

    def counts(self) -> Mapping[Status, int]:
        """How many jobs are in each state; every state is a key.

        Contracts: COUNT-01.
        """
        ...

    # -- claiming

    def claim(self, request: ClaimRequest) -> Claimed:
        """Give up to `limit` due jobs to the caller's incarnation; called by the poller.

        Eligible: PENDING, `scheduled_time` <= now (inclusive), not a batch parent, matching the filters.
        Row ``claim`` of the table is applied to each. Order: effective priority descending, due time
        ascending, id ascending, over all executors together, at most `limits[executor]` of each; the
        claims are in that order. Two callers never receive the same claim; a caller may be told less than
        there is when it races another, and then `more` is True.

        Its cost may grow with `limit`, never with the number of settled or not-yet-due jobs.

        Contracts: CLAIM-01 ... CLAIM-35.
        """
        ...

    def held(self, incarnation: str) -> Sequence[tuple[UUID, int]]:
        """(job id, `claim_seq`) of every RUNNING job picked by `incarnation`; asked once a second.

        Contracts: HELD-01.
        """
        ...

    # -- changes

    def apply(self, change: Change) -> Applied | Refused:
        """Apply a row that ends no claim and has no consequences: pause, resume, unblock, requeue, signal.

        Guarded by source states, and by `claim_seq` and `version` where the change carries them. A
        requeue takes the business key again.

        Raises:
            UsageError: the trigger is not one of these.
            DuplicateBusinessKey: a requeue finds its key held; nothing is changed.

        Contracts: APPLY-01 ... APPLY-09.
        """
        ...

    def settle(self, settlement: Settlement) -> SettleAnswer:
        """Apply a row that ends a claim or has consequences, together with its effects, as one unit.

        The triggers: succeed, retry, fail, defer, release, crash-fail, cancel, cancel-running,
        signal-timeout, replace, batch-settle. In the same unit: the history row of the ended claim, the
        business key freed where the table says so, every effect resolved. `Submit` under replace inserts
        the new job (its business key may be the one just freed); `RunCallback` records a pending callback
        owned by the job's `picked_by`. A refusal writes nothing at all.

        Raises:
            UsageError: the trigger is not one of these.
            CapabilityMissing: an effect belongs to a capability that is not declared; before any write.
            DuplicateBusinessKey: a submitted job needs a key that another job holds; nothing is changed.
            DuplicateIdempotencyKey: a submitted job's idempotency key is taken; nothing is changed.

        Contracts: FENCE-01 ... FENCE-06, SETTLE-01 ... SETTLE-20.
        """
        ...

    def settle_many(self, settlements: Sequence[Settlement]) -> Sequence[SettleAnswer]:
        """`settle` for each, in order, an answer per entry; stores group them into one commit.

        Called by the settler with outcomes of claims. One refused entry changes nothing for the others; a
        conflict of a job that an entry submits is a refusal of that entry.

        A call that raised may or may not have been applied: as a whole, or, by a store that cannot commit
        several jobs at once, entry by entry. Repeated, it leads where it would have led undisturbed. Each
        entry is then settled, or refused while the row of its claim in the history shows that it was.

        Contracts: MANY-01 ... MANY-03.
        """
        ...

    def apply_where(
        self, selection: Selection, trigger: Trigger, *, limit: int, on_conflict: OnConflict = "abort"
    ) -> Selected:
        """Requeue up to `limit` jobs of `selection` in one unit; always narrowed to the row's source states.

        Oldest (lowest id) first. With ``abort``, all or nothing: one business key in use raises and
        nothing is changed. With ``skip``, such jobs are left and named, with the reason; the limit counts
        changed jobs, so that conflicts at the head never fill a page.

        Raises:
            UsageError: the trigger is not requeue (or signal, with its capability); limit outside 1..1000.
            DuplicateBusinessKey: under ``abort``; names every conflict.

        Contracts: BULK-01 ... BULK-10.
        """
        ...

    # -- recovery, callbacks, nodes

    def recover(self, request: RecoverRequest) -> Recovery:
        """Take back claims of dead incarnations; called by every node's sweep, concurrently.

        Row by row: each orphan below the budget gets row ``recover`` of the table, guarded by the
        `claim_seq` and the owner that were seen, and its history row. One bad row is reported in `errors`
        and does not stop the others. Two sweeps never recover one claim twice. A job at its budget is
        reported as exhausted, every time, until somebody settles it; it counts
        towards the limit.

        Contracts: RECOVER-01 ... RECOVER-13.
        """
        ...

    def take_callbacks(self, incarnation: str, *, grace: timedelta, limit: int) -> Sequence[PendingCallback]:
        """Move pending callbacks of dead (or unregistered) incarnations to this one, and answer them.

        Dead as in `recover`; an owner without a registered heartbeat is dead.

        Contracts: CALLBACK-01, CALLBACK-02, CALLBACK-04 ... CALLBACK-06.
        """
        ...

    def callback_done(self, job_id: UUID, claim_seq: int, name: CallbackKind) -> None:
        """Forget a pending callback; unknown ones are fine.

        Contracts: CALLBACK-03.
        """
        ...

    def heartbeat(self, info: NodeInfo) -> datetime:
        """Register the incarnation or renew it with store time; answers that time.

        Contracts: NODE-01.
        """
        ...

    def nodes(self) -> Sequence[Node]:
        """Every registered incarnation, latest heartbeat first.

        Contracts: NODE-01, NODE-02.
        """
        ...

    def forget_node(self, incarnation: str) -> bool:
        """Deregister; True if it was registered. Its claims, if any, become orphans after the grace.

        Contracts: NODE-02.
        """
        ...

    # -- history and queries

    def history(self, job_id: UUID) -> Sequence[Execution]:
        """The ended claims of a job, by `claim_seq` ascending; empty if unknown.

        Contracts: HISTORY-01, HISTORY-02.
        """
        ...

    def find(
        self,
        selection: Selection,
        *,
        order: Order = "created_desc",
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """One page of the jobs of `selection`; stable across pages while rows do not change.

        Raises:
            UsageError: a limit outside 1..1000, or a cursor that is not from this store and order.

        Contracts: FIND-01 ... FIND-15.
        """
        ...

    def count(self, selection: Selection) -> int:
        """How many jobs match.

        Contracts: FIND-01, FIND-15.
        """
        ...

    def health(self, *, window: timedelta) -> Health:
        """The state of the queue over the last `window`.

        Contracts: HEALTH-01 ... HEALTH-04.
        """
        ...
