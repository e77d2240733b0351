"""What a server, or the line to it, may answer instead of what was asked for: kinds of faults, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.mongo.proxy import Document, Fault

WRITES: Final = frozenset({"insert", "update", "delete", "findAndModify", "createIndexes"})
BULKS: Final = frozenset({"insert", "update", "delete"})
READS: Final = frozenset({"find", "aggregate", "distinct", "hello", "getMore"})

STEPPING: Final = {
    10107: "NotWritablePrimary",
    91: "ShutdownInProgress",
    189: "PrimarySteppedDown",
    11600: "InterruptedAtShutdown",
    11602: "InterruptedDueToReplStateChange",
    13435: "NotPrimaryNoSecondaryOk",
}
"""What a server answers on its way down, or after it."""


def told(code: int, name: str, *labels: str, errmsg: str = "told by the proxy") -> Document:
    """A whole command's failure."""
    reply: Document = {"ok": 0.0, "errmsg": errmsg, "code": code, "codeName": name}
    return {**reply, "errorLabels": list(labels)} if labels else reply


def _concern(code: int, name: str, *labels: str) -> Fault:
    """Written, and not yet by a majority."""
    told_so: Document = {"writeConcernError": {"code": code, "codeName": name, "errmsg": "told by the proxy"}}
    return Fault(extra={**told_so, "errorLabels": list(labels)} if labels else told_so)


_ALL: Final = WRITES | READS
_CONFLICT: Final[Document] = {"index": 0, "code": 112, "errmsg": "told by the proxy"}

PASSING: Final[dict[str, tuple[Fault, frozenset[str]]]] = {
    **{f"{name}": (Fault(reply=told(code, name)), _ALL) for code, name in STEPPING.items()},
    **{
        f"{name} after it": (Fault(applied=True, reply=told(code, name, "RetryableWriteError")), _ALL)
        for code, name in STEPPING.items()
    },
    "retryable": (Fault(reply=told(6, "HostUnreachable", "RetryableWriteError")), WRITES),
    "retryable after it": (Fault(applied=True, reply=told(262, "ExceededTimeLimit", "RetryableWriteError")), WRITES),
    "conflict": (Fault(reply=told(112, "WriteConflict", "TransientTransactionError")), WRITES),
    "conflict without a label": (Fault(reply=told(112, "WriteConflict")), WRITES),
    "conflict of one write": (Fault(reply={"ok": 1.0, "n": 0, "nModified": 0, "writeErrors": [_CONFLICT]}), BULKS),
    "concern": (_concern(64, "WriteConcernFailed"), WRITES),
    "concern at shutdown": (_concern(91, "ShutdownInProgress", "RetryableWriteError"), WRITES),
    "cursor lost": (Fault(reply=told(43, "CursorNotFound")), READS - {"hello"}),
    "cut": (Fault(), _ALL),
    "cut after it": (Fault(applied=True), _ALL),
}  # fmt: skip
"""Name -> the fault and the commands that may meet it; a call that meets one goes on by itself."""

SILENT: Final[dict[str, tuple[Fault, frozenset[str]]]] = {
    "silence": (Fault(silent=True), _ALL),
    "silence after it": (Fault(applied=True, silent=True), _ALL),
}
"""No answer at all: the call ends with the driver's time-out, and whoever made it makes it again."""


def name_of(command: Document) -> str:
    """Which command it is."""
    return next(iter(command))


class At:
    """Chooses a fault for the `place`-th command of a kind that is counted, or for all from there on.

    Attributes:
        seen: names of the commands, in order.
    """

    def __init__(
        self,
        place: int = 0,
        fault: Fault | None = None,
        counted: frozenset[str] = _ALL,
        *,
        onward: bool = False,
    ) -> None:
        self._place, self._fault, self._counted, self._onward = place, fault, counted, onward
        self.seen: list[str] = []

    def __call__(self, command: Document) -> Fault | None:
        name = name_of(command)
        if name not in self._counted:
            return None
        self.seen.append(name)
        met = len(self.seen) == self._place or (self._onward and len(self.seen) > self._place)
        return self._fault if met else None


def each(
    kinds: dict[str, tuple[Fault, frozenset[str]]], commands: list[str]
) -> Iterator[tuple[int, str, Fault]]:
    """Every (place, name, fault) that these commands can meet."""
    for place, command in enumerate(commands, 1):
        for name, (fault, met_by) in kinds.items():
            if command in met_by:
                yield place, name, fault


def some(
    kinds: dict[str, tuple[Fault, frozenset[str]]], draw: Callable[[], Any], share: float
) -> Callable[[Document], Fault | None]:
    """Chooses faults at random for a share of the commands; `draw` as `random.Random().random`."""

    def choose(command: Document) -> Fault | None:
        if draw() >= share:
            return None
        possible = [fault for fault, met_by in kinds.values() if name_of(command) in met_by]
        return possible[int(draw() * len(possible))] if possible else None

    return choose
