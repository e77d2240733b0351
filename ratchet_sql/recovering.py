"""Recovery: claims and callbacks whose owner is dead, and the nodes that say they are alive.

Statements of a pass that finds nothing: one, without the writer's lock. Otherwise one more per dead
owner, and one transaction for all that is recovered, or one per job if that fails.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ratchet.domain.job import CallbackKind
from ratchet.domain.lifecycle import Trigger, refusal
from ratchet.domain.settlement import Change
from ratchet.errors import StoreError
from ratchet.spi.store import Node, NodeInfo, Orphan, PendingCallback, RecoverRequest, Recovery
from ratchet_sql import rendered as sql
from ratchet_sql.connection import Database, Execute
from ratchet_sql.rows import (
    MS,
    NODE_COLUMNS,
    GuardRow,
    dumps,
    from_ms,
    node_from,
    node_row,
    to_ms,
    uuid_from,
)
from ratchet_sql.settling import Group, read_guards


def recover(database: Database, request: RecoverRequest) -> Recovery:
    """See `ratchet.spi.store.JobStore.recover`."""
    errors: list[str] = []
    found = _orphans(database, request, errors)
    more = len(found) >= request.limit
    exhausted = [_orphan(job, job.crash_count) for job in found if job.crash_count >= request.crash_budget]
    below = [job for job in found if job.crash_count < request.crash_budget]
    if not below:
        return Recovery([], exhausted, more, tuple(errors))
    database.step("orphans selected")
    recovered: list[Orphan] = []
    try:
        recovered = _take_back(database, below)
    except StoreError:
        # Something is wrong with one of them, or with the database: one by one, so that it costs no other.
        for job in below:
            try:
                recovered += _take_back(database, [job])
            except StoreError as error:
                errors.append(f"job {job.id}, claim {job.claim_seq}: {error}")
    return Recovery(recovered, exhausted, more, tuple(errors))


def _orphans(database: Database, request: RecoverRequest, errors: list[str]) -> list[GuardRow]:
    """Running jobs whose owner is dead, at most as many as asked for; a row that makes no sense is an error."""
    now = database.now_ms()
    horizon = now - _whole_ms(request.grace)
    found: list[GuardRow] = []
    for owner, last_heartbeat in json.loads(database.read(sql.OWNERS)):
        left = request.limit - len(found)
        if left <= 0:
            break
        before = _dead_before(owner, last_heartbeat, request, now, horizon)
        if before is not None:
            chosen = {"owner": owner, "before": before, "limit": left}
            for row in json.loads(database.read(sql.CLAIMS_OF, chosen)):
                try:
                    found.append(GuardRow(row))
                except (ValueError, TypeError, OverflowError) as error:
                    errors.append(f"job {row[0]}, claim {row[3]}: its row cannot be read: {error!r}")
    return found


def _dead_before(
    owner: str, last_heartbeat: int | None, request: RecoverRequest, now: int, horizon: int
) -> int | None:
    """Claims of `owner` picked up to then are orphans; None: it is alive, or not to be touched."""
    if owner in request.never:
        return None
    if owner in request.known_gone:
        return _FOR_EVER
    if request.only_known_gone:
        return None
    if last_heartbeat is None:
        return horizon - 1  # each claim by its own age
    return _FOR_EVER if last_heartbeat < horizon else None


_FOR_EVER = to_ms(datetime.max.replace(tzinfo=from_ms(0).tzinfo))


def _take_back(database: Database, seen: Sequence[GuardRow]) -> list[Orphan]:
    """Row ``recover`` for those that are still as they were seen: same claim, same owner."""

    def work(execute: Execute, now_ms: int) -> list[Orphan]:
        now = from_ms(now_ms)
        current = read_guards(execute, [job.id for job in seen])
        group = Group()
        taken: list[Orphan] = []
        for was in seen:
            job = current.get(was.id)
            if job is None or job.picked_by != was.picked_by:
                continue
            change = Change(Trigger.RECOVER, uuid_from(job.id), was.claim_seq)
            if refusal(job, change, now) is not None:
                continue
            group.add(job, change.job_id, change, now)
            taken.append(_orphan(job, job.crash_count + 1))
        if taken:
            group.write(database, execute, now_ms)
        return taken

    return database.write(work)


def _orphan(job: GuardRow, crash_count: int) -> Orphan:
    return Orphan(uuid_from(job.id), job.claim_seq, crash_count, job.picked_by or "")


def _whole_ms(span: timedelta) -> int:
    return -(-span // MS)


def held(database: Database, incarnation: str) -> list[tuple[UUID, int]]:
    """See `ratchet.spi.store.JobStore.held`."""
    found = json.loads(database.read(sql.HELD, {"owner": incarnation}))
    return [(uuid_from(job_id), claim_seq) for job_id, claim_seq in found]


# -- callbacks ------------------------------------------------------------------------------------


def take_callbacks(
    database: Database, incarnation: str, grace: timedelta, limit: int
) -> list[PendingCallback]:
    """See `ratchet.spi.store.JobStore.take_callbacks`."""
    horizon = database.now_ms() - _whole_ms(grace)
    dead = _dead_callback_owners(json.loads(database.read(sql.CALLBACK_OWNERS)), incarnation, horizon)
    if not dead or limit <= 0:
        return []

    def work(execute: Execute, now: int) -> list[PendingCallback]:
        owners = json.loads(execute(sql.CALLBACK_OWNERS).fetchone()[0])
        taken: list[Any] = []
        for owner in _dead_callback_owners(owners, incarnation, now - _whole_ms(grace)):
            if len(taken) < limit:
                chosen = {"owner": owner, "limit": limit - len(taken)}
                taken += json.loads(execute(sql.CALLBACKS_OF, chosen).fetchone()[0])
        keys = [row[:3] for row in taken]
        execute(sql.MOVE_CALLBACKS, {"rows": dumps(keys), "new_owner": incarnation})
        return [
            PendingCallback(uuid_from(j), seq, name, target, arg) for j, seq, name, _, target, arg in taken
        ]

    return database.write(work)


def _dead_callback_owners(owners: list[tuple[str, int | None]], myself: str, horizon: int) -> list[str]:
    return [owner for owner, last in owners if owner != myself and (last is None or last < horizon)]


def callback_done(database: Database, job_id: UUID, claim_seq: int, name: CallbackKind) -> None:
    """See `ratchet.spi.store.JobStore.callback_done`."""
    key = {"job_id": str(job_id), "claim_seq": claim_seq, "name": name}
    database.write_one(sql.CALLBACK_DONE, lambda _now: key)


# -- nodes ----------------------------------------------------------------------------------------


def heartbeat(database: Database, info: NodeInfo) -> datetime:
    """See `ratchet.spi.store.JobStore.heartbeat`; the one place that always looks whether the file is there."""
    database.file.check(now=True)
    sent = 0

    def parameters(now: int) -> dict[str, object]:
        nonlocal sent
        sent = now
        return dict(zip(NODE_COLUMNS, node_row(info, now), strict=True))

    database.write_one(sql.HEARTBEAT, parameters)
    return from_ms(sent)


def nodes(database: Database) -> list[Node]:
    """See `ratchet.spi.store.JobStore.nodes`."""
    rows = json.loads(database.read(sql.NODES))
    now = database.now_ms()
    found = [node_from(row, now) for row in rows]
    return sorted(found, key=lambda node: (-to_ms(node.last_heartbeat), node.info.incarnation))


def forget_node(database: Database, incarnation: str) -> bool:
    """See `ratchet.spi.store.JobStore.forget_node`."""
    return database.write_one(sql.FORGET_NODE, lambda _now: {"incarnation": incarnation}) > 0
