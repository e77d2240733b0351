"""Which part of a lifecycle row a statement says by itself, and which part comes with each job."""

from __future__ import annotations

from typing import Final

from ratchet.domain.lifecycle import Transition, Value

DATA_VALUES: Final = frozenset(
    {
        Value.GIVEN,
        Value.GIVEN_OR_KEPT,
        Value.DUE,
        Value.START,
        Value.END,
        Value.DURATION,
        Value.QUEUE_WAIT,
    }
)
"""Values that `lifecycle.assign` computes per job; the others are the same for all, or SQL arithmetic."""


def data_columns(row: Transition) -> tuple[str, ...]:
    """The fields whose values travel with each job, in order."""
    return tuple(name for name, value in row.writes.items() if value in DATA_VALUES)
