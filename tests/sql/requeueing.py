"""Program of test_bulk: requeues the dead-letter queue page by page, as an operator's script would.

Arguments: URL, size of a page, after how many pages to kill itself in the middle of the next (0: never).
Prints how many it requeued, which it was told were skipped, and by how many MB its memory grew.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

from ratchet.domain.lifecycle import Trigger
from ratchet.spi.store import Selection
from ratchet_sql.plugin import sqlite
from ratchet_sql.store import SqliteStore


def main() -> None:
    url, page, fatal = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    store = sqlite.open(url)
    assert isinstance(store, SqliteStore)
    selection = Selection(error="Refused")
    store.count(selection)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    requeued, pages = 0, 0
    skipped: set[str] = set()

    def step(name: str) -> None:
        if fatal and pages == fatal and name == "updated":
            os.kill(os.getpid(), signal.SIGKILL)

    store.database.step = step
    while True:
        answer = store.apply_where(selection, Trigger.REQUEUE, limit=page, on_conflict="skip")
        pages += 1
        requeued += len(answer.ids)
        skipped |= {str(job_id) for job_id in answer.skipped}
        print(requeued, flush=True)
        if not answer.ids:
            break
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print("skipped", grown, *sorted(skipped), flush=True)


main()
