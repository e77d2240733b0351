"""Claiming: which due jobs a node gets, and the one transaction that gives them.

Statements: one to look at the first row of each branch (without the writer's lock, so that an idle node
never disturbs anybody); if something is due, five more: BEGIN, look further, update, read what the workers
need, COMMIT. The first look is skipped after a claim that left something behind, and after this process
has submitted something that is due.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from ratchet.domain.job import Claim
from ratchet.domain.priority import claim_order
from ratchet.spi.store import Claimed, ClaimRequest
from ratchet_sql import rendered as sql
from ratchet_sql.connection import Database, Execute
from ratchet_sql.rows import claim_from, dumps, from_ms, unreadable_claim, uuid_from

_log = logging.getLogger("ratchet.store")


@dataclass(slots=True)
class Choice:
    """What a look at the first rows of every branch leads to.

    Attributes:
        ids: to be claimed, in order of effective priority.
        more: True if further due jobs match.
        next_due: of the first job not yet due.
        unreadable: ids and due times that are none: rows that another program has made.
    """

    ids: list[str] = field(default_factory=list)
    more: bool = False
    next_due: int | None = None
    unreadable: list[tuple[object, object]] = field(default_factory=list)


def claim(database: Database, request: ClaimRequest, *, backlog: bool) -> Claimed:
    """See `ratchet.spi.store.JobStore.claim`; `backlog`: something is known to be due."""
    limits = {name: min(n, max(request.limit, 0)) for name, n in request.limits.items() if n > 0}
    if not limits:
        return Claimed([], more=False, next_due=None, now=from_ms(database.now_ms()))
    statement, parameters = _look(request, limits)
    if not backlog or request.limit <= 0:
        database.file.check()
        now = database.now_ms()
        first = json.loads(database.read(statement, {**parameters, "rows": 1, "now": now}))
        choice = choose(first, request, limits, now)
        if not choice.ids and not choice.unreadable:  # one of those may stand before others
            return Claimed([], more=choice.more, next_due=_instant(choice.next_due), now=from_ms(now))

    def work(execute: Execute, now: int) -> Claimed:
        found = json.loads(execute(statement, {**parameters, "now": now}).fetchone()[0])
        chosen = choose(found, request, limits, now)
        for job_id, scheduled in chosen.unreadable:
            _tell(
                f"a row with the id {job_id!a} that is due at {scheduled!a} cannot be a job; it is passed over"
            )
        picked_at = from_ms(now)
        if not chosen.ids:
            return Claimed([], more=chosen.more, next_due=_instant(chosen.next_due), now=picked_at)
        ids = {"ids": dumps(chosen.ids)}
        execute(sql.CLAIM, {**ids, "now": now, "incarnation": request.incarnation})
        database.step("claimed")
        rows = {row[0]: row for row in json.loads(execute(sql.CLAIMED, ids).fetchone()[0])}
        claims = [_claim_of(rows[job_id], picked_at) for job_id in chosen.ids if job_id in rows]
        return Claimed(claims, more=chosen.more, next_due=_instant(chosen.next_due), now=picked_at)

    return database.write(work)


def _claim_of(row: list[Any], picked_at: datetime) -> Claim:
    """A row that cannot be read costs no other its claim; it is claimed, too, to be failed."""
    try:
        return claim_from(row, picked_at)
    except Exception as error:  # noqa: BLE001 - whatever another program has put there
        _tell(f"job {row[0]} has a column that cannot be read, and fails: {type(error).__name__}")
        return unreadable_claim(row, picked_at)


@lru_cache(maxsize=1000)
def _tell(line: str) -> None:
    """Log it once, not with every claim."""
    _log.error("%s", line)


def _look(request: ClaimRequest, limits: dict[str, int]) -> tuple[str, dict[str, Any]]:
    parameters: dict[str, Any] = {"executors": dumps(list(limits)), "rows": max(limits.values()) + 1}
    if not (request.require_tags or request.exclude_tags or request.types or request.leave_out):
        return sql.CANDIDATES, parameters
    parameters["require_tags"] = dumps(sorted(request.require_tags))
    parameters["exclude_tags"] = dumps(sorted(request.exclude_tags))
    parameters["types"] = dumps(sorted(request.types))
    parameters["leave_out"] = dumps(sorted(request.leave_out))
    return sql.CANDIDATES_FILTERED, parameters


def choose(
    branches: list[tuple[str, int, list[tuple[int, str]], int | None]],
    request: ClaimRequest,
    limits: dict[str, int],
    now_ms: int,
) -> Choice:
    """Merge the branches by effective priority, within the limits. Pure.

    A branch is (executor, priority, its first due rows by due time and id, when its next one becomes due);
    the rows are one more than any limit, so that one left over tells of more.
    """
    due: list[tuple[Any, str, str]] = []
    choice = Choice()
    now, boost = from_ms(now_ms), request.boost_interval
    for executor, priority, rows, following in branches:
        if following is not None and (choice.next_due is None or following < choice.next_due):
            choice.next_due = following
        for scheduled, job_id in rows:
            try:
                order = claim_order(priority, from_ms(scheduled), uuid_from(job_id), now, boost)
            except (ValueError, OverflowError):
                choice.unreadable.append((job_id, scheduled))
                continue
            due.append((order, executor, job_id))
    if len(due) > 1:
        due.sort()
    left = dict(limits)
    for _, executor, job_id in due:
        if len(choice.ids) < request.limit and left[executor]:
            left[executor] -= 1
            choice.ids.append(job_id)
        else:
            choice.more = True
            if len(choice.ids) >= request.limit:
                break
    return choice


def _instant(ms: int | None) -> datetime | None:
    return None if ms is None else from_ms(ms)
