"""Log lines of a worker: for people, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final

from ratchet.cli.plain import plain

_NAMES: Final = ("job_id", "job_attempt", "job_node")


class HumanFormatter(logging.Formatter):
    """``2030-01-31 12:00:00.123 WARNING shop.jobs [job 0190... attempt 2 on web-1] message``.

    Control characters are written out: a message may repeat what a job was given by a stranger.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One record; its traceback below it."""
        job = getattr(record, "job_id", None)
        where = f" [job {job} attempt {record.job_attempt} on {record.job_node}]" if job else ""  # type: ignore[attr-defined]
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        line = (
            f"{moment}.{int(record.msecs):03d} {record.levelname:<7} {record.process} {record.name}{where} "
            f"{record.getMessage()}"
        )
        return plain("\n".join([line, *_traces(self, record)]))


class JsonFormatter(logging.Formatter):
    """One object a line: ``time`` (seconds since the epoch), ``level``, ``logger``, ``message``, ``process``,
    and of a body's records ``job_id``, ``job_attempt``, ``job_node``; ``exception`` where there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        entry: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        entry |= {name: value for name in _NAMES if (value := getattr(record, name, None)) is not None}
        traces = _traces(self, record)
        if traces:
            entry["exception"] = "\n".join(traces)
        return json.dumps(entry, ensure_ascii=False)


def _traces(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    found = [record.exc_text or (formatter.formatException(record.exc_info) if record.exc_info else "")]
    found.append(formatter.formatStack(record.stack_info) if record.stack_info else "")
    return [each for each in found if each]


def configure(level: str | None, *, as_json: bool) -> None:
    """Log to standard error, unless the application has set up its own logging.

    Args:
        level: a level's name; None: INFO, or what the application has set.
        as_json: one JSON object a line, in any case.
    """
    root = logging.getLogger()
    if as_json or not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter() if as_json else HumanFormatter())
        root.handlers[:] = [handler]
        if root.level == logging.WARNING:  # the root logger's own default: nobody has chosen
            root.setLevel(logging.INFO)
    if level is not None:
        root.setLevel(level.upper())
