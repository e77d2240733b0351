"""Which conflict a settlement is told whose submitted jobs meet several."""

from __future__ import annotations

import pytest

from conformance_tests.driver import new_job, request
from ratchet.domain.lifecycle import Trigger
from ratchet.domain.settlement import Change, Settlement, Submit
from ratchet.errors import DuplicateBusinessKey, DuplicateIdempotencyKey
from ratchet.plugins import open_store


@pytest.mark.parametrize("places", [[(0, 0)], [(1, 0), (0, 1)]], ids=["one job", "two jobs"])
def test_a_taken_idempotency_key_is_told_before_a_held_business_key(
    store_url: str, places: list[tuple[int, int]]
) -> None:
    """Of both kinds of conflict every store tells the idempotency key's, and changes nothing."""
    store = open_store(store_url)
    store.insert([new_job(idempotency_key="i", business_key="b", executor="none"), new_job()])
    (held,) = store.claim(request()).claims
    submits = tuple(
        Submit(new_job(business_key="b" if b == 0 else None, idempotency_key="i" if i == 0 else None))
        for i, b in places
    )
    done = Change(Trigger.SUCCEED, held.job_id, claim_seq=held.claim_seq, result="1")
    with pytest.raises(DuplicateIdempotencyKey):
        store.settle(Settlement(done, submits))
    assert store.held("node-1") == [(held.job_id, held.claim_seq)]
    with pytest.raises(DuplicateBusinessKey):
        store.settle(Settlement(done, (Submit(new_job(business_key="b")),)))
    store.settle(Settlement(done))
    store.close()
