"""How long a poller sleeps: pure pace rules, no clock and no I/O (specification, section 4).

The poller makes a poll, describes it as an `Observation` and asks `next_delay`. Three paces follow one another:

* *burst*: a wake-up polls at once, then every 500 ms until three polls in a row found nothing;
* *normal*: 2 to 30 s. Empty polls back off exponentially, a window of the last ten polls holds the back-off
  down while there was work in it, a busy pool slows and an idle one hastens;
* *deep idle*: 60 s, after five minutes in which nothing was found.

Over all of them: a batch that came back full, or a store that says more is due, is polled again at once while
slots are free; three full batches in a row divide the delay by four; and no sleep lasts beyond the next known
`scheduled_time`. All numbers here are seconds.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from ratchet.domain.value import ValueObject
from ratchet.errors import ConfigurationError

__all__ = [
    "Observation",
    "PollMode",
    "PollSettings",
    "PollState",
    "error_delay",
    "next_delay",
    "woken_up",
]

# Beyond this many doublings every delay is at its maximum; the counters stop here, so no power can overflow.
_COUNT_CAP: Final = 64
_ERROR_FIRST: Final = 0.1
_ERROR_MOST: Final = 5.0
# An empty poll at a moment when a job was said to be due: the clocks differ by this much, or somebody else took it.
_DUE_RETRY: Final = 0.002


class PollMode(StrEnum):
    """The three paces."""

    BURST = "burst"
    NORMAL = "normal"
    DEEP_IDLE = "deep_idle"


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class PollSettings(ValueObject):
    """The pace rules' numbers, in seconds where they are times; the defaults are the specification's.

    Attributes:
        burst_delay: between polls after a wake-up.
        burst_empty_polls: so many empty polls in a row end a burst.
        min_delay: shortest normal delay.
        max_delay: longest normal delay.
        deep_idle_delay: between polls in deep idle.
        deep_idle_after: time without finding a job after which deep idle begins.
        window: how many polls the rolling window holds.
        full_batches: so many full batches in a row shorten the delay.
        full_batch_divisor: ... by this factor.
        backoff_factor: growth of the delay with each further empty poll, 1 to 100.

    Raises:
        ConfigurationError: a number that makes no pace.
    """

    burst_delay: float = 0.5
    burst_empty_polls: int = 3
    min_delay: float = 2.0
    max_delay: float = 30.0
    deep_idle_delay: float = 60.0
    deep_idle_after: float = 300.0
    window: int = 10
    full_batches: int = 3
    full_batch_divisor: float = 4.0
    backoff_factor: float = 2.0

    def __post_init__(self) -> None:
        times = (self.burst_delay, self.min_delay, self.max_delay, self.deep_idle_delay, self.deep_idle_after)
        if not all(0.0 < seconds < float("inf") for seconds in times):
            raise ConfigurationError("polling: every delay must be longer than 0 s and finite")
        if self.min_delay > self.max_delay:
            raise ConfigurationError(
                f"polling: min_delay ({self.min_delay} s) is longer than max_delay ({self.max_delay} s)"
            )
        if min(self.burst_empty_polls, self.window, self.full_batches) < 1:
            raise ConfigurationError("polling: burst_empty_polls, window and full_batches must be at least 1")
        if not (1.0 <= self.backoff_factor <= 100.0 and 1.0 <= self.full_batch_divisor < float("inf")):
            raise ConfigurationError(
                "polling: backoff_factor must lie between 1 and 100, full_batch_divisor at 1 or above"
            )

    @property
    def longest(self) -> float:
        """No delay is longer than this."""
        return max(self.burst_delay, self.max_delay, self.deep_idle_delay)


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Observation(ValueObject):
    """One poll as its poller saw it.

    Attributes:
        claimed: how many jobs the claim brought.
        asked: the claim's limit in all; 0 if no claim was made because no slot was free.
        free_slots: slots still free after the claim, of executors that can take a job.
        utilisation: share of busy slots, 0 to 1.
        woken: a wake-up arrived since this claim was sent, so it may have missed what the wake-up announced.
        more_due: the store said that more is due.
        elapsed: time since the previous poll.
        until_next_due: time until the next known `scheduled_time`, the sooner of the store's answer and the
            node's own knowledge; zero or less if that has passed; None if none is known.
    """

    claimed: int
    asked: int
    free_slots: int
    utilisation: float = 0.0
    woken: bool = False
    more_due: bool = False
    elapsed: float = 0.0
    until_next_due: float | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class PollState(ValueObject):
    """What the pace rules remember between polls.

    Attributes:
        mode: the pace now, also for health reports.
        backlog: due work is known that no slot was free for: a slot that becomes free is refilled at once.
        fills: share of the asked jobs that each poll of the rolling window brought, newest last.
        empty_polls: empty polls in a row, counted from the beginning of the present mode's back-off.
        full_polls: full batches in a row.
        idle: time since a poll last found a job.
        due_misses: empty polls in a row though a job was said to be due.
    """

    mode: PollMode = PollMode.NORMAL
    backlog: bool = False
    fills: tuple[float, ...] = ()
    empty_polls: int = 0
    full_polls: int = 0
    idle: float = 0.0
    due_misses: int = 0


def woken_up(state: PollState) -> PollState:
    """The state after a wake-up: out of deep idle and into a burst. The poller polls at once."""
    return replace(state, mode=PollMode.BURST, empty_polls=0, idle=0.0, due_misses=0)


def next_delay(state: PollState, observation: Observation, settings: PollSettings) -> tuple[PollState, float]:
    """Answer the new state and how many seconds to sleep unless a wake-up comes, at most `settings.longest`."""
    seen = observation
    state = _remember(state, seen, settings)
    if seen.woken:
        return woken_up(state), 0.0
    # Only a poll that brought something repeats at once: a store that says "more" but gives nothing (another
    # node was quicker) must not turn the poller into a spinning loop.
    if seen.claimed > 0 and state.backlog and seen.free_slots > 0:
        return state, 0.0
    delay = _pace(state, seen, settings)
    if state.full_polls >= settings.full_batches:
        delay /= settings.full_batch_divisor
    if seen.more_due and seen.free_slots > 0:
        delay = min(delay, settings.burst_delay)
    if seen.until_next_due is not None:
        # A job that is due but does not come is asked for ever more slowly, up to the burst's pace.
        patience = min(settings.burst_delay, _DUE_RETRY * 2.0**state.due_misses) if state.due_misses else 0.0
        delay = min(delay, max(seen.until_next_due, patience))
    return state, delay


def error_delay(failures: int, *, jitter: float = 0.0) -> float:
    """How many seconds to wait after the store failed `failures` times in a row: 0.1 doubling up to 5.

    Args:
        failures: errors in a row, this one included; 0 or less answers 0.
        jitter: a random number in [0, 1], the caller's, which takes up to half of the delay away, so that
            nodes which lost one database do not all come back at once. No delay falls below 0.1.
    """
    if failures < 1:
        return 0.0
    delay = min(_ERROR_MOST, _ERROR_FIRST * 2.0 ** min(failures - 1, _COUNT_CAP))
    return max(_ERROR_FIRST, delay * (1.0 - 0.5 * min(max(jitter, 0.0), 1.0)))


def _remember(state: PollState, seen: Observation, settings: PollSettings) -> PollState:
    """The state with this poll in it; without a claim (no free slot) only what is due is learned."""
    overdue = seen.until_next_due is not None and seen.until_next_due <= 0
    misses = 0
    if seen.until_next_due is not None and seen.until_next_due < _DUE_RETRY:
        misses = min(state.due_misses + 1, _COUNT_CAP)
    if seen.asked <= 0:
        return replace(
            state,
            backlog=state.backlog or seen.more_due or overdue,
            idle=0.0,  # every slot is busy: this is no idle node
            due_misses=misses,
        )
    fill = min(seen.claimed / seen.asked, 1.0)
    fills = (*state.fills, fill)[-settings.window :]
    if seen.claimed > 0:
        return PollState(
            mode=PollMode.BURST if state.mode is PollMode.BURST else PollMode.NORMAL,
            backlog=seen.more_due or overdue or fill >= 1.0,
            fills=fills,
            full_polls=min(state.full_polls + 1, _COUNT_CAP) if fill >= 1.0 else 0,
        )
    idle = state.idle + max(seen.elapsed, 0.0)
    empty = min(state.empty_polls + 1, _COUNT_CAP)
    mode = state.mode
    if mode is PollMode.BURST and empty >= settings.burst_empty_polls:
        mode, empty = PollMode.NORMAL, 1  # the back-off begins with the poll that ended the burst
    if mode is PollMode.NORMAL and idle >= settings.deep_idle_after:
        mode = PollMode.DEEP_IDLE
    return PollState(
        mode=mode,
        backlog=seen.more_due or overdue,
        fills=fills,
        empty_polls=empty,
        idle=idle,
        due_misses=misses,
    )


def _pace(state: PollState, seen: Observation, settings: PollSettings) -> float:
    """The delay of the mode alone."""
    match state.mode:
        case PollMode.BURST:
            return settings.burst_delay
        case PollMode.DEEP_IDLE:
            return settings.deep_idle_delay
        case PollMode.NORMAL:
            activity = sum(state.fills) / len(state.fills) if state.fills else 0.0
            backed_off = settings.min_delay * settings.backoff_factor ** max(state.empty_polls - 1, 0)
            # With a share a of each batch filled lately, the next full batch is about 1/a polls away.
            if activity > 0:
                backed_off = min(backed_off, settings.min_delay / activity)
            load = 0.5 + min(max(seen.utilisation, 0.0), 1.0)
            return min(max(backed_off * load, settings.min_delay), settings.max_delay)
