"""Program of test_faults: submits until the file may not grow, then until it may again.

Says each acknowledged id and each error, a line each.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from ratchet.domain.ids import new_id
from ratchet.domain.job import NewJob
from ratchet.errors import StoreError
from ratchet_sql.plugin import sqlite


def main() -> None:
    url = sys.argv[1]
    store = sqlite.open(url)

    def submit() -> bool:
        new = NewJob(id=new_id(), target="m:f", payload="x" * 5000)
        try:
            store.insert([new])
        except StoreError as error:
            print("error", type(error).__name__, str(error), sep="\t", flush=True)
            return False
        print("stored", new.id, sep="\t", flush=True)
        return True

    submit()
    size = Path(url.removeprefix("sqlite:///") + "-wal").stat().st_size
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100_000, hard))
    while submit():
        pass
    submit()
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    for _ in range(5):
        submit()


main()
