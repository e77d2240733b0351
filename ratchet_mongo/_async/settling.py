"""Changes: lifecycle rows applied to stored jobs, each as one guarded update of its document.

Round trips: `settle_many` of claims of this handle takes one for all of them; one more if the guards of
others must be read, one more if some were refused, one more for each that spills history. `apply` takes two.
A settlement that submits a job takes six: what it submits is inserted hidden, then the settlement decides.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID, uuid4

from pymongo import ReturnDocument
from pymongo.errors import BulkWriteError

from ratchet.domain.job import NewJob
from ratchet.domain.lifecycle import ROWS, SETTLED, BusinessKey, Trigger, refusal
from ratchet.domain.settlement import Change, RunCallback, Settlement, Submit
from ratchet.errors import (
    ConflictError,
    DuplicateBusinessKey,
    DuplicateIdempotencyKey,
    StoreError,
    StoreTransientError,
    UsageError,
)
from ratchet.spi.store import Applied, Refused, SettleAnswer, Settled
from ratchet_mongo._async import keys, pending
from ratchet_mongo._async.claiming import Running
from ratchet_mongo._async.database import MongoDatabase
from ratchet_mongo._async.flavour import find, sleep
from ratchet_mongo.documents import JOB_VIEW, Document, hidden, job_from, new_document
from ratchet_mongo.indexes import BY_ID
from ratchet_mongo.moves import APPLIES, GUARD_VIEW, Guard, Move, frees, move
from ratchet_mongo.statements import statements
from ratchet_mongo.translate import DUPLICATE_KEY, codes

_TRIES: Final = 60
_UNSURE: Final = 10_000
_ZERO: Final = timedelta()
NO_SUCH_JOB: Final = "there is no job with this id"

Attempt: TypeAlias = tuple[UUID, int | None, Trigger]


class Unsure:
    """Tokens of writes that may or may not have been applied; who repeats one learns which it was."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[Attempt, UUID] = OrderedDict()

    def token(self, database: MongoDatabase, change: Change) -> UUID:
        """The token of an earlier try of this change, or a new one."""
        return self._tokens.get(_attempt(change)) or database.token()

    def known(self, change: Change) -> bool:
        """True if an earlier try of this change had no answer."""
        return _attempt(change) in self._tokens

    def keep(self, change: Change, token: UUID) -> None:
        """There was no answer."""
        self._tokens[_attempt(change)] = token
        while len(self._tokens) > _UNSURE:
            self._tokens.popitem(last=False)

    def drop(self, change: Change) -> None:
        """There is one."""
        if self._tokens:
            self._tokens.pop(_attempt(change), None)


def _attempt(change: Change) -> Attempt:
    return change.job_id, change.claim_seq, change.trigger


# -- settle ---------------------------------------------------------------------------------------


async def settle_many(
    database: MongoDatabase, settlements: Sequence[Settlement], running: Running, unsure: Unsure
) -> list[SettleAnswer]:
    """See `ratchet.spi.store.JobStore.settle_many`."""
    answers: list[SettleAnswer] = []
    for wave in _waves(settlements):
        answers += await _settle_wave(database, wave, running, unsure, raise_conflicts=False)
    return answers


async def settle(
    database: MongoDatabase, settlement: Settlement, running: Running, unsure: Unsure
) -> SettleAnswer:
    """See `ratchet.spi.store.JobStore.settle`."""
    return (await _settle_wave(database, [settlement], running, unsure, raise_conflicts=True))[0]


def _submitted(settlement: Settlement) -> list[NewJob]:
    return [effect.job for effect in settlement.effects if isinstance(effect, Submit)]


def _callbacks(settlement: Settlement) -> list[RunCallback]:
    return [effect for effect in settlement.effects if isinstance(effect, RunCallback)]


def _waves(settlements: Sequence[Settlement]) -> list[list[Settlement]]:
    """Consecutive parts that are written together: no job twice, and what needs a key stands alone.

    So each sees what became of the last. All else is one command to the server, which a client that
    dies has sent as a whole or not at all.
    """
    waves: list[list[Settlement]] = []
    seen: set[UUID] = set()
    alone = True
    for settlement in settlements:
        keyed = settlement.change.trigger is Trigger.REPLACE or any(
            new.business_key is not None or new.idempotency_key is not None for new in _submitted(settlement)
        )
        job_id = settlement.change.job_id
        if alone or keyed or job_id in seen:
            waves.append([])
            seen = set()
        waves[-1].append(settlement)
        seen.add(job_id)
        alone = keyed
    return waves


