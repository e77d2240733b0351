"""Puts job id, attempt and node into every log record of a body (section 5)."""

from __future__ import annotations

import logging
import threading
from typing import Any

from ratchet.context import current_job_or_none

_lock = threading.Lock()
_installed = False


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
