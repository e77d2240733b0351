"""The conformance harness of the SQLite store, found by ``ratchet conformance sqlite:///new.db``."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import fields
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit
from uuid import uuid4

from conformance_tests.harness import SettableClock, StoreHarness
from ratchet.domain.job import Job, NewJob
from ratchet.errors import ConfigurationError
from ratchet.spi.store import JobStore
from ratchet_sql.plugin import sqlite
from ratchet_sql.rows import column_value
from ratchet_sql.store import SqliteStore


class SqliteHarness(StoreHarness):
    """A folder of its own with one database file at a time; a new file after each reset.

    Args:
        url: where the folder is made (beside the file that it names) and with which parameters; the file
            itself must not exist or be empty, and is not touched. Without it: in a temporary place.

    Raises:
        ConfigurationError: the URL is malformed, or names a database that is not empty.
    """

    def __init__(self, url: str | None = None) -> None:
        self.clock = SettableClock()
        self._query = ""
        beside: Path | None = None
        if url is not None:
            sqlite.open(url).close()  # opens nothing, but tells what is wrong with the URL
            parts = urlsplit(url)
            beside = Path(unquote(parts.path)[1:]).absolute()
            self._query = f"?{parts.query}" if parts.query else ""
            if beside.exists() and beside.stat().st_size:
                raise ConfigurationError(
                    f"the database {beside} is not empty; name one that does not exist, nothing of yours is used"
                )
            if not beside.parent.is_dir():
                raise ConfigurationError(f"there is no folder {beside.parent}")
        name = f"{beside.name if beside else 'ratchet'}.conformance-"
        self._folder = Path(tempfile.mkdtemp(prefix=name, dir=beside.parent if beside else None))
        self._file: Path | None = None

    @property
    def url(self) -> str:
        """Of the database as it is now."""
        if self._file is None:
            self.reset()
        return f"sqlite:///{quote(str(self._file))}{self._query}"

    def open(self) -> SqliteStore:
        """A further handle on the file."""
        store = sqlite.open(self.url, clock=self.clock)
        assert isinstance(store, SqliteStore)
        return store

    def reset(self) -> None:
        """Another file; the old one is removed."""
        self.clock = SettableClock()
        if self._file is not None:
            for each in self._folder.glob(f"{self._file.name}*"):
                each.unlink()
        self._file = self._folder / f"{uuid4().hex}.db"

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def seed(self, job: Job) -> None:
        """Submit it, then write the columns that only transitions write."""
        shared = {each.name for each in fields(NewJob)} & {each.name for each in fields(Job)}
        written = sorted({each.name for each in fields(Job)} - shared)
        with closing(self.open()) as store:
            store.insert([NewJob(**{name: getattr(job, name) for name in shared}, at=job.scheduled_time)])
            columns = ", ".join(f"{name} = ?" for name in written)
            values = [column_value(getattr(job, name)) for name in written]
            store.database.write(
                lambda execute, now: execute(
                    f"UPDATE ratchet_job SET {columns} WHERE id = ?", [*values, str(job.id)]
                )
            )

    def crash_points(self, store: JobStore, reached: Callable[[str], None]) -> None:
        """The hook between the steps of a unit of work."""
        assert isinstance(store, SqliteStore)
        store.database.step = reached

    def open_process(self) -> Callable[[], JobStore]:
        """Opens the file by the store's entry point."""
        return partial(sqlite.open, self.url)

    def versions(self) -> Mapping[str, str]:
        """Of the distribution and of SQLite."""
        try:
            store = version("ratchet-jobs")
        except PackageNotFoundError:
            store = "not installed"
        return {"store": f"sqlite (ratchet-jobs {store})", "database": f"SQLite {sqlite3.sqlite_version}"}
