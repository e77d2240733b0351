"""Every setting, with the specification's default: plain frozen values, validated when they are made.

`ratchet.config` fills them from the environment (prefix ``RATCHET_``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from ratchet.domain.job import DEFAULT_TIMEOUT
from ratchet.domain.priority import BOOST_INTERVAL
from ratchet.errors import ConfigurationError

_ZERO: Final = timedelta()
EXECUTORS: Final = ("threads", "async", "processes")


def _positive(**values: timedelta) -> None:
    for name, value in values.items():
        if value <= _ZERO:
            raise ConfigurationError(f"{name} must be longer than zero, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSettings:
    """Where bodies run and how much is taken at once.

    Attributes:
        threads: slots for sync bodies.
        async_: slots for ``async def`` bodies, all on one event loop.
        processes: slots for bodies with ``executor="processes"``, one child process each.
        batch_size: at most this many jobs per claim, and outcomes not yet written.
        ahead: claim in advance what short jobs are expected to start within this time.
        boost_interval: of priority ageing; zero switches it off.
        require_tags: this node takes only jobs that carry all of these; none: any.
        exclude_tags: this node takes no job that carries any of these.
    """

    threads: int = 8
    async_: int = 100
    processes: int = 0
    batch_size: int = 50
    ahead: timedelta = timedelta(milliseconds=100)
    boost_interval: timedelta = BOOST_INTERVAL
    require_tags: frozenset[str] = frozenset()
    exclude_tags: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("threads", "async_", "processes"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"execution.{name} cannot be negative")
        if not 1 <= self.batch_size <= 1000:
            raise ConfigurationError(
                f"execution.batch_size must lie between 1 and 1000, not {self.batch_size}"
            )
        if not (self.threads or self.async_ or self.processes):
            raise ConfigurationError(
                "a node needs at least one slot: set execution.threads, async_ or processes"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Identity, liveness and recovery (section 9).

    Attributes:
        name: stable node name; None: ``hostname:pid``.
        heartbeat: how often this node reports (never longer than a third of `orphan_grace`).
        orphan_grace: a node silent for longer is dead; at least 3 s.
        max_crash_redeliveries: how many crashes of its node a job survives.
        sweep: how often orphans are looked for (or a third of the grace, if shorter).
    """

    name: str | None = None
    heartbeat: timedelta = timedelta(seconds=10)
    orphan_grace: timedelta = timedelta(seconds=60)
    max_crash_redeliveries: int = 3
    sweep: timedelta = timedelta(seconds=15)

    def __post_init__(self) -> None:
        _positive(**{"node.heartbeat": self.heartbeat, "node.sweep": self.sweep})
        if self.orphan_grace < timedelta(seconds=3):
            raise ConfigurationError(f"node.orphan_grace must be at least 3 s, not {self.orphan_grace}")
        if self.max_crash_redeliveries < 0:
            raise ConfigurationError("node.max_crash_redeliveries cannot be negative")
        if self.name is not None and not self.name.strip():
            raise ConfigurationError("node.name cannot be blank")

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between heartbeats."""
        return min(self.heartbeat.total_seconds(), self.orphan_grace.total_seconds() / 3)

    @property
    def sweep_interval(self) -> float:
        """Seconds between recovery sweeps."""
        return min(self.sweep.total_seconds(), self.orphan_grace.total_seconds() / 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutSettings:
    """Time limits of an attempt (section 5).

    Attributes:
        default: of a job without its own.
        warn_at: share of the timeout after which a warning is logged.
        grace: the cancellation request comes this long before the deadline; zero: only at the deadline.
    """

    default: timedelta = DEFAULT_TIMEOUT
    warn_at: float = 0.8
    grace: timedelta = _ZERO

    def __post_init__(self) -> None:
        _positive(**{"timeouts.default": self.default})
        if not 0.0 < self.warn_at <= 1.0:
            raise ConfigurationError(f"timeouts.warn_at is a share between 0 and 1, not {self.warn_at}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadSettings:
    """Size limits, in bytes of encoded text.

    Attributes:
        arguments: of a job's arguments, and of its params.
        result: beyond it the job succeeds and only the size is kept.
    """

    arguments: int = 100 * 1024
    result: int = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingSettings:
    """Bounds of the adaptive pace (section 4), in seconds.

    Attributes:
        burst: between polls after a wake-up.
        fastest: shortest delay of the normal pace.
        slowest: longest delay of the normal pace.
        idle: the pace in deep idle.
        idle_after: without work for this long leads to deep idle.
    """

    burst: float = 0.5
    fastest: float = 2.0
    slowest: float = 30.0
    idle: float = 60.0
    idle_after: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All groups. `Settings()` is the specification's defaults."""

    execution: ExecutionSettings = field(default_factory=ExecutionSettings)
    node: NodeSettings = field(default_factory=NodeSettings)
    timeouts: TimeoutSettings = field(default_factory=TimeoutSettings)
    payload: PayloadSettings = field(default_factory=PayloadSettings)
    polling: PollingSettings = field(default_factory=PollingSettings)
