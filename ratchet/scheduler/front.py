"""The scheduler itself: made from a URL or from parts, started and stopped."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ratchet.domain.options import seconds_of
from ratchet.engine.node import STOP_TIMEOUT, Node, Stopped
from ratchet.errors import ConfigurationError, NotRunning, UsageError
from ratchet.plugins import open_store
from ratchet.scheduler.control import Controlling
from ratchet.settings import Settings
from ratchet.spi.capabilities import Capability

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType
    from typing import Self

    from ratchet.spi.clock import Clock

log = logging.getLogger("ratchet")


class Scheduler(Controlling):
    """Submits, controls and (once started) executes jobs.

    Make it with `from_url`, or hand it a store of your own. It can submit without being started; only a
    started one executes. Thread-safe; after a fork the child has its own, not started. A started one runs until
    `stop` or the end of the process: letting go of the last reference (``del scheduler``) stops nothing.

    Args:
        store: where the jobs are.
        allow: module prefixes whose functions may be jobs; decorated functions are allowed as they are.
        settings: everything that can be set; default: the specification's values.
        policy: instead of `allow`: your own rules.
        codec, sanitizer, retry_policy, resilience, services, coordinator: your own, instead of the shipped ones.

    Raises:
        ConfigurationError: parts that do not fit together.
    """

    @classmethod
    def from_url(
        cls,
        url: str | None = None,
        *,
        allow: Iterable[str] = (),
        settings: Settings | None = None,
        clock: Clock | None = None,
        auto_upgrade: bool = False,
        **parts: Any,
    ) -> Self:
        """A scheduler on the store that the URL names; connects at first use.

        Args:
            url: ``sqlite:///jobs.db``, ``memory://``, ...; None: the environment's ``RATCHET_URL``.
            allow: as for the class.
            settings: everything that can be set; None: the environment's ``RATCHET_<GROUP>__<KEY>``
                (`ratchet.config.RatchetSettings`), else the defaults.
            clock: replaces store time (tests).
            auto_upgrade: bring the schema of a database server up to date at first use.
            parts: the other arguments of the class.

        Raises:
            UnknownScheme, MissingExtra, ConfigurationError: see there.
        """
        url = url or os.environ.get("RATCHET_URL")
        if not url:
            raise ConfigurationError("no store URL: pass one, like sqlite:///jobs.db, or set RATCHET_URL")
        if settings is None:
            settings = _settings_from_environment()
        store = open_store(url, clock=clock, auto_upgrade=auto_upgrade)
        return cls(store, allow=allow, settings=settings, **parts)

    # -- running a node

    def start(self, *, loop: asyncio.AbstractEventLoop | None = None) -> Self:
        """Begin to execute jobs in this process.

        Args:
            loop: the application's event loop for async bodies; None: an own one on its own thread.

        Raises:
            ConfigurationError: the target policy is empty; the node name is taken.
            NotRunning: already started. Of several threads that call it at once exactly one starts it.
            StoreError: the store cannot be reached.
        """
        if self._is_inside():  # of a node that is being stopped, too: waiting for that would hold it up
            raise NotRunning("this scheduler is running already")
        with self._starting:
            if self._running_node() is not None:
                raise NotRunning("this scheduler is running already")
            self._node = self._started(loop)
        return self

    def _started(self, loop: asyncio.AbstractEventLoop | None) -> Node:
        if self.policy.is_empty:
            raise ConfigurationError(
                "nothing may be executed: name your modules, like Scheduler(..., allow=['shop']), "
                "or decorate functions with @scheduler.job"
            )
        missing = sorted(set(Capability) - set(self.store.capabilities) - {Capability.WAKE_UPS})
        if missing:
            log.info("features off, because the store does not offer them: %s", ", ".join(missing))
        node = Node(
            self.store,
            self.settings,
            pipeline=self._pipeline,
            coordinator=self._new_coordinator(),
            bus=self._bus,
            waiters=self._waiters,
            make_child=self._make_child,
            loop=loop,
        )
        node.start()
        return node

    def stop(self, timeout: float | timedelta = STOP_TIMEOUT) -> Stopped:
        """Stop claiming, finish or give back what runs, deregister (specification, section 10).

        During a `start` or `stop` of another thread it waits for that, and stops what runs then.

        Args:
            timeout: for all of it, in seconds or as a timedelta (default 25 s).

        Returns:
            What was released, and which bodies still run. Without a running node: nothing.

        Raises:
            UsageError: called from a job or a callback of this scheduler, or on the event loop of its async
                bodies: it would wait for its own caller. Let another thread call it, like
                ``threading.Thread(target=scheduler.stop).start()``.
        """
        seconds = seconds_of("timeout", timeout)
        if self._is_inside():
            raise UsageError(
                "stop() would wait for the job, callback or event loop that calls it; call it from another "
                "thread, like threading.Thread(target=scheduler.stop).start()"
            )
        with self._starting:
            node, self._node = self._running_node(), None
            if node is None:
                return Stopped(drained=True, released=(), stuck=(), unwritten=0)
            self._stopping = node
            try:
                stopped = node.stop(seconds)
            finally:
                self._stopping = None
            if stopped.stuck:
                log.error("%d bodies still run after the shutdown: %s", len(stopped.stuck), stopped.stuck)
            self._bus.drain(min(1.0, seconds))
        return stopped

    def _is_inside(self) -> bool:
        node = self._running_node() or self._stopping
        return node is not None and node.is_inside()

    def close(self) -> None:
        """Stop, if running, and let go of the store; errors as of `stop`."""
        self.stop()
        if self._speaker is not None:
            self._speaker.close()
        self._bus.close()
        self.store.close()

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def __repr__(self) -> str:
        return f"<Scheduler on {type(self.store).__name__}, {'running' if self.node else 'not running'}>"


def _settings_from_environment() -> Settings | None:
    """The settings model is loaded only if there is something to read."""
    groups = {f"RATCHET_{field.name.upper()}" for field in fields(Settings)}
    names = [name.upper() for name in os.environ]
    if not any(name in groups or (name.startswith("RATCHET_") and "__" in name) for name in names):
        return None
    from ratchet.config import RatchetSettings

    return RatchetSettings().to_settings()
