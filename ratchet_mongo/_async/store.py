"""The MongoDB store: the store protocol, each method handed to the module of its concern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from ratchet.domain.job import CallbackKind, Job, NewJob
from ratchet.domain.lifecycle import Execution, Status, Trigger
from ratchet.domain.settlement import Change, Settlement
from ratchet.errors import UsageError
from ratchet.spi.clock import Clock
from ratchet.spi.doctor import Finding
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
from ratchet_mongo._async import (
    bulk,
    checking,
    claiming,
    joining,
    keys,
    reading,
    recovering,
    settling,
    submission,
)
from ratchet_mongo._async.database import MongoDatabase, database_name
from ratchet_mongo._async.flavour import Client, Extras, check_client
from ratchet_mongo.moves import check, check_size

_MOST: Final = 1000


class AsyncMongoJobStore(Extras):
    """A `ratchet.spi.async_store.AsyncJobStore` in one MongoDB database, for any number of processes.

    Works alike on a standalone server, a replica set, a sharded cluster and Atlas, from server 6.0 on; no
    step needs a transaction. Connects at its first use.

    Args:
        database: where the jobs are; `from_url` and `from_client` make one.
    """

    def __init__(self, database: MongoDatabase) -> None:
        self.database = database
        self._running = claiming.Running()
        self._unsure = settling.Unsure()

    @classmethod
    def from_url(
        cls, url: str, *, database: str | None = None, clock: Clock | None = None, prefix: str = "ratchet_"
    ) -> AsyncMongoJobStore:
        """A store with a client of its own.

        Args:
            url: ``mongodb://`` or ``mongodb+srv://``, as the driver takes it.
            database: its name; None: that of the URL's path, else ``ratchet``.
            clock: replaces store time.
            prefix: of the names of its collections.
        """
        # By hand: the driver's parser would look up an srv name, and nothing is opened here.
        named = (
            database if database is not None else url.partition("://")[2].partition("/")[2].partition("?")[0]
        )
        return cls(MongoDatabase(database_name(named or None), url=url, clock=clock, prefix=prefix))

    @classmethod
    def from_client(
        cls, client: Client, database: str, *, clock: Clock | None = None, prefix: str = "ratchet_"
    ) -> AsyncMongoJobStore:
        """A store on a client that the application has; it is never closed by the store.

        Its read and write concerns, read preference and codec options are not used: see
        `ratchet_mongo._async.database.OPTIONS`.

        Args:
            client: connected to the deployment.
            database: the name of the database.
            clock: replaces store time.
            prefix: of the names of its collections.

        Raises:
            ConfigurationError: the client is of another flavour, or the database is no name.
        """
        check_client(client)
        return cls(MongoDatabase(database_name(database), client=client, clock=clock, prefix=prefix))

    async def checks(self, *, quick: bool = False) -> Sequence[Finding]:
        """What can be found out about the database; see `ratchet.spi.doctor.CheckedStore`."""
        return await checking.checks(self.database, quick=quick)

    async def now(self) -> datetime:
        """Store time, UTC, whole milliseconds."""
        return await self.database.now()

    async def close(self) -> None:
        """Let go of a client of its own; later calls raise `StoreClosed`."""
        await self.database.close()

    # -- submission and reading by key

    async def insert(self, jobs: Sequence[NewJob], *, unit: object | None = None) -> Sequence[Inserted]:
        """Insert all of `jobs` or none; `unit`: a session of the driver in an open transaction."""
        submission.check(jobs)
        if unit is not None:
            return await joining.insert(self.database, jobs, unit)
        return await submission.insert(self.database, jobs, self._running)

    async def get(self, job_id: UUID) -> Job | None:
        """The job as it is now."""
        found = await reading.get_many(self.database, [job_id])
        return found[0] if found else None

    async def get_many(self, job_ids: Sequence[UUID]) -> Sequence[Job]:
        """The known ones among `job_ids`, once each."""
        return await reading.get_many(self.database, job_ids)

    async def find_by_key(
        self, *, idempotency: str | None = None, business: str | None = None
    ) -> Inserted | None:
        """Who holds a key."""
        if (idempotency is None) == (business is None):
            raise UsageError("find_by_key takes exactly one of idempotency and business")
        if business is not None:
            held = await keys.business_holder(self.database, business)
            return None if held is None else Inserted(held.holder, created=False, status=held.status)
        found = await keys.original(self.database, str(idempotency))
        if not isinstance(found, keys.Original):
            return None
        return Inserted(found.id, created=False, status=found.status)

    async def delete(self, job_ids: Sequence[UUID]) -> int:
        """Delete settled jobs with their history and pending callbacks."""
        return await submission.delete(self.database, job_ids)

    async def counts(self) -> Mapping[Status, int]:
        """How many jobs are in each state."""
        return await reading.counts(self.database)

    # -- claiming

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Give up to `limit` due jobs to the caller's incarnation."""
        return await claiming.claim(self.database, request, self._running)

    async def held(self, incarnation: str) -> Sequence[tuple[UUID, int]]:
        """(job id, `claim_seq`) of every RUNNING job picked by `incarnation`."""
        return await recovering.held(self.database, incarnation)

    # -- changes

    async def apply(self, change: Change) -> Applied | Refused:
        """Apply a row that ends no claim and has no consequences."""
        check_size(change)
        return await settling.apply(self.database, change, self._unsure)

    async def settle(self, settlement: Settlement) -> SettleAnswer:
        """Apply a row that ends a claim or has consequences, together with its effects."""
        check(settlement.change, settlement.effects, self.capabilities)
        return await settling.settle(self.database, settlement, self._running, self._unsure)

    async def settle_many(self, settlements: Sequence[Settlement]) -> Sequence[SettleAnswer]:
        """`settle` for each, in order; a conflict is a refusal of that entry.

        There is no commit of several documents: a call that raised may have written some. Repeated on the
        same handle it answers for those exactly as it would have the first time.
        """
        for settlement in settlements:
            check(settlement.change, settlement.effects, self.capabilities)
        return await settling.settle_many(self.database, settlements, self._running, self._unsure)

    async def apply_where(
        self, selection: Selection, trigger: Trigger, *, limit: int, on_conflict: OnConflict = "abort"
    ) -> Selected:
        """Requeue up to `limit` jobs of `selection` in one unit."""
        if trigger is not Trigger.REQUEUE:
            raise UsageError(f"apply_where requeues; it does not {trigger}")
        if not 1 <= limit <= _MOST:
            raise UsageError(f"a limit lies between 1 and {_MOST}, not {limit}")
        if on_conflict not in ("abort", "skip"):
            raise UsageError(f"on_conflict is 'abort' or 'skip', not {on_conflict!r}")
        return await bulk.requeue_where(self.database, selection, limit, on_conflict)

    # -- recovery, callbacks, nodes

    async def recover(self, request: RecoverRequest) -> Recovery:
        """Take back claims of dead incarnations, and complete what dead processes left unfinished."""
        return await recovering.recover(self.database, request)

    async def take_callbacks(
        self, incarnation: str, *, grace: timedelta, limit: int
    ) -> Sequence[PendingCallback]:
        """Move pending callbacks of dead incarnations to this one."""
        return await recovering.take_callbacks(self.database, incarnation, grace, limit)

    async def callback_done(self, job_id: UUID, claim_seq: int, name: CallbackKind) -> None:
        """Forget a pending callback."""
        await recovering.callback_done(self.database, job_id, claim_seq, name)

    async def heartbeat(self, info: NodeInfo) -> datetime:
        """Register the incarnation or renew it."""
        return await recovering.heartbeat(self.database, info)

    async def nodes(self) -> Sequence[Node]:
        """Every registered incarnation, latest heartbeat first."""
        return await recovering.nodes(self.database)

    async def forget_node(self, incarnation: str) -> bool:
        """Deregister."""
        return await recovering.forget_node(self.database, incarnation)

    # -- history and queries

    async def history(self, job_id: UUID) -> Sequence[Execution]:
        """The ended claims of a job, by `claim_seq`."""
        return await reading.history(self.database, job_id)

    async def find(
        self,
        selection: Selection,
        *,
        order: Order = "created_desc",
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """One page of the jobs of `selection`."""
        return await reading.find(self.database, selection, order, limit, cursor)

    async def count(self, selection: Selection) -> int:
        """How many jobs match."""
        return await reading.count(self.database, selection)

    async def health(self, *, window: timedelta) -> Health:
        """The state of the queue over the last `window`."""
        return await reading.health(self.database, window)
