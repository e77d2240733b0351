"""Every setting, with the specification's default: plain frozen values, validated when they are made.

`ratchet.config` fills them from the environment (prefix ``RATCHET_``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Final

from ratchet.domain.job import DEFAULT_TIMEOUT, MAX_RETRIES, MAX_TIMEOUT
from ratchet.domain.options import check_text, clean_tags
from ratchet.domain.priority import BOOST_INTERVAL
from ratchet.domain.value import ValueObject
from ratchet.errors import ConfigurationError, UsageError

_ZERO: Final = timedelta()
EXECUTORS: Final = ("threads", "async", "processes")


MOST_SLOTS: Final = 100_000
MOST_BYTES: Final = 2 * 1024**2
"""Of one text of a job: with it the largest job fits whatever a store keeps as one record, 16 MB in MongoDB."""


def _whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{name} is a whole number, not {value!r}")
    if not least <= value <= most:
        raise ConfigurationError(f"{name} must lie between {least:,} and {most:,}, not {value}")


def _duration(name: str, value: object, *, positive: bool = False, most: timedelta = MAX_TIMEOUT) -> None:
    if not isinstance(value, timedelta):
        raise ConfigurationError(f"{name} is a timedelta, like timedelta(seconds=10), not {value!r}")
    if value < _ZERO or (positive and not value):
        raise ConfigurationError(
            f"{name} must be {'longer than zero' if positive else '0 or longer'}, not {value}"
        )
    if value > most:
        raise ConfigurationError(f"{name} may be {most.days:,} days at most, not {value}")


def _number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigurationError(f"{name} is a number, not {value!r}")


def _tags(name: str, value: frozenset[str]) -> frozenset[str]:
    try:
        return clean_tags(value)
    except UsageError as error:
        raise ConfigurationError(f"{name}: {error}") from None


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class ExecutionSettings(ValueObject):
    """Where bodies run and how much is taken at once.

    Attributes:
        threads: slots for sync bodies.
        async_: slots for ``async def`` bodies, all on one event loop.
        processes: slots for bodies with ``executor="processes"``, one child process each.
        batch_size: at most this many jobs per claim, and outcomes not yet written.
        ahead: claim in advance what short jobs are expected to start within this time.
        boost_interval: of priority ageing; zero switches it off.
        require_tags: this node takes only jobs that carry all of these (written as jobs' tags are); none: any.
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
            _whole(f"execution.{name}", getattr(self, name), 0, MOST_SLOTS)
        _whole("execution.batch_size", self.batch_size, 1, 1000)
        _duration("execution.ahead", self.ahead)
        # Only counted with, and never waited for: any length will do.
        _duration("execution.boost_interval", self.boost_interval, most=timedelta.max)
        for name in ("require_tags", "exclude_tags"):
            object.__setattr__(self, name, _tags(f"execution.{name}", getattr(self, name)))
        if not (self.threads or self.async_ or self.processes):
            raise ConfigurationError(
                "a node needs at least one slot: set execution.threads, async_ or processes"
            )


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class NodeSettings(ValueObject):
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
        _duration("node.heartbeat", self.heartbeat, positive=True)
        _duration("node.sweep", self.sweep, positive=True)
        _duration("node.orphan_grace", self.orphan_grace)
        if self.orphan_grace < timedelta(seconds=3):
            raise ConfigurationError(f"node.orphan_grace must be at least 3 s, not {self.orphan_grace}")
        _whole("node.max_crash_redeliveries", self.max_crash_redeliveries, 0, MAX_RETRIES)
        if self.name is not None:
            try:
                check_text("node name", self.name)
            except UsageError as error:
                raise ConfigurationError(f"node.name: {error}") from None
            if not self.name.strip():
                raise ConfigurationError("node.name cannot be blank")

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between heartbeats."""
        return min(self.heartbeat.total_seconds(), self.orphan_grace.total_seconds() / 3)

    @property
    def sweep_interval(self) -> float:
        """Seconds between recovery sweeps."""
        return min(self.sweep.total_seconds(), self.orphan_grace.total_seconds() / 3)


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class TimeoutSettings(ValueObject):
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
        _duration("timeouts.default", self.default, positive=True)
        _duration("timeouts.grace", self.grace)
        _number("timeouts.warn_at", self.warn_at)
        if not 0.0 < self.warn_at <= 1.0:
            raise ConfigurationError(f"timeouts.warn_at is a share between 0 and 1, not {self.warn_at}")


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class PayloadSettings(ValueObject):
    """Size limits, in bytes of encoded text; at most 2 MiB each.

    Attributes:
        arguments: of a job's arguments, and of its params.
        result: beyond it the job succeeds and only the size is kept.
    """

    arguments: int = 100 * 1024
    result: int = 64 * 1024

    def __post_init__(self) -> None:
        _whole("payload.arguments", self.arguments, 1, MOST_BYTES)
        _whole("payload.result", self.result, 0, MOST_BYTES)


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class PollingSettings(ValueObject):
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

    def __post_init__(self) -> None:
        most = MAX_TIMEOUT.total_seconds()
        for name in ("burst", "fastest", "slowest", "idle", "idle_after"):
            value = getattr(self, name)
            _number(f"polling.{name}", value)
            if not 0.0 < value <= most:
                raise ConfigurationError(f"polling.{name} must be longer than 0 s and finite, not {value}")
        if self.fastest > self.slowest:
            raise ConfigurationError(
                f"polling.fastest ({self.fastest} s) is longer than polling.slowest ({self.slowest} s)"
            )


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Settings(ValueObject):
    """All groups. `Settings()` is the specification's defaults."""

    execution: ExecutionSettings = field(default_factory=ExecutionSettings)
    node: NodeSettings = field(default_factory=NodeSettings)
    timeouts: TimeoutSettings = field(default_factory=TimeoutSettings)
    payload: PayloadSettings = field(default_factory=PayloadSettings)
    polling: PollingSettings = field(default_factory=PollingSettings)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if type(value).__name__ != each.type:
                raise ConfigurationError(f"{each.name} is a {each.type}(...), not {type(value).__name__}")
