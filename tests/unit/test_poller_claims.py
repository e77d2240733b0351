"""What the poller asks for: no claim in vain, and nobody forgotten."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest

from ratchet import ExecutionSettings, Scheduler, Settings
from ratchet.spi.store import Claimed, ClaimRequest, JobStore
from tests.unit import scheduler_kit as kit


def _watched(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> list[tuple[ClaimRequest, Claimed]]:
    """Every claim of the store, with its answer."""
    claims: list[tuple[ClaimRequest, Claimed]] = []
    claim = store.claim

    def watched(request: ClaimRequest) -> Claimed:
        answer = claim(request)
        claims.append((request, answer))
        return answer

    monkeypatch.setattr(store, "claim", watched)
    return claims


def test_a_backlog_of_one_executor_makes_no_claims_for_the_others(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with a backlog for its threads and idle async slots does not ask in vain after every claim."""
    scheduler = Scheduler.from_url(store_url, allow=[kit.__name__])
    claims = _watched(scheduler.store, monkeypatch)
    handles = scheduler.enqueue_many(kit.add, [(i,) for i in range(600)])
    with scheduler:
        for handle in handles:
            handle.result(timeout=kit.WAIT)
        backlog = [answer for _, answer in claims if answer.more or answer.claims]
        empty = [request for request, answer in claims if answer.more is False and not answer.claims]
    scheduler.close()
    assert len(backlog) >= 600 // 50
    # At the end, by the clock twice a second, and after a claim that filled up with both executors asked.
    assert len(empty) <= len(backlog) // 4 + 4, f"{len(empty)} empty claims beside {len(backlog)}"


def work() -> None:
    time.sleep(0.02)  # what the body does; nothing waits for it by time


def test_a_busy_executor_hides_nobody_elses_job() -> None:
    """While a freed thread is refilled again and again, an async job of which no hint tells begins all the same."""
    url = f"memory://{uuid4().hex}"
    one_thread = Settings(execution=ExecutionSettings(threads=1))
    worker = Scheduler.from_url(url, allow=[kit.__name__, __name__], settings=one_thread)
    other = Scheduler.from_url(url, allow=[kit.__name__, __name__])
    backlog = other.enqueue_many(work, [()] * 1000)
    with worker:
        backlog[0].result(timeout=kit.WAIT)  # freed and refilled from now on
        assert other.enqueue(kit.add_later, 1).submit().result(timeout=8) == 2
        last = backlog[-1].job()
        assert last is not None
        assert not last.is_settled
        for handle in backlog:
            other.cancel(handle.id)
    worker.close()
