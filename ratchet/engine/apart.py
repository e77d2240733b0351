"""Which claims of a batch may begin beside a job that has taken its node down before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ratchet.engine.attempt import Attempt

STRONG: Final = 2
"""So many crashes make a strong suspect: one crash may have been anybody's, two seldom are."""

ALONE_FOR: Final = 60.0
"""Seconds for which a node claims nothing beside a strong suspect; one that ran longer is hardly the cause."""


def first_strong(attempts: Sequence[Attempt]) -> Attempt | None:
    """The first job of a claim that has crashed a node twice; None if there is none."""
    return next((each for each in attempts if each.claim.crash_count >= STRONG), None)


def parted(attempts: Sequence[Attempt], room: Mapping[str, int]) -> tuple[list[Attempt], list[Attempt]]:
    """(what may begin, what goes back uncharged) of a claim that brought a job which has crashed a node.

    A strong suspect begins alone, or goes back with the others if its executor has no free slot. Beside one
    that has crashed once there is nothing ahead of a free slot.

    Args:
        attempts: the claim, in its order.
        room: executor -> free slots, less what waits for one.
    """
    keep: list[Attempt]
    back: list[Attempt] = []
    strong = first_strong(attempts)
    if strong is not None:
        keep = [strong] if room[strong.claim.executor] > 0 else []
        return keep, [each for each in attempts if each not in keep]
    left = dict(room)
    keep = []
    for attempt in attempts:
        left[attempt.claim.executor] -= 1
        (keep if left[attempt.claim.executor] >= 0 else back).append(attempt)
    return keep, back
