"""A job that kills its node takes no innocent jobs with it to the end of their budget."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from ratchet import Status
from ratchet.domain.job import Claim, JobType
from ratchet.domain.priority import Priority
from ratchet.domain.retry import NO_BACKOFF
from ratchet.engine.apart import parted
from ratchet.engine.attempt import Attempt
from tests.engine import poison_node

ROOT = Path(__file__).resolve().parents[2]


def _attempt(crashes: int, executor: str = "threads") -> Attempt:
    now = datetime.now(UTC)
    claim = Claim(
        job_id=uuid4(),
        claim_seq=1,
        target="shop:sell",
        payload="[[],{}]",
        format=1,
        executor=executor,
        attempts=0,
        crash_count=crashes,
        max_retries=0,
        backoff=NO_BACKOFF,
        timeout=timedelta(minutes=1),
        priority=Priority.NORMAL,
        type=JobType.SINGLE,
        scheduled_time=now,
        picked_at=now,
        params={},
        tags=frozenset(),
        business_key=None,
        principal=None,
        resource=None,
        on_success=None,
        on_failure=None,
        metadata={},
    )
    return Attempt(claim, 0.0)


def test_a_strong_suspect_begins_alone() -> None:
    """Of a claim with jobs that crashed twice only the first of them begins, whatever room there is."""
    fresh, once, first, second = _attempt(0), _attempt(1), _attempt(2), _attempt(3)
    keep, back = parted([fresh, once, first, second], {"threads": 8})
    assert keep == [first]
    assert back == [fresh, once, second]


def test_a_strong_suspect_without_a_slot_goes_back_too() -> None:
    """Nothing is claimed ahead with a suspect, the suspect itself included."""
    first = _attempt(2)
    assert parted([first], {"threads": 0}) == ([], [first])


def test_beside_a_weak_suspect_nothing_is_ahead() -> None:
    """A job that crashed once begins with as many others as there are free slots of their executor."""
    once, fresh, late, other = _attempt(1), _attempt(0), _attempt(0), _attempt(0, "async")
    keep, back = parted([once, fresh, late, other], {"threads": 2, "async": 1})
    assert keep == [once, fresh, other]
    assert back == [late]


def test_only_the_poison_job_fails(tmp_path: Path) -> None:
    """A job that ends its process, among twenty harmless ones on a worker that is restarted, fails alone."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    scheduler = poison_node.make(url)
    poison = scheduler.enqueue(poison_node.poison).submit()
    innocents = scheduler.enqueue_many(poison_node.innocent, [(number,) for number in range(20)])
    for _ in range(12):
        ended = subprocess.run(
            [sys.executable, "-m", "tests.engine.poison_node", url, "poisoned"],
            cwd=ROOT,
            timeout=60,
            check=False,
            capture_output=True,
        )
        if ended.returncode == 0:
            break
    last = poison.job()
    assert last is not None
    assert (last.status, last.crash_count) == (Status.FAILED, 3)
    assert [handle.result(1) for handle in innocents] == list(range(20))
    scheduler.close()