class _Wave:
    """Settlements of different jobs on their way to one update."""

    def __init__(self, database: MongoDatabase, wave: Sequence[Settlement], unsure: Unsure) -> None:
        self.left = {settlement.change.job_id: settlement for settlement in wave}
        self.tokens = {job_id: unsure.token(database, one.change) for job_id, one in self.left.items()}
        self.guards: dict[UUID, Guard] = {}
        self.outboxes: dict[UUID, Document] = {}
        self.answers: dict[UUID, SettleAnswer] = {}

    def answer(self, job_id: UUID, answer: SettleAnswer) -> None:
        """This one is done."""
        self.answers[job_id] = answer
        del self.left[job_id]


async def _settle_wave(
    database: MongoDatabase,
    settlements: Sequence[Settlement],
    running: Running,
    unsure: Unsure,
    *,
    raise_conflicts: bool,
) -> list[SettleAnswer]:
    wave = _Wave(database, settlements, unsure)
    for job_id, settlement in wave.left.items():
        guard = running.of(job_id, settlement.change.claim_seq)
        if guard is not None and not unsure.known(settlement.change) and not _submitted(settlement):
            wave.guards[job_id] = guard
    try:
        for tried in range(_TRIES):
            await _try(database, wave, running, raise_conflicts=raise_conflicts)
            if not wave.left:
                break
            wave.guards.clear()
            if tried > 1:
                await sleep(0.001 * tried)
        else:
            raise StoreTransientError(f"{len(wave.left)} jobs changed faster than they could be settled")
    except StoreError:
        for job_id, settlement in wave.left.items():
            unsure.keep(settlement.change, wave.tokens[job_id])
        raise
    for settlement in settlements:
        unsure.drop(settlement.change)
        running.forget(settlement.change.job_id)
    return await _with_jobs(database, [wave.answers[one.change.job_id] for one in settlements])


async def _try(database: MongoDatabase, wave: _Wave, running: Running, *, raise_conflicts: bool) -> None:
    """Decide and write all that is left, as it is now."""
    now = await database.now()
    missing = [job_id for job_id in wave.left if job_id not in wave.guards]
    read = await read_guards(database, missing) if missing else {}
    for job_id in missing:
        change, guard = wave.left[job_id].change, read.get(job_id)
        if guard is None:
            wave.answer(job_id, Refused(job_id, None, NO_SUCH_JOB))
        elif guard.write == wave.tokens[job_id]:
            wave.answer(job_id, _as_written(guard))
        elif (reason := refusal(guard, change, now)) is not None:
            wave.answer(job_id, Refused(job_id, None, reason))
        else:
            wave.guards[job_id] = guard
    moves: list[Move] = []
    for job_id, guard in wave.guards.items():
        settlement, token = wave.left[job_id], wave.tokens[job_id]
        if refusal(guard, settlement.change, now) is not None:
            continue  # by what was remembered of its claim; what is stored decides
        if _submitted(settlement):
            hold: Document = {"kind": pending.SETTLEMENT, "id": token, "job": job_id, "at": now}
            try:
                wave.outboxes[job_id] = await _prepare(database, settlement, guard, hold)
            except ConflictError as conflict:
                if raise_conflicts:
                    raise
                wave.answer(job_id, Refused(job_id, None, str(conflict)))
                continue
            database.step("submission prepared")
        told = _callbacks(settlement)
        outbox = wave.outboxes.get(job_id)
        moves.append(move(guard, settlement.change, now, token, callbacks=told, outbox=outbox))
    written = {one.guard.id for one in await write(database, moves)}
    for one in moves:
        job_id = one.guard.id
        outbox = wave.outboxes.pop(job_id, None)
        if job_id in written:
            if outbox is not None:
                await pending.complete_outbox(database, job_id, outbox)
            wave.answer(job_id, one.settled())
        elif outbox is not None:
            await _call_off(database, wave.tokens[job_id], outbox)
        running.forget(job_id)


def _as_written(guard: Guard) -> Settled:
    """The answer that was lost, from the document that carries its token."""
    waited = guard.queue_wait if guard.status in SETTLED else None
    return Settled(
        guard.id,
        guard.status,
        guard.version,
        guard.updated_at,
        guard.scheduled_time,
        _ZERO if waited is None else waited,
    )


