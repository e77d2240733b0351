"""Program of test_forks: a parent that submits from a thread forks children that submit and settle."""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta

from ratchet.domain.ids import new_id
from ratchet.domain.job import NewJob
from ratchet.domain.lifecycle import Trigger
from ratchet.domain.settlement import Change, Settlement
from ratchet.spi.store import ClaimRequest, JobStore, Settled
from ratchet_sql.plugin import sqlite

CHILDREN, JOBS = 20, 5


def submit(store: JobStore, executor: str) -> None:
    store.insert([NewJob(id=new_id(), target="m:f", payload="[]", executor=executor)])


def child(store: JobStore, executor: str) -> None:
    for _ in range(JOBS):
        submit(store, executor)
    done = 0
    while done < JOBS:
        claimed = store.claim(ClaimRequest(incarnation=executor, limits={executor: 2}))
        for claim in claimed.claims:
            change = Change(Trigger.SUCCEED, claim.job_id, claim.claim_seq, result="1", duration=timedelta())
            assert isinstance(store.settle(Settlement(change)), Settled)
            done += 1


def main() -> int:
    store = sqlite.open(sys.argv[1])
    submit(store, "parent")
    stop = threading.Event()
    sent = [1]
    errors: list[BaseException] = []

    def keep_submitting() -> None:
        try:
            while not stop.is_set():
                submit(store, "parent")
                store.counts()
                sent[0] += 1
        except BaseException as error:  # handed to the main thread
            errors.append(error)

    thread = threading.Thread(target=keep_submitting)
    thread.start()
    children = []
    for number in range(CHILDREN):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child(store, f"child-{number}")
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    stop.set()
    thread.join()
    if errors:
        raise errors[0]
    submit(store, "parent")
    print(sum(codes), sent[0] + 1, round(time.process_time(), 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
