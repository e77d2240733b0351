"""Program of test_schema: opens the store when told to, submits one job, and says what became of it."""

from __future__ import annotations

import sys

from ratchet.domain.ids import new_id
from ratchet.domain.job import NewJob
from ratchet_sql.plugin import sqlite

store = sqlite.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
answer = store.insert([NewJob(id=new_id(), target="m:f", payload="[]")])
print(answer[0].created, flush=True)
