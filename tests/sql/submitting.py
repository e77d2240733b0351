"""Program of test_coordinator and test_waiting: submits one job per line it reads, and says its id."""

from __future__ import annotations

import sys

from ratchet.domain.ids import new_id
from ratchet.domain.job import NewJob
from ratchet_sql.plugin import sqlite

store = sqlite.open(sys.argv[1])
store.counts()
print("ready", flush=True)
for _line in sys.stdin:
    new = NewJob(id=new_id(), target="m:f", payload="[]")
    store.insert([new])
    print(new.id, flush=True)