async def _with_jobs(database: MongoDatabase, answers: list[SettleAnswer]) -> list[SettleAnswer]:
    """Refusals with the job as it is."""
    refused = [a.job_id for a in answers if isinstance(a, Refused) and a.reason != NO_SUCH_JOB]
    if not refused:
        return answers
    docs = await database.run(lambda: find(database.jobs, {"_id": {"$in": refused}}, JOB_VIEW))
    jobs = {doc["_id"]: job_from(doc) for doc in docs if "status" in doc}
    return [Refused(a.job_id, jobs.get(a.job_id), a.reason) if isinstance(a, Refused) else a for a in answers]


async def write(database: MongoDatabase, moves: Sequence[Move]) -> list[Move]:
    """Write decided changes, each if its job is still as it was seen; those that were written.

    One round trip if all of them were.
    """
    if not moves:
        return []
    for one in moves:
        if one.spill:
            await _spill(database, one.spill)
    if len(moves) == 1:
        only = moves[0]
        result = await database.run(lambda: database.jobs.update_one(only.where, only.update))
    else:
        updates = statements(moves)
        result = await database.run(lambda: database.jobs.bulk_write(updates, ordered=False))
    database.step("updated")
    if result.matched_count == len(moves):
        return list(moves)
    # Some were not as they had been seen; or they were written by a first try whose answer was lost.
    ids = [one.guard.id for one in moves]
    docs = await database.run(lambda: find(database.jobs, {"_id": {"$in": ids}}, {"write": 1}))
    tokens = {doc["_id"]: doc.get("write") for doc in docs}
    return [one for one in moves if tokens.get(one.guard.id) == one.token]


async def _spill(database: MongoDatabase, entries: list[Document]) -> None:
    """Store ended claims outside their job; they never change, so that storing them twice is nothing."""
    try:
        await database.run(lambda: database.executions.insert_many(entries, ordered=False))
    except StoreError as error:
        cause = error.__cause__
        if not isinstance(cause, BulkWriteError) or codes(cause) != {DUPLICATE_KEY}:
            raise
    database.step("history spilled")


# -- settlements that submit ----------------------------------------------------------------------


async def _prepare(database: MongoDatabase, settlement: Settlement, guard: Guard, hold: Document) -> Document:
    """Reserve what the submitted jobs need and insert them hidden; the outbox of the settlement.

    Raises:
        DuplicateBusinessKey, DuplicateIdempotencyKey, UsageError: one of them cannot be inserted; nothing
            of all this is left.
    """
    row = ROWS[settlement.change.trigger]
    moves_key = guard.business_key if row.business_key is BusinessKey.MOVED else None
    freed = guard.business_key if frees(settlement.change.trigger) else None
    outbox: Document = {"id": hold["id"], "at": hold["at"], "submits": []}
    taken: list[keys.Taken] = []
    reserved: list[keys.Reserved] = []
    named: set[str] = set()
    waiting = keys.Waiting()
    try:
        # First, so that of both kinds of conflict every store tells the same one.
        for new in _submitted(settlement):
            if new.idempotency_key is not None:
                answer = await keys.reserve(database, new.idempotency_key, new.id, hold)
                if isinstance(answer, keys.Original) or answer.id != new.id:
                    raise DuplicateIdempotencyKey(
                        f"the idempotency key {new.idempotency_key!r} belongs to job {answer.id} for ever"
                    )
                reserved.append(answer)
        database.step("keys reserved")
        for new in _submitted(settlement):
            key = new.business_key if new.business_key is not None else moves_key
            entry: Document = {"job": new.id}
            if key is not None and key in named:
                raise DuplicateBusinessKey(
                    {key: next(e["job"] for e in outbox["submits"] if e["key"] == key)}
                )
            if key is not None and key == freed:
                entry |= {"moves": key, "token": uuid4()}
            elif key is not None:
                got = await keys.take(database, key, new.id, hold)
                if isinstance(got, keys.Held):
                    raise DuplicateBusinessKey({key: got.holder})
                taken.append(got)
            if key is not None:
                named.add(key)
                entry["key"] = key
                database.step("key taken")
            doc = hidden(new_document(new, hold["at"], token=hold["id"], business_key=key), hold)
            entry["reveal"] = doc["reveal"]
            outbox["submits"].append(entry)
            if await pending.place(database, doc, waiting, over_void=True) is not None:
                raise UsageError(f"a job with this id is stored already: {new.id}")
            database.step("submitted job inserted")
    except Exception:
        await keys.release(database, taken)
        await keys.unreserve(database, reserved)
        await _call_off(database, hold["id"], None)
        raise
    outbox["taken"] = [[t.key, t.token] for t in taken]
    outbox["reserved"] = [[r.key, r.id, r.token] for r in reserved]
    return outbox


