"""Changes: lifecycle rows applied to stored jobs, with their effects, many in one commit.

Statements of `settle_many` over any number of jobs that end alike: five (BEGIN, read, update, history,
COMMIT), one more if a callback is recorded, one more per further kind of outcome. `apply`: five.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from ratchet.domain.lifecycle import ROWS, SETTLED, BusinessKey, Status, Trigger, assign, execution, refusal
from ratchet.domain.settlement import Change, RunCallback, Settlement, Submit
from ratchet.errors import (
    CapabilityMissing,
    ConflictError,
    DuplicateBusinessKey,
    StorePermanentError,
    UsageError,
)
from ratchet.spi.store import Applied, Refused, SettleAnswer, Settled
from ratchet_sql import rendered as sql
from ratchet_sql.connection import Database, Execute
from ratchet_sql.rows import GuardRow, Stored, cleaned, column_value, dumps, execution_row, from_ms, job_from
from ratchet_sql.submission import business_holders, insert_rows, submitted_rows
from ratchet_sql.transitions import data_columns

SETTLES: Final = frozenset(
    trigger
    for trigger, row in ROWS.items()
    if row.consequences or (row.ends and trigger is not Trigger.RECOVER)
)
"""The triggers that travel by `settle`."""
APPLIES: Final = frozenset(ROWS) - SETTLES - {Trigger.CLAIM, Trigger.RECOVER}
"""The triggers that travel by `apply`."""

_UPDATE: Final[dict[Trigger, str]] = {
    t: getattr(sql, "TRANSITION_" + t.name) for t in ROWS if t is not Trigger.CLAIM
}
_DATA: Final = {trigger: data_columns(row) for trigger, row in ROWS.items()}
_ZERO: Final = timedelta()


# -- settle ---------------------------------------------------------------------------------------


def check(settlements: Sequence[Settlement], capabilities: frozenset[str]) -> None:
    """Refuse what can never be applied, before anything is written."""
    for settlement in settlements:
        change = settlement.change
        if change.trigger not in SETTLES:
            raise UsageError(f"{change.trigger} does not travel by settle; use apply, claim or recover")
        _check_target(change)
        for effect in settlement.effects:
            if effect.capability is not None and effect.capability not in capabilities:
                raise CapabilityMissing(effect.capability)


def _check_target(change: Change) -> None:
    targets = ROWS[change.trigger].targets
    if len(targets) > 1 and change.target not in targets:
        raise UsageError(f"{change.trigger} must name its target, one of {', '.join(targets)}")


@dataclass(slots=True)
class Group:
    """Decided changes that are written together.

    Attributes:
        updates: (trigger, target status) -> rows for the statement of that trigger.
        executions, callbacks: rows to insert.
        submitted: jobs to insert, after the updates have freed their keys.
    """

    updates: dict[tuple[Trigger, Status], list[Stored]] = field(default_factory=dict)
    executions: list[Stored] = field(default_factory=list)
    callbacks: list[Stored] = field(default_factory=list)
    submitted: list[Stored] = field(default_factory=list)

    def add(self, job: GuardRow, job_id: UUID, change: Change, now: datetime) -> dict[str, object]:
        """Decide one change, which was not refused; answers the fields it writes."""
        fields = assign(job, change, now)
        trigger = change.trigger
        row: Stored = [job.id, job.version, job.claim_seq]
        for name in _DATA[trigger]:
            row.append(column_value(fields[name]))
        self.updates.setdefault((trigger, fields["status"]), []).append(row)  # type: ignore[arg-type]
        ended = execution(job, change, now, job_id=job_id, node=job.picked_by)
        if ended is not None:
            self.executions.append(execution_row(ended, job.id))
        return fields

    def write(self, database: Database, execute: Execute, now_ms: int) -> None:
        """Write everything decided so far."""
        for (trigger, status), rows in self.updates.items():
            parameters: dict[str, Any] = {"rows": dumps(rows), "now": now_ms}
            if len(ROWS[trigger].targets) > 1:
                parameters["status"] = status.value
            touched = execute(_UPDATE[trigger], parameters).rowcount
            if touched != len(rows):
                # Read and written under one lock: this can only be a fault of the statement itself.
                raise StorePermanentError(
                    f"{trigger}: {len(rows)} jobs were to change and {touched} did; report this"
                )
        database.step("updated")
        if self.submitted:
            insert_rows(execute, self.submitted)
        if self.executions:
            execute(sql.INSERT_EXECUTIONS, {"rows": dumps(self.executions)})
        if self.callbacks:
            execute(sql.INSERT_CALLBACKS, {"rows": dumps(self.callbacks)})
        database.step("effects written")


def settle_many(
    database: Database, settlements: Sequence[Settlement], *, raise_conflicts: bool = False
) -> list[SettleAnswer]:
    """See `ratchet.spi.store.JobStore.settle_many`.

    An entry whose job cannot be submitted is a refusal; with `raise_conflicts` (`settle`) it raises.
    """
    if not settlements:
        return []

    def work(execute: Execute, now_ms: int) -> list[SettleAnswer]:
        answers: list[SettleAnswer] = []
        for wave in _waves(settlements):
            answers += _settle_wave(database, execute, wave, now_ms, raise_conflicts=raise_conflicts)
        return answers

    return database.write(work)


def _waves(settlements: Sequence[Settlement]) -> list[list[Settlement]]:
    """Consecutive parts in which no job occurs twice and a submission stands alone, so that each sees the last."""
    waves: list[list[Settlement]] = []
    seen: set[UUID] = set()
    alone = True
    for settlement in settlements:
        effects = settlement.effects
        submits = bool(effects) and any(isinstance(effect, Submit) for effect in effects)
        job_id = settlement.change.job_id
        if alone or submits or job_id in seen:
            waves.append([])
            seen = set()
        waves[-1].append(settlement)
        seen.add(job_id)
        alone = submits
    return waves


def _settle_wave(
    database: Database, execute: Execute, wave: list[Settlement], now_ms: int, *, raise_conflicts: bool
) -> list[SettleAnswer]:
    now = from_ms(now_ms)
    jobs = read_guards(execute, [str(s.change.job_id) for s in wave])
    group = Group()
    answers: list[SettleAnswer] = []
    for settlement in wave:
        change = settlement.change
        job_id = change.job_id
        job = jobs.get(str(job_id))
        if job is None:
            answers.append(Refused(job_id, None, "there is no job with this id"))
            continue
        reason = refusal(job, change, now)
        submitted: list[Stored] = []
        if reason is None and settlement.effects:
            try:
                submitted = _submissions(execute, settlement, job, now_ms)
            except ConflictError as conflict:
                if raise_conflicts:
                    raise
                reason = str(conflict)
        if reason is not None:
            answers.append(Refused(job_id, read_job(execute, job.id), reason))
            continue
        fields = group.add(job, job_id, change, now)
        group.submitted += submitted
        for effect in settlement.effects:
            if isinstance(effect, RunCallback):
                argument = cleaned(effect.argument)
                group.callbacks.append(
                    [
                        job.id,
                        job.claim_seq,
                        effect.name,
                        job.picked_by or "",
                        cleaned(effect.target),
                        argument,
                    ]
                )
        answers.append(_settled(job_id, job, fields, now))
    group.write(database, execute, now_ms)
    return answers


def _submissions(execute: Execute, settlement: Settlement, job: GuardRow, now_ms: int) -> list[Stored]:
    """The rows of the jobs that a settlement submits; a conflict with a stored job or among them raises."""
    new = [effect.job for effect in settlement.effects if isinstance(effect, Submit)]
    if not new:
        return []
    row = ROWS[settlement.change.trigger]
    return submitted_rows(
        execute,
        new,
        now_ms,
        takes_over=job.business_key if row.business_key is BusinessKey.MOVED else None,
        freed_by=job.id if set(row.targets) <= SETTLED else None,
    )


def _settled(job_id: UUID, job: GuardRow, fields: dict[str, object], now: datetime) -> Settled:
    return Settled(
        job_id,
        fields["status"],  # type: ignore[arg-type]
        job.version + 1,
        now,
        fields.get("scheduled_time", job.scheduled_time),  # type: ignore[arg-type]
        fields.get("queue_wait", _ZERO),  # type: ignore[arg-type]
    )


# -- apply ----------------------------------------------------------------------------------------


def apply(database: Database, change: Change) -> Applied | Refused:
    """See `ratchet.spi.store.JobStore.apply`."""
    if change.trigger not in APPLIES:
        raise UsageError(f"{change.trigger} does not travel by apply; use settle, claim or recover")
    job_id = str(change.job_id)

    def work(execute: Execute, now_ms: int) -> Applied | Refused:
        now = from_ms(now_ms)
        job = read_guards(execute, [job_id]).get(job_id)
        if job is None:
            return Refused(change.job_id, None, "there is no job with this id")
        before = read_job(execute, job_id)
        assert before is not None
        reason = refusal(job, change, now)
        if reason is not None:
            return Refused(change.job_id, before, reason)
        if change.trigger is Trigger.REQUEUE and job.business_key is not None:
            holder = business_holders(execute, [job.business_key]).get(job.business_key)
            if holder is not None:
                raise DuplicateBusinessKey({job.business_key: holder[0]})
        group = Group()
        fields = group.add(job, change.job_id, change, now)
        group.write(database, execute, now_ms)
        return Applied(replace(before, **fields))

    return database.write(work)


# -- reading inside a unit ------------------------------------------------------------------------


def read_guards(execute: Execute, ids: Sequence[str]) -> dict[str, GuardRow]:
    """The known ones among `ids`, as far as a transition looks at them."""
    found = json.loads(execute(sql.GET_GUARDS, {"ids": dumps(ids)}).fetchone()[0])
    return {row[0]: GuardRow(row) for row in found}


def read_job(execute: Execute, job_id: str) -> Any:
    """A job as it is in this unit; None if there is none."""
    row = execute(sql.GET_ONE, {"id": job_id}).fetchone()
    return None if row is None else job_from(json.loads(row[0]))
