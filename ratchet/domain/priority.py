"""Priorities, and ageing: how waiting work overtakes (specification, section 3)."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import IntEnum
from uuid import UUID


class Priority(IntEnum):
    """How urgent; higher first."""

    LOWEST = 0
    LOW = 1
    NORMAL = 2
    HIGH = 3
    CRITICAL = 4


BOOST_INTERVAL = timedelta(minutes=15)
"""Each whole interval of waiting counts as one level; 0 switches ageing off."""


def effective_priority(
    priority: int, scheduled_time: datetime, now: datetime, boost_interval: timedelta
) -> int:
    """`priority` + the whole boost intervals since the due time; never less than `priority`."""
    if boost_interval <= timedelta():
        return priority
    return priority + max((now - scheduled_time) // boost_interval, 0)


def claim_order(
    priority: int, scheduled_time: datetime, job_id: UUID, now: datetime, boost_interval: timedelta
) -> tuple[int, datetime, UUID]:
    """A sort key: effective priority descending, then due time, then id ascending. A total order."""
    return -effective_priority(priority, scheduled_time, now, boost_interval), scheduled_time, job_id
