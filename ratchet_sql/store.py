"""The SQLite store: the store protocol, each method handed to the module of its concern.

How many statements each takes is said, and asserted by a test, where it is done: `ratchet_sql.submission`,
`ratchet_sql.claiming`, `ratchet_sql.settling`, `ratchet_sql.recovering`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from ratchet.domain.job import CallbackKind, Job, NewJob
from ratchet.domain.lifecycle import Execution, Status, Trigger
from ratchet.domain.settlement import Change, Settlement
from ratchet.errors import CapabilityMissing, StoreClosed, UsageError
from ratchet.spi.capabilities import Capability
from ratchet.spi.store import (
    Applied,
    Claimed,
    ClaimRequest,
    Health,
    Inserted,
    Node,
    NodeInfo,
    OnConflict,
    Order,
    Page,
    PendingCallback,
    RecoverRequest,
    Recovery,
    Refused,
    Selected,
    Selection,
    SettleAnswer,
)
from ratchet_sql import claiming, migrations, recovering, settling, submission
from ratchet_sql import rendered as sql
from ratchet_sql.rows import dumps, execution_from, from_ms, job_from

if TYPE_CHECKING:
    from ratchet.spi.coordinator import ClusterCoordinator
    from ratchet.spi.doctor import Finding
    from ratchet_sql.connection import Database

_CAPABILITIES = frozenset({str(Capability.WAKE_UPS)})
_MOST = 1000


class SqliteStore:
    """A `ratchet.spi.store.JobStore` in one SQLite file, for any number of processes of one host.

    Store time is the wall clock of the process: all processes that share the file share the host.

    Args:
        database: the file.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._backlog = False

    @property
    def capabilities(self) -> frozenset[str]:
        """Names of the optional groups that this store declares."""
        return _CAPABILITIES

    def now(self) -> datetime:
        """Store time, UTC, whole milliseconds."""
        if self.database.is_closed:
            raise StoreClosed("the store was closed")
        return from_ms(self.database.now_ms())

    def close(self) -> None:
        """Close every connection; later calls raise `StoreClosed`."""
        self.database.close()

    def coordinator(self) -> ClusterCoordinator:
        """A new coordinator that watches the file for commits of other processes."""
        from ratchet_sql.coordinator import SqliteCoordinator

        return SqliteCoordinator(self.database)

    def checks(self, *, quick: bool = False) -> Sequence[Finding]:
        """What can be found out about the file; see `ratchet.spi.doctor.CheckedStore`."""
        from ratchet_sql import checking

        return checking.checks(self.database, quick=quick)

    # -- schema

    def schema_status(self) -> tuple[int | None, int]:
        """(version found, version this code wants); None: no schema yet. Creates nothing."""
        return self.database.file.schema_status(self.database.retrying), migrations.WANTED

    def schema_upgrade(self) -> Sequence[int]:
        """Apply what is missing; answers the versions applied."""
        return self.database.file.schema_upgrade(self.database.now_ms, self.database.retrying)

    # -- submission and reading by key

    def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        """Insert all of `jobs` or none."""
        if unit is not None:
            raise CapabilityMissing(Capability.TRANSACTIONAL_ENQUEUE)
        answers = submission.insert(self.database, jobs)
        if any(
            job.delay is None and job.at is None and answer.claim is None
            for job, answer in zip(jobs, answers, strict=True)
        ):
            self._backlog = True  # the next claim need not look first: a fifth of its way to the body
        return answers

    def get(self, job_id: UUID) -> Job | None:
        """The job as it is now."""
        found = self.database.read(sql.GET_ONE, {"id": str(job_id)})
        return None if found is None else job_from(json.loads(found))

    def get_many(self, job_ids: Sequence[UUID]) -> Sequence[Job]:
        """The known ones among `job_ids`, once each."""
        ids = sorted({str(job_id) for job_id in job_ids})
        if not ids:
            return []
        return [job_from(row) for row in json.loads(self.database.read(sql.GET_MANY, {"ids": dumps(ids)}))]

    def find_by_key(self, *, idempotency: str | None = None, business: str | None = None) -> Inserted | None:
        """Who holds a key."""
        return submission.find_by_key(self.database, idempotency, business)

    def delete(self, job_ids: Sequence[UUID]) -> int:
        """Delete settled jobs with their history and pending callbacks."""
        return submission.delete(self.database, job_ids)

    def counts(self) -> Mapping[Status, int]:
        """How many jobs are in each state."""
        return submission.counts_of(self.database.read(sql.COUNTS))

    # -- claiming

    def claim(self, request: ClaimRequest) -> Claimed:
        """Give up to `limit` due jobs to the caller's incarnation."""
        claimed = claiming.claim(self.database, request, backlog=self._backlog)
        self._backlog = claimed.more
        return claimed

    def held(self, incarnation: str) -> Sequence[tuple[UUID, int]]:
        """(job id, `claim_seq`) of every RUNNING job picked by `incarnation`."""
        return recovering.held(self.database, incarnation)

    # -- changes

    def apply(self, change: Change) -> Applied | Refused:
        """Apply a row that ends no claim and has no consequences."""
        return settling.apply(self.database, change)

    def settle(self, settlement: Settlement) -> SettleAnswer:
        """Apply a row that ends a claim or has consequences, together with its effects."""
        settling.check([settlement], _CAPABILITIES)
        return settling.settle_many(self.database, [settlement], raise_conflicts=True)[0]

    def settle_many(self, settlements: Sequence[Settlement]) -> Sequence[SettleAnswer]:
        """`settle` for each, in order, all in one commit; a conflict is a refusal of that entry."""
        settling.check(settlements, _CAPABILITIES)
        return settling.settle_many(self.database, settlements)

    def apply_where(
        self, selection: Selection, trigger: Trigger, *, limit: int, on_conflict: OnConflict = "abort"
    ) -> Selected:
        """Requeue up to `limit` jobs of `selection` in one unit."""
        if trigger is not Trigger.REQUEUE:
            raise UsageError(f"apply_where requeues; it does not {trigger}")
        if not 1 <= limit <= _MOST:
            raise UsageError(f"a limit lies between 1 and {_MOST}, not {limit}")
        if on_conflict not in ("abort", "skip"):
            raise UsageError(f"on_conflict is 'abort' or 'skip', not {on_conflict!r}")
        from ratchet_sql import bulk

        return bulk.requeue_where(self.database, selection, limit, on_conflict)

    # -- recovery, callbacks, nodes

    def recover(self, request: RecoverRequest) -> Recovery:
        """Take back claims of dead incarnations."""
        return recovering.recover(self.database, request)

    def take_callbacks(self, incarnation: str, *, grace: timedelta, limit: int) -> Sequence[PendingCallback]:
        """Move pending callbacks of dead incarnations to this one."""
        return recovering.take_callbacks(self.database, incarnation, grace, limit)

    def callback_done(self, job_id: UUID, claim_seq: int, name: CallbackKind) -> None:
        """Forget a pending callback."""
        recovering.callback_done(self.database, job_id, claim_seq, name)

    def heartbeat(self, info: NodeInfo) -> datetime:
        """Register the incarnation or renew it."""
        return recovering.heartbeat(self.database, info)

    def nodes(self) -> Sequence[Node]:
        """Every registered incarnation, latest heartbeat first."""
        return recovering.nodes(self.database)

    def forget_node(self, incarnation: str) -> bool:
        """Deregister."""
        return recovering.forget_node(self.database, incarnation)

    # -- history and queries

    def history(self, job_id: UUID) -> Sequence[Execution]:
        """The ended claims of a job, by `claim_seq`."""
        return [
            execution_from(row) for row in json.loads(self.database.read(sql.HISTORY, {"id": str(job_id)}))
        ]

    def find(
        self,
        selection: Selection,
        *,
        order: Order = "created_desc",
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """One page of the jobs of `selection`."""
        from ratchet_sql import queries

        return queries.find(self.database, selection, order, limit, cursor)

    def count(self, selection: Selection) -> int:
        """How many jobs match."""
        from ratchet_sql import queries

        return queries.count(self.database, selection)

    def health(self, *, window: timedelta) -> Health:
        """The state of the queue over the last `window`."""
        from ratchet_sql import health

        return health.health(self.database, window)
