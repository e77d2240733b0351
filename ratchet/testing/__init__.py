"""What the tests of an application use: a clock that stands still, a runner in the calling thread, nodes that die.

    >>> from datetime import timedelta
    >>> import textwrap
    >>> from ratchet import Scheduler
    >>> from ratchet.testing import InlineRunner, VirtualClock
    >>> clock = VirtualClock()
    >>> scheduler = Scheduler.from_url("memory://", allow=["textwrap"], clock=clock)
    >>> handle = scheduler.schedule(timedelta(hours=2), textwrap.indent, "rows", "> ").submit()
    >>> runner = InlineRunner(scheduler, clock=clock)
    >>> runner.run_pending()
    []
    >>> [ran.status.name for ran in runner.advance(timedelta(hours=2))]
    ['SUCCEEDED']
    >>> handle.result()
    '> rows'

As pytest fixtures: ``ratchet_clock``, ``ratchet_allow``, ``ratchet_scheduler``, ``ratchet_runner``.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ratchet.testing.clock import VirtualClock
    from ratchet.testing.isolation import isolated
    from ratchet.testing.node import Finished, InlineNode, Ran
    from ratchet.testing.runner import InlineRunner, run_pending

_HOME: Final = {
    "Finished": "node",
    "InlineNode": "node",
    "InlineRunner": "runner",
    "Ran": "node",
    "VirtualClock": "clock",
    "isolated": "isolation",
    "run_pending": "runner",
}
"""Imported at first use: pytest loads `ratchet.testing.plugin` at every start, also where nobody tests jobs."""

__all__ = ["Finished", "InlineNode", "InlineRunner", "Ran", "VirtualClock", "isolated", "run_pending"]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"ratchet.testing.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
