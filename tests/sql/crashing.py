"""Program of test_crashes: does one thing to the store and kills itself, without warning, at a given step.

Arguments: URL, what (insert, claim, settle, recover), at which step.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta

from ratchet.domain.ids import new_id
from ratchet.domain.job import NewJob
from ratchet.domain.lifecycle import Trigger
from ratchet.domain.settlement import Change, RunCallback, Settlement, Submit
from ratchet.spi.store import ClaimRequest, RecoverRequest
from ratchet_sql.plugin import sqlite
from ratchet_sql.store import SqliteStore


def main() -> None:
    url, what, where = sys.argv[1:]
    store = sqlite.open(url)
    assert isinstance(store, SqliteStore)

    def step(name: str) -> None:
        if name == where:
            os.kill(os.getpid(), signal.SIGKILL)

    store.counts()
    held = [Change(Trigger.SUCCEED, job_id, seq, result="1") for job_id, seq in store.held("victim")]
    store.database.step = step
    match what:
        case "insert":
            keys = [f"key-{n}" for n in range(3)]
            tags = frozenset({"crash"})
            store.insert(
                [
                    NewJob(
                        id=new_id(), target="m:f", payload="[]", tags=tags, idempotency_key=k, business_key=k
                    )
                    for k in keys
                ]
            )
        case "claim":
            store.claim(ClaimRequest(incarnation="victim", limits={"threads": 10}))
        case "settle":
            new = NewJob(id=new_id(), target="m:f", payload="[]", executor="none", tags=frozenset({"crash"}))
            effects = (RunCallback("on_success", "m:g", "1"), Submit(new))
            store.settle_many([Settlement(change, effects if change is held[0] else ()) for change in held])
        case "recover":
            gone = frozenset({"victim"})
            store.recover(RecoverRequest(grace=timedelta(minutes=1), crash_budget=3, known_gone=gone))
    print("survived", flush=True)


main()
