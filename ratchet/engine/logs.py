"""What goes into log records: of a body its job, attempt and node (section 5), of an error no secret (section 7)."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from typing import Any, Final

from ratchet.context import current_job_or_none
from ratchet.defaults.sanitizer import DefaultErrorSanitizer, safe_sanitize, sanitize_text

_TRACE_LIMIT: Final = 20_000
_sanitizer: Final = DefaultErrorSanitizer()
_lock = threading.Lock()
_installed = False
_APART: Final = 1.0


class Sparse:
    """Which failures of one loop get a line: the 1st, 2nd, 4th, 8th ... in a row, and never two within a second."""

    def __init__(self) -> None:
        self._next, self._last = 1, float("-inf")

    def wants(self, failures: int) -> bool:
        """True if failure number `failures` in a row is to be logged; what a second is too early for comes later."""
        if failures <= 1:
            self._next = 1
        now = time.monotonic()
        if failures < self._next or now - self._last < _APART:
            return False
        self._next, self._last = 2 * failures, now
        return True


def install() -> None:
    """Wrap the log record factory, once per process.

    Every record gets ``job_id``, ``job_attempt`` and ``job_node``: None outside a body, so that a
    format string may name them anywhere.
    """
    global _installed
    with _lock:
        if _installed:
            return
        _installed = True
        inner = logging.getLogRecordFactory()

        def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = inner(*args, **kwargs)
            context = current_job_or_none()
            if context is None:
                record.job_id = record.job_attempt = record.job_node = None
            else:
                record.job_id = str(context.id)
                record.job_attempt = context.attempt
                record.job_node = context.node
            return record

        logging.setLogRecordFactory(factory)


def told(error: BaseException) -> str:
    """An error as our own log may show it: ``Type: message`` without secrets. Never raises."""
    return safe_sanitize(_sanitizer, error)


def traced(error: BaseException) -> str:
    """Its traceback, likewise: source lines and the messages of causes may have secrets, too. Never raises."""
    try:
        return sanitize_text("".join(traceback.format_exception(error)).rstrip(), limit=_TRACE_LIMIT)
    except BaseException:  # noqa: BLE001 - formatting runs the code of whatever was raised
        return told(error)
