"""One worker process: runs a scheduler's node until a signal, its supervisor or its own state ends it (section 10).

Imports neither typer nor rich: what a worker does not need does not delay its first job.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ratchet.cli import ERROR, OK, STUCK, logs
from ratchet.cli.link import HURRY, Link
from ratchet.cli.loading import load_scheduler, overridden
from ratchet.cli.signals import Signals

if TYPE_CHECKING:
    from ratchet.engine.node import Stopped
    from ratchet.scheduler import Scheduler

log: Final = logging.getLogger("ratchet.worker")

LOOK: Final = 0.5
"""How often, in seconds, the node is asked whether it is healthy."""
SICK_TIMEOUT: Final = 5.0
"""An unhealthy node gives its healthy bodies this long, or `stop_timeout` if that is shorter."""
PATIENCE: Final = 1.5
"""A shutdown that is not through this long after its time-out (the store does not answer) is left behind."""
EXIT_HOOKS: Final = 1.0
"""What the application has registered with `atexit` may take this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What the command line says about a worker; None leaves it to the application's settings.

    Attributes:
        app, app_dir: see `ratchet.cli.loading.load_scheduler`.
        threads, async_, process_slots: slots per executor.
        name: stable node name.
        stop_timeout: seconds for a shutdown.
        log_level, log_json: see `ratchet.cli.logs.configure`.
    """

    app: str
    app_dir: Path | None = None
    threads: int | None = None
    async_: int | None = None
    process_slots: int | None = None
    name: str | None = None
    stop_timeout: float = 25.0
    log_level: str | None = None
    log_json: bool = False


def run_worker(options: WorkerOptions) -> int:
    """Run until told to stop; answers the exit code, unless the process has to end from here.

    Raises:
        RatchetError: it could not start.
    """
    link = Link.inherited()
    scheduler = load_scheduler(options.app, options.app_dir)
    scheduler.settings = overridden(
        scheduler.settings,
        threads=options.threads,
        async_=options.async_,
        processes=options.process_slots,
        name=options.name,
    )
    logs.configure(options.log_level, as_json=options.log_json)
    code, bodies_left = Worker(scheduler, options.stop_timeout, link).run()
    return leave(code, at_once=bodies_left)


class Worker:
    """Starts the node, waits, and stops it once.

    Args:
        scheduler: not started.
        stop_timeout: seconds.
        link: to a supervisor.
    """

    def __init__(self, scheduler: Scheduler, stop_timeout: float, link: Link | None = None) -> None:
        self._scheduler, self._timeout, self._link = scheduler, stop_timeout, link
        self._stopper: threading.Thread | None = None
        self._stopped: Stopped | None = None
        self._give_up = 0.0
        self._sick = self._done = False
        self._signaled = 0

    def run(self) -> tuple[int, bool]:
        """The exit code, and whether bodies still run (or may)."""
        self._signals = Signals(signal.SIGTERM, signal.SIGINT)
        try:
            self._scheduler.start()
            gc.freeze()  # what is there by now stays; no later collection walks through it
            gc.enable()  # it was off while loading: see `ratchet.cli.main`
            node = self._scheduler.node
            assert node is not None
            self._node = node
            slots = node.settings.execution
            log.info("node %s runs: %d threads, %d async, %d processes", node.info.name, slots.threads, slots.async_,
                     slots.processes)  # fmt: skip
            if self._link is not None:
                self._link.ready()
            while not self._is_over():
                self._look()
        finally:
            self._signals.close()
        return self._verdict()

    def _is_over(self) -> bool:
        if self._stopper is None:
            return False
        return self._done or time.monotonic() >= self._give_up

    def _look(self) -> None:
        sources: list[Signals | Link] = [self._signals]
        if self._link is not None:
            sources.append(self._link)
        readable, _, _ = select.select(sources, [], [], LOOK)
        if self._signals in readable:
            for number in self._signals.take():
                self._asked(signal.Signals(number).name)
        if self._link is not None and self._link in readable:
            self._heard(self._link.take())
        if self._stopper is None and self._node.state == "unhealthy":
            self._sick = True
            log.critical("this node is unhealthy (%s) and ends", self._node.reason)
            self._begin_stop(min(self._timeout, SICK_TIMEOUT))

    def _asked(self, what: str) -> None:
        self._signaled += 1
        if self._stopper is None:
            log.info("%s: stopping within %g s; a second one skips the wait", what, self._timeout)
            self._begin_stop(self._timeout)
        elif self._signaled > 1:  # the first one may come after the supervisor's word for the same event
            self._hurry(what)

    def _heard(self, words: bytes | None) -> None:
        if words is None:
            self._link = None
            if self._stopper is None:
                log.warning("the supervisor is gone: stopping within %g s", self._timeout)
                self._begin_stop(self._timeout)
            return
        if words and self._stopper is None:
            self._begin_stop(self._timeout)
        if HURRY in words:
            self._hurry("the supervisor")

    def _hurry(self, who: str) -> None:
        log.warning("%s again: not waiting any longer", who)
        self._node.hurry()
        self._give_up = min(self._give_up, time.monotonic() + 1.0 + PATIENCE)

    def _begin_stop(self, timeout: float) -> None:
        self._give_up = time.monotonic() + timeout + PATIENCE
        # On a thread of its own, so that the main thread can still hear a second signal.
        self._stopper = threading.Thread(target=self._stop, args=(timeout,), name="ratchet-stop", daemon=True)
        self._stopper.start()

    def _stop(self, timeout: float) -> None:
        try:
            self._stopped = self._scheduler.stop(timeout)
            self._scheduler.store.close()
        except Exception:
            log.exception("the shutdown failed")
        finally:
            self._done = True
            self._signals.wake()

    def _verdict(self) -> tuple[int, bool]:
        stopped = self._stopped
        if stopped is None:
            log.error("the shutdown did not come to its end; other nodes recover what this one held")
            return STUCK if self._sick else ERROR, True
        if stopped.released:
            log.info("gave back %d unfinished jobs; nothing is charged to them", len(stopped.released))
        if stopped.stuck:
            log.warning("%d bodies still run and end with this process", len(stopped.stuck))
        if stopped.unwritten:
            log.error("%d outcomes could not be written; those jobs will be recovered", stopped.unwritten)
        log.info("stopped")
        if self._sick or stopped.stuck:
            return STUCK, bool(stopped.stuck)
        return (ERROR if stopped.unwritten else OK), False


def leave(code: int, *, at_once: bool) -> int:
    """End the process with `code`, whatever threads are left.

    Args:
        code: the exit code.
        at_once: without the interpreter's own ending, which would wait for what never ends. Otherwise the
            application's exit hooks run, for at most a second.
    """
    if not at_once:
        threading.Thread(target=_end_later, args=(code,), name="ratchet-exit", daemon=True).start()
        return code
    # A stuck body may hold the lock of a stream or of a log handler.
    flusher = threading.Thread(target=_flush, name="ratchet-flush", daemon=True)
    flusher.start()
    flusher.join(0.3)
    os._exit(code)


def _end_later(code: int) -> None:
    time.sleep(EXIT_HOOKS)
    os._exit(code)


def _flush() -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
