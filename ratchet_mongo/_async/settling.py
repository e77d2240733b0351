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

from pymongo import ReturnDocument, UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError

from ratchet.domain.job import NewJob
from ratchet.domain.lifecycle import ROWS, SETTLED, BusinessKey, Trigger, refusal
from ratchet.domain.settlement import Change, RunCallback, Settlement, Submit
from ratchet.errors import (
    ConflictError,
    DuplicateBusinessKey,
    DuplicateIdempotencyKey,
    StoreTransientError,
    UsageError,
)
from ratchet.spi.store import Applied, Refused, SettleAnswer, Settled
from ratchet_mongo._async import keys, pending
from ratchet_mongo._async.claiming import Running
from ratchet_mongo._async.database import MongoDatabase
from ratchet_mongo._async.flavour import find, sleep
from ratchet_mongo.documents import JOB_VIEW, Document, hidden, job_from, new_document
from ratchet_mongo.moves import APPLIES, GUARD_VIEW, Guard, Move, frees, move
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

    def token(self, change: Change) -> UUID:
        """The token of an earlier try of this change, or a new one."""
        return self._tokens.get(_attempt(change)) or uuid4()

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
        if len(wave) == 1 and _submitted(wave[0]):
            try:
                answers.append(await settle(database, wave[0], running, unsure))
            except ConflictError as conflict:
                current = await database.run(
                    lambda w=wave: database.jobs.find_one({"_id": w[0].change.job_id}, JOB_VIEW)  # type: ignore[misc]
                )
                told = None if current is None or "status" not in current else job_from(current)
                answers.append(Refused(wave[0].change.job_id, told, str(conflict)))
        else:
            answers += await _settle_wave(database, wave, running, unsure)
    return answers


async def settle(
    database: MongoDatabase, settlement: Settlement, running: Running, unsure: Unsure
) -> SettleAnswer:
    """See `ratchet.spi.store.JobStore.settle`."""
    if _submitted(settlement):
        return await _settle_submitting(database, settlement, running, unsure)
    return (await _settle_wave(database, [settlement], running, unsure))[0]


def _submitted(settlement: Settlement) -> list[NewJob]:
    return [effect.job for effect in settlement.effects if isinstance(effect, Submit)]


def _callbacks(settlement: Settlement) -> list[RunCallback]:
    return [effect for effect in settlement.effects if isinstance(effect, RunCallback)]


def _waves(settlements: Sequence[Settlement]) -> list[list[Settlement]]:
    """Consecutive parts in which no job occurs twice and a submission stands alone, so that each sees the last."""
    waves: list[list[Settlement]] = []
    seen: set[UUID] = set()
    alone = True
    for settlement in settlements:
        submits = bool(_submitted(settlement))
        job_id = settlement.change.job_id
        if alone or submits or job_id in seen:
            waves.append([])
            seen = set()
        waves[-1].append(settlement)
        seen.add(job_id)
        alone = submits
    return waves


async def _settle_wave(
    database: MongoDatabase, wave: Sequence[Settlement], running: Running, unsure: Unsure
) -> list[SettleAnswer]:
    """Settlements of different jobs that submit nothing, in as few updates as possible."""
    answers: dict[UUID, SettleAnswer] = {}
    left = {settlement.change.job_id: settlement for settlement in wave}
    tokens = {job_id: unsure.token(settlement.change) for job_id, settlement in left.items()}
    known: dict[UUID, Guard] = {}
    for job_id, settlement in left.items():
        guard = running.of(job_id, settlement.change.claim_seq)
        if guard is not None and not unsure.known(settlement.change):
            known[job_id] = guard
    now = await database.now()
    try:
        for tried in range(_TRIES):
            missing = [job_id for job_id in left if job_id not in known]
            if missing:
                read = await read_guards(database, missing)
                for job_id in missing:
                    settlement = left[job_id]
                    fresh = read.get(job_id)
                    if fresh is None:
                        answers[job_id] = Refused(job_id, None, NO_SUCH_JOB)
                    elif fresh.write == tokens[job_id]:
                        answers[job_id] = _as_written(fresh)
                    elif refusal(fresh, settlement.change, now) is None:
                        known[job_id] = fresh
                        continue
                    else:
                        reason = refusal(fresh, settlement.change, now) or ""
                        answers[job_id] = Refused(job_id, None, reason)
                    running.forget(job_id)
                    del left[job_id]
            moves: list[Move] = []
            for job_id, settlement in list(left.items()):
                if refusal(known[job_id], settlement.change, now) is not None:
                    del known[job_id]  # by what was remembered of its claim; what is stored decides
                    continue
                moves.append(
                    move(
                        known[job_id],
                        settlement.change,
                        now,
                        tokens[job_id],
                        callbacks=_callbacks(settlement),
                    )
                )
            for one in await write(database, moves):
                answers[one.guard.id] = one.settled()
                running.forget(one.guard.id)
                del left[one.guard.id]
            if not left:
                break
            known.clear()
            if tried > 1:
                await sleep(0.001 * tried)
        else:
            raise StoreTransientError(f"{len(left)} jobs changed faster than their outcomes could be written")
    except BaseException:
        for job_id, settlement in left.items():
            unsure.keep(settlement.change, tokens[job_id])
        raise
    for settlement in wave:
        unsure.drop(settlement.change)
    return await _with_jobs(database, [answers[settlement.change.job_id] for settlement in wave])


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
        updates = [UpdateOne(one.where, one.update) for one in moves]
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
    except Exception as error:
        cause = error.__cause__
        if not isinstance(cause, BulkWriteError) or codes(cause) != {DUPLICATE_KEY}:
            raise
    database.step("history spilled")


