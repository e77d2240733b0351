"""How log records cross from a child process to its node: as text and plain values, never as objects."""

import contextlib
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Final

from ratchet.engine.child_wire import Message
from ratchet.engine.logs import install

__all__ = ["explicit_levels", "forward_logging", "restore_record"]

# A body that logs its whole input must not fill the node's memory; the text says that it was cut.
_TEXT_LIMIT: Final = 64 * 1024
_CARRIED: Final = ("name", "levelno", "levelname", "pathname", "lineno", "funcName", "created")
_OWN: Final = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
    "message",
    "asctime",
    "taskName",
}
_PLAIN: Final = (str, int, float, bool, type(None))
_formatter: Final = logging.Formatter()


def explicit_levels() -> dict[str, int]:
    """The levels that were set on loggers of this process; the root logger's under the empty name."""
    levels = {"": logging.getLogger().level}
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET:
            levels[name] = logger.level
    return levels


def forward_logging(levels: Mapping[str, int], send: Callable[[Message], bool]) -> None:
    """Make `send` the only destination of this process's root logger, with the node's levels.

    `send` answers False for a record it does not take (no body is running); that one goes to standard error.
    """
    install()
    root = logging.getLogger()
    root.handlers[:] = [_Forward(send)]
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def restore_record(message: Message) -> logging.LogRecord:
    """The record that a child sent, as one of this process.

    It carries the child's process id, the identity of the job it was made in, and no arguments: its message
    was formatted where it was made.
    """
    record = logging.makeLogRecord(message["extra"])
    made_here = record.created
    for name in _CARRIED:
        setattr(record, name, message[name])
    record.msg, record.args = message["text"], ()
    record.exc_text, record.stack_info = message["exc_text"], message["stack"]
    record.process, record.processName = message["process"], "ratchet-child"
    record.threadName = message["thread"]
    record.filename = record.pathname.rpartition("/")[2]
    record.module = record.filename.removesuffix(".py")
    record.msecs = record.created % 1 * 1000
    record.relativeCreated += (record.created - made_here) * 1000
    return record


class _Forward(logging.Handler):
    def __init__(self, send: Callable[[Message], bool]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        # Formatting runs the job's code (__str__ of an argument), which may raise anything at all.
        try:
            taken = self._send(_to_message(record))
        except BaseException:  # noqa: BLE001 - a log line never changes how a body ends
            taken = False
        if not taken and record.levelno >= logging.WARNING:
            with contextlib.suppress(BaseException):
                sys.stderr.write(f"{_message_of(record)}\n")


def _to_message(record: logging.LogRecord) -> Message:
    extra = {
        name: value
        for name, value in record.__dict__.items()
        if name not in _OWN and isinstance(name, str) and type(value) in _PLAIN
    }
    message: Message = {name: getattr(record, name) for name in _CARRIED}
    message["text"] = _message_of(record)
    message["exc_text"] = _traceback_of(record)
    message["stack"] = _cut(record.stack_info) if record.stack_info else None
    message["process"] = record.process
    message["thread"] = record.threadName
    message["extra"] = extra
    return message


def _message_of(record: logging.LogRecord) -> str:
    try:
        return _cut(record.getMessage())
    except BaseException as problem:  # noqa: BLE001 - see emit
        template = record.msg if type(record.msg) is str else f"<{type(record.msg).__name__}>"
        return _cut(f"{template} (its arguments cannot be formatted: {type(problem).__name__})")


def _traceback_of(record: logging.LogRecord) -> str | None:
    if record.exc_text:
        return _cut(record.exc_text)
    if not record.exc_info or record.exc_info[0] is None:
        return None
    try:
        return _cut(_formatter.formatException(record.exc_info))
    except BaseException as problem:  # noqa: BLE001 - see emit
        return f"{record.exc_info[0].__name__} (its traceback cannot be formatted: {type(problem).__name__})"


def _cut(text: str) -> str:
    if len(text) <= _TEXT_LIMIT:
        return text
    return f"{text[:_TEXT_LIMIT]}... ({len(text):,} characters, cut)"
