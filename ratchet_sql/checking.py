"""What ``ratchet doctor`` finds out about a SQLite file."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from typing import Any, Final

from ratchet.spi.doctor import Finding, Level
from ratchet_sql import rendered
from ratchet_sql.connection import Database, Execute

_SYNCHRONOUS: Final = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
_WHOLE: Final = {"NODES", "COUNTS"}
"""What may be read from end to end: small by nature, or a question about everything."""


def checks(database: Database, *, quick: bool) -> list[Finding]:
    """See `ratchet.spi.doctor.CheckedStore.checks`."""

    def look(execute: Execute) -> list[Finding]:
        found = [_write_ahead_log(execute)]
        if not quick:
            found += [_synchronous(execute), _integrity(execute), *_plans(execute)]
        return found

    return database.reading(look)


def _value(execute: Execute, sql: str) -> Any:
    return execute(sql).fetchone()[0]


def _write_ahead_log(execute: Execute) -> Finding:
    mode = _value(execute, "PRAGMA journal_mode")
    if mode == "wal":
        return Finding(
            "journal", Level.OK, "a write-ahead log: readers and the writer do not wait for each other"
        )
    return Finding(
        "journal",
        Level.ERROR,
        f"the journal mode is {mode!r}, set by another program; set it back: PRAGMA journal_mode = WAL",
    )


def _synchronous(execute: Execute) -> Finding:
    level = _SYNCHRONOUS.get(_value(execute, "PRAGMA synchronous"), "?")
    if level in ("FULL", "EXTRA"):
        return Finding("synchronous", Level.OK, f"{level}: what was acknowledged survives a power cut")
    return Finding(
        "synchronous",
        Level.WARNING,
        f"{level}: a power cut can undo the last acknowledged jobs; open it without synchronous={level} to keep them",
    )


def _integrity(execute: Execute) -> Finding:
    told = str(_value(execute, "PRAGMA quick_check(1)"))
    if told == "ok":
        return Finding("integrity", Level.OK, f"sound, says SQLite {sqlite3.sqlite_version}")
    return Finding(
        "integrity",
        Level.ERROR,
        f"the file is damaged ({told}); stop the nodes, then restore a backup, or save what can be with "
        "the sqlite3 command .recover",
    )


def _plans(execute: Execute) -> Iterator[Finding]:
    """A finding for each hot statement that would not be answered from an index; one if all are."""
    bad = 0
    statements = {
        name: text for name, text in vars(rendered).items() if name.isupper() and isinstance(text, str)
    }
    for name in sorted(statements.keys() - _WHOLE):
        scan = _scan(execute, statements[name])
        if scan is not None:
            bad += 1
            yield Finding(
                "plans",
                Level.ERROR,
                f"{name} reads more than it must ({scan}): an index is missing, or statistics of ANALYZE mislead the "
                "planner; compare the indexes with those of a new database, and drop the table sqlite_stat1",
            )
    if not bad:
        yield Finding("plans", Level.OK, f"all {len(statements) - len(_WHOLE)} hot statements use an index")


def _scan(execute: Execute, text: str) -> str | None:
    """The step of the plan that scans a table or sorts; None: there is none."""
    words = re.findall(r":(\w+)", text)
    parameters = {word: "[]" if f"json_each(:{word})" in text else 1 for word in words}
    for row in execute(f"EXPLAIN QUERY PLAN {text}", parameters).fetchall():
        step = str(row[3])
        if re.search(r"\bSCAN ratchet_", step) or "TEMP B-TREE" in step:
            return step
    return None
