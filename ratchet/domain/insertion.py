"""What a job is in the instant in which it is inserted: when it is due, and its claim if it begins with one."""

from __future__ import annotations

from datetime import datetime

from ratchet.domain.job import Claim, JobType, NewJob
from ratchet.domain.lifecycle import CLAIMABLE, after, clamp


def due_time(new: NewJob, now: datetime) -> datetime:
    """When a job that is inserted now becomes due."""
    if new.at is not None:
        return clamp(new.at)
    return after(now, new.delay) if new.delay is not None else now


def first_claim(new: NewJob, due: datetime, now: datetime) -> Claim | None:
    """The claim with which a job is inserted; None if it is inserted without one.

    The same as an insertion and the claim of `new.claim_for` in one instant: so only what that could claim,
    a due job in a claimable state that is no batch parent. The row then holds what the CLAIM row of the table
    writes: RUNNING, `claim_seq` 1, `version` 1, `picked_by` and `picked_at`.
    """
    if new.claim_for is None or due > now or new.start not in CLAIMABLE or new.type is JobType.BATCH:
        return None
    return Claim(
        job_id=new.id,
        claim_seq=1,
        target=new.target,
        payload=new.payload,
        format=new.format,
        executor=new.executor,
        attempts=0,
        crash_count=0,
        max_retries=new.max_retries,
        backoff=new.backoff,
        timeout=new.timeout,
        priority=new.priority,
        type=new.type,
        scheduled_time=due,
        picked_at=now,
        params=dict(new.params),
        tags=new.tags,
        business_key=new.business_key,
        principal=new.principal,
        resource=new.resource,
        on_success=new.on_success,
        on_failure=new.on_failure,
        metadata=dict(new.metadata),
    )
