"""Ageing and the order of claims (specification, section 3; F56)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.domain.priority import BOOST_INTERVAL, Priority, claim_order, effective_priority

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
MS = timedelta(milliseconds=1)

instants = st.datetimes(timezones=st.just(UTC))
intervals = st.timedeltas(timedelta(), timedelta(days=400)) | st.sampled_from([BOOST_INTERVAL, MS])
candidates = st.tuples(st.sampled_from(Priority), instants, st.uuids())


def test_levels() -> None:
    """LOWEST 0 to CRITICAL 4, one level for each 15 minutes."""
    assert [(level.name, level.value) for level in Priority] == [
        ("LOWEST", 0), ("LOW", 1), ("NORMAL", 2), ("HIGH", 3), ("CRITICAL", 4),
    ]  # fmt: skip
    assert BOOST_INTERVAL == 15 * MINUTE


@pytest.mark.field_case("F56")
@pytest.mark.parametrize(
    ("waited", "levels"),
    [
        (timedelta(), 0),
        (15 * MINUTE - MS, 0),
        (15 * MINUTE, 1),
        (30 * MINUTE - MS, 1),
        (45 * MINUTE, 3),
        (timedelta(days=3650), 350_400),
        (-timedelta(days=1), 0),
    ],
)
def test_f56_whole_intervals_count(waited: timedelta, levels: int) -> None:
    """Waiting lifts by whole intervals, without overflow after ten years, and never lowers (F56)."""
    assert effective_priority(Priority.LOWEST, NOW - waited, NOW, BOOST_INTERVAL) == levels


@pytest.mark.parametrize("interval", [timedelta(), -MINUTE])
def test_ageing_can_be_switched_off(interval: timedelta) -> None:
    """With an interval of 0 the priority is all there is."""
    assert effective_priority(Priority.LOW, NOW - timedelta(days=9), NOW, interval) == Priority.LOW


@given(st.sampled_from(Priority), instants, instants, intervals)
def test_ageing_never_lowers(priority: Priority, due: datetime, now: datetime, interval: timedelta) -> None:
    """The effective priority is at least the priority, for any instants and interval."""
    assert effective_priority(priority, due, now, interval) >= priority


@given(st.lists(candidates, unique_by=lambda entry: entry[2]), instants, intervals)
def test_the_order_is_total(
    entries: list[tuple[Priority, datetime, UUID]], now: datetime, interval: timedelta
) -> None:
    """Distinct jobs have distinct keys, so any two nodes sort any jobs alike, however they are handed over."""

    def key(entry: tuple[Priority, datetime, UUID]) -> tuple[int, datetime, UUID]:
        return claim_order(entry[0], entry[1], entry[2], now, interval)

    ordered = sorted(entries, key=key)
    backwards = list(reversed(entries))
    assert sorted(backwards, key=key) == ordered
    assert all(key(first) < key(second) for first, second in pairwise(ordered))


@given(st.lists(candidates, min_size=2), instants, intervals)
def test_within_a_priority_the_order_is_that_of_due_times(
    entries: list[tuple[Priority, datetime, UUID]], now: datetime, interval: timedelta
) -> None:
    """Stores read each priority by (due time, id) and merge: ageing must not reorder within one."""
    same = [(Priority.LOW, due, job_id) for _, due, job_id in entries]
    assert sorted(same, key=lambda e: claim_order(e[0], e[1], e[2], now, interval)) == sorted(
        same, key=lambda entry: entry[1:]
    )