# -- settlements that submit ----------------------------------------------------------------------


async def _settle_submitting(
    database: MongoDatabase, settlement: Settlement, running: Running, unsure: Unsure
) -> SettleAnswer:
    change = settlement.change
    token = unsure.token(change)
    try:
        for tried in range(_TRIES):
            now = await database.now()
            guard = (await read_guards(database, [change.job_id])).get(change.job_id)
            if guard is None:
                answer: SettleAnswer = Refused(change.job_id, None, NO_SUCH_JOB)
                break
            if guard.write == token:
                answer = _as_written(guard)
                break
            reason = refusal(guard, change, now)
            if reason is not None:
                answer = Refused(change.job_id, None, reason)
                break
            hold: Document = {
                "kind": pending.SETTLEMENT,
                "id": token,
                "job": change.job_id,
                "at": now,
            }
            outbox = await _prepare(database, settlement, guard, hold)
            database.step("submission prepared")
            decided = move(guard, change, now, token, callbacks=_callbacks(settlement), outbox=outbox)
            if await write(database, [decided]):
                await pending.complete_outbox(database, change.job_id, outbox)
                answer = decided.settled()
                break
            await _call_off(database, hold, outbox)
            if tried > 1:
                await sleep(0.001 * tried)
        else:
            raise StoreTransientError(
                f"job {change.job_id} changed faster than its settlement could be written"
            )
    except StoreTransientError:
        unsure.keep(change, token)
        raise
    unsure.drop(change)
    running.forget(change.job_id)
    return (await _with_jobs(database, [answer]))[0]


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
    try:
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
            if new.idempotency_key is not None:
                answer = await keys.reserve(database, new.idempotency_key, new.id, hold)
                if isinstance(answer, keys.Original) or answer.id != new.id:
                    raise DuplicateIdempotencyKey(
                        f"the idempotency key {new.idempotency_key!r} belongs to job {answer.id} for ever"
                    )
                reserved.append(answer)
            database.step("keys reserved")
            doc = hidden(new_document(new, hold["at"], token=hold["id"], business_key=key), hold)
            entry["reveal"] = doc["reveal"]
            outbox["submits"].append(entry)
            try:
                await database.run(lambda d=doc: database.jobs.insert_one(d))  # type: ignore[misc]
            except Exception as error:
                if not isinstance(error.__cause__, DuplicateKeyError):
                    raise
                there = await database.run(
                    lambda n=new: database.jobs.find_one({"_id": n.id}, {"write": 1, "hold": 1})  # type: ignore[misc]
                )
                if there is None or there.get("write") != hold["id"] or "hold" not in there:
                    raise UsageError(f"a job with this id is stored already: {new.id}") from error
            database.step("submitted job inserted")
    except Exception:
        await keys.release(database, taken)
        await keys.unreserve(database, reserved)
        await _call_off(database, hold, None)
        raise
    outbox["taken"] = [[t.key, t.token] for t in taken]
    outbox["reserved"] = [[r.key, r.token] for r in reserved]
    return outbox


async def _call_off(database: MongoDatabase, hold: Document, outbox: Document | None) -> None:
    """Undo what `_prepare` did for a settlement that was not written."""
    if outbox is not None:
        await keys.release(database, [keys.Taken(key, token) for key, token in outbox["taken"]])
        await keys.unreserve(
            database, [keys.Reserved(key, hold["job"], token) for key, token in outbox["reserved"]]
        )
    await database.run(
        lambda: database.jobs.delete_many({"hold.id": hold["id"], "status": {"$exists": False}})
    )


# -- apply ----------------------------------------------------------------------------------------


async def apply(database: MongoDatabase, change: Change, unsure: Unsure) -> Applied | Refused:
    """See `ratchet.spi.store.JobStore.apply`."""
    if change.trigger not in APPLIES:
        raise UsageError(f"{change.trigger} does not travel by apply; use settle, claim or recover")
    token = unsure.token(change)
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
        docs = await database.run(lambda w=where: find(database.jobs, w, GUARD_VIEW))  # type: ignore[misc]
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
    docs = await database.run(lambda: find(database.jobs, where, {"hold": 1}))
    shown = False
    for doc in docs:
        shown = await pending.decided(database, doc["_id"], doc["hold"]) or shown
    return shown
