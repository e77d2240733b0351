"""``ratchet worker --processes N``: keeps N workers running, hands signals on, and ends when all have ended."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from ratchet.cli import ERROR, OK
from ratchet.cli.link import HURRY, READY, STOP, VARIABLE
from ratchet.cli.signals import Signals

log: Final = logging.getLogger("ratchet.worker")

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
"""Back-off between restarts of one worker, doubling."""
HEALTHY_AFTER: Final = 60.0
"""A worker that has run this long starts its back-off anew."""
KILL_AFTER: Final = 5.0
"""A worker still there this long after the time-out of its shutdown is killed."""


@dataclass(slots=True)
class _Slot:
    """One of the N workers, through all its restarts."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    line: socket.socket | None = None
    ever_ready: bool = False
    started: float = 0.0
    pause: float = FIRST_PAUSE
    due: float | None = None
    codes: list[int] = field(default_factory=list)


class Supervisor:
    """Runs the workers of one command.

    Args:
        arguments: of ``ratchet worker`` without ``--processes`` and ``--name``.
        processes: how many.
        name: node name; each worker's is this with ``-1``, ``-2``, ... None: each has its own default.
        stop_timeout: seconds that a worker has for its shutdown.
    """

    def __init__(
        self, arguments: Sequence[str], *, processes: int, name: str | None, stop_timeout: float
    ) -> None:
        self._arguments, self._name, self._timeout = list(arguments), name, stop_timeout
        self._slots = [_Slot(number) for number in range(1, processes + 1)]
        self._stop_at: float | None = None
        self._hurried = False
        self._fatal: int | None = None

    def run(self) -> int:
        """Until every worker has ended; answers the exit code."""
        self._signals = Signals(signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
        try:
            for slot in self._slots:
                self._start(slot)
            while any(slot.process is not None or slot.due is not None for slot in self._slots):
                self._look()
        finally:
            for slot in self._slots:  # only if something raised above: no worker is left behind
                if slot.process is not None:
                    slot.process.kill()
                    slot.process.wait()
            self._signals.close()
        if self._fatal is not None:
            return self._fatal
        last = [slot.codes[-1] for slot in self._slots if slot.codes]
        return next((code if code > 0 else ERROR for code in last if code != 0), OK)

    # -- one worker

    def _start(self, slot: _Slot) -> None:
        name = None if self._name is None else f"{self._name}-{slot.number}"
        slot.process, slot.line = spawn(self._arguments, name=name)
        slot.due, slot.started = None, time.monotonic()

    def _reap(self, slot: _Slot) -> None:
        process = slot.process
        if process is None or process.poll() is None:
            return
        code = process.returncode
        slot.codes.append(code)
        self._hear(slot)
        if slot.line is not None:
            slot.line.close()
        slot.process = slot.line = None
        if self._stop_at is not None:
            return
        if code == OK:
            log.info("worker %d has ended", process.pid)
        elif code > 0 and not slot.ever_ready and code in (ERROR, 2):
            # It has never run: the same command would fail again.
            self._fatal = code
            self._stop("a worker could not start")
        else:
            if time.monotonic() - slot.started >= HEALTHY_AFTER:
                slot.pause = FIRST_PAUSE
            how = f"exit code {code}" if code >= 0 else _signal_name(-code)
            log.error("worker %d died (%s); it is started again in %g s", process.pid, how, slot.pause)
            slot.due = time.monotonic() + slot.pause
            slot.pause = min(2 * slot.pause, LONGEST_PAUSE)

    def _hear(self, slot: _Slot) -> None:
        """What a worker said stays readable after its death."""
        if slot.line is not None:
            with suppress(OSError):
                slot.ever_ready |= slot.line.recv(64) == READY

    def _say(self, word: bytes) -> None:
        for slot in self._slots:
            if slot.line is not None:
                with suppress(OSError):
                    slot.line.send(word)

    # -- all of them

    def _look(self) -> None:
        now = time.monotonic()
        moments = [slot.due for slot in self._slots if slot.due is not None]
        if self._stop_at is not None:
            moments.append(self._stop_at)
        timeout = max(0.0, min(moments) - now) if moments else None
        select.select([self._signals], [], [], timeout)
        for number in self._signals.take():
            if number != signal.SIGCHLD:
                self._asked(signal.Signals(number).name)
        for slot in self._slots:
            self._reap(slot)
        now = time.monotonic()
        for slot in self._slots:
            if slot.due is not None and now >= slot.due:
                self._start(slot)
        if self._stop_at is not None and now >= self._stop_at:
            self._kill()

    def _asked(self, what: str) -> None:
        if self._stop_at is None:
            self._stop(what)
        elif not self._hurried:
            self._hurried = True
            self._stop_at = min(self._stop_at, time.monotonic() + KILL_AFTER)
            self._say(HURRY)

    def _stop(self, why: str) -> None:
        log.info("%s: stopping %d workers", why, sum(slot.process is not None for slot in self._slots))
        self._stop_at = time.monotonic() + self._timeout + KILL_AFTER
        for slot in self._slots:
            slot.due = None
        self._say(STOP)

    def _kill(self) -> None:
        for slot in self._slots:
            if slot.process is not None:
                log.error("worker %d does not end and is killed", slot.process.pid)
                slot.process.kill()
        self._stop_at = time.monotonic() + KILL_AFTER


def spawn(
    arguments: Sequence[str], *, name: str | None = None, output: int | None = None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A worker process that ends when this one does, and our end of the line to it.

    Args:
        arguments: of ``ratchet worker``.
        name: its node name.
        output: a file for what it writes; None: where this process writes.
    """
    ours, theirs = socket.socketpair()
    command = [sys.executable, *_interpreter_flags(), "-m", "ratchet", "worker", *arguments]
    if name is not None:
        command += ["--name", name]
    with theirs:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, VARIABLE: str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
        )
    ours.setblocking(False)
    return process, ours


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _interpreter_flags() -> list[str]:
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags
