"""huey on SQLite with its defaults (WAL, synchronous FULL): the fastest peer on this store.

A task answers a value, so that its end is recorded in huey's result store, as ours is in the job's row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huey import SqliteHuey  # type: ignore[import-untyped]

from benchmarks import bodies


class Peer:
    """A queue in one file.

    Args:
        file: of the queue.
        fsync: False: huey's own way to give up durability for speed.
    """

    def __init__(self, file: Path, *, fsync: bool | None = None) -> None:
        self.huey: Any = SqliteHuey("bench", filename=str(file), fsync=fsync)

        @self.huey.task(name="noop")  # type: ignore[untyped-decorator]
        def noop() -> bool:
            bodies.marked_noop()
            return True

        self.noop = noop

    def submit(self, count: int) -> None:
        """One by one; huey has no bulk submission."""
        for _ in range(count):
            self.noop()

    def done(self) -> int:
        """How many results are recorded."""
        count: int = self.huey.storage.result_store_size()
        return count

    def consumer(self, threads: int) -> Any:
        """A consumer of its own threads."""
        return self.huey.create_consumer(workers=threads, periodic=False)
