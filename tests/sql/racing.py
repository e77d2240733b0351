"""Program of test_waiting: submits, claims and settles as fast as it can until all is done.

Arguments: URL, name, how many jobs. Prints the longest time that one write took, and the claims it settled.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta

from ratchet.domain.ids import new_id
from ratchet.domain.job import NewJob
from ratchet.domain.lifecycle import Trigger
from ratchet.domain.settlement import Change, Settlement
from ratchet.spi.store import ClaimRequest, Settled
from ratchet_sql.plugin import sqlite


def main() -> None:
    url, name, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    store = sqlite.open(url)
    store.counts()
    print("ready", flush=True)
    sys.stdin.readline()
    longest = 0.0
    settled: list[str] = []
    for submitted in range(number):
        began = time.perf_counter()
        store.insert([NewJob(id=new_id(), target="m:f", payload="[]")])
        if submitted % 5 == 0:
            for claim in store.claim(ClaimRequest(incarnation=name, limits={"threads": 5}, limit=5)).claims:
                change = Change(
                    Trigger.SUCCEED, claim.job_id, claim.claim_seq, result="1", duration=timedelta()
                )
                assert isinstance(store.settle(Settlement(change)), Settled)
                settled.append(str(claim.job_id))
        longest = max(longest, time.perf_counter() - began)
    print(longest, *settled, flush=True)


main()
