"""Pages that are read from an index backwards: jobs of one instant still come by id ascending."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from conformance_tests.driver import new_job
from ratchet.spi.store import Selection


class Steps:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 3, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.moment


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7, 13, 14, 1000])
@pytest.mark.parametrize("selection", [Selection(), Selection(tags=frozenset({"even"}))], ids=["all", "tag"])
def test_the_oldest_come_first_whatever_the_page(
    open_store: Callable[..., Any], limit: int, selection: Selection
) -> None:
    """Pages of any size by creation, ascending, over groups of jobs of one instant, give each job once, in order."""
    clock = Steps()
    store = open_store(clock=clock)
    wanted = []
    for size in (1, 6, 1, 5):
        # In the reverse order of their ids, so that it is not the order of insertion that is answered.
        jobs = [new_job(tags=frozenset({"even"} if n % 2 == 0 else {"odd"})) for n in range(size)]
        store.insert(jobs[::-1])
        wanted += [job.id for job in jobs if selection.tags <= job.tags]
        clock.moment += timedelta(milliseconds=1)
    found: list[Any] = []
    cursor = None
    while True:
        page = store.find(selection, order="created_asc", limit=limit, cursor=cursor)
        found += [job.id for job in page.jobs]
        assert len(page.jobs) <= limit
        cursor = page.cursor
        if cursor is None:
            break
    assert found == wanted