async def _call_off(database: MongoDatabase, token: UUID, outbox: Document | None) -> None:
    """Undo what `_prepare` did for a settlement that was not written."""
    if outbox is not None:
        await keys.release(database, [keys.Taken(key, mark) for key, mark in outbox["taken"]])
        await keys.unreserve(database, [keys.Reserved(*entry) for entry in outbox["reserved"]])
    await database.run(lambda: database.jobs.delete_many({"hold.id": token, "status": {"$exists": False}}))


# -- apply ----------------------------------------------------------------------------------------


async def apply(database: MongoDatabase, change: Change, unsure: Unsure) -> Applied | Refused:
    """See `ratchet.spi.store.JobStore.apply`."""
    if change.trigger not in APPLIES:
        raise UsageError(f"{change.trigger} does not travel by apply; use settle, claim or recover")
    token = unsure.token(database, change)
    try:
        for tried in range(_TRIES):
            now = await database.now()
            guard = (await read_guards(database, [change.job_id])).get(change.job_id)
            if guard is None:
                unsure.drop(change)
                return Refused(change.job_id, None, NO_SUCH_JOB)
            reason = None if guard.write == token else refusal(guard, change, now)
            if guard.write == token or reason is not None:
                unsure.drop(change)
                doc = await database.run(lambda: database.jobs.find_one({"_id": change.job_id}, JOB_VIEW))
                current = None if doc is None or "status" not in doc else job_from(doc)
                if reason is None and current is not None:
                    return Applied(current)
                return Refused(change.job_id, current, reason or NO_SUCH_JOB)
            if guard.business_key is not None and ROWS[change.trigger].business_key is BusinessKey.TAKEN:
                got = await keys.take(database, guard.business_key, guard.id, None)
                if isinstance(got, keys.Held):
                    raise DuplicateBusinessKey({guard.business_key: got.holder})
                database.step("key taken")
            decided = move(guard, change, now, token)
            doc = await database.run(
                lambda d=decided: database.jobs.find_one_and_update(  # type: ignore[misc]
                    d.where, d.update, projection=JOB_VIEW, return_document=ReturnDocument.AFTER
                )
            )
            database.step("updated")
            if doc is not None:
                unsure.drop(change)
                return Applied(job_from(doc))
            if tried > 1:
                await sleep(0.001 * tried)
        raise StoreTransientError(
            f"job {change.job_id} changed faster than {change.trigger} could be written"
        )
    except StoreTransientError:
        unsure.keep(change, token)
        raise


# -- reading --------------------------------------------------------------------------------------


async def read_guards(database: MongoDatabase, ids: Sequence[UUID]) -> dict[UUID, Guard]:
    """The known ones among `ids`, as far as a transition looks at them; what was begun on them is completed."""
    left, found = list(ids), dict[UUID, Guard]()
    waiting = keys.Waiting()
    while left:
        where: dict[str, Any] = {"_id": {"$in": left}, "status": {"$exists": True}}
        docs = await database.run(lambda w=where: find(database.jobs, w, GUARD_VIEW, hint=BY_ID))  # type: ignore[misc]
        left = []
        for guard in map(Guard, docs):
            if not guard.is_locked:
                found[guard.id] = guard
                continue
            left.append(guard.id)
            if guard.outbox is not None:
                await pending.complete_outbox(database, guard.id, guard.outbox)
            elif guard.hold is not None:
                await pending.resolved(database, guard.hold, waiting)
    hidden_ids = [job_id for job_id in ids if job_id not in found]
    if hidden_ids and await show(database, hidden_ids):
        found |= await read_guards(database, hidden_ids)
    return found


async def show(database: MongoDatabase, ids: Sequence[UUID]) -> bool:
    """Complete what hides some of these jobs, where it is decided; True if any may be seen now."""
    where: Document = {"_id": {"$in": list(ids)}, "hold.id": {"$exists": True}, "status": {"$exists": False}}
    docs = await database.run(lambda: find(database.jobs, where, {"hold": 1}, hint=BY_ID))
    shown = False
    for doc in docs:
        shown = await pending.decided(database, doc["_id"], doc["hold"]) or shown
    return shown
