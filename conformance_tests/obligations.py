"""Which contracts each method of an SPI names in its docstring, so that none is without a test.

The last line of a docstring names them: ``Contracts: CLAIM-01, CLAIM-06 ... CLAIM-09.`` A range means
every contract of its group that exists between the two.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping
from typing import Final

_NAME: Final = re.compile(r"(?P<group>[A-Z]+(?:-[A-Z]+)*)-(?P<number>\d\d)")


def named_in(docstring: str | None, known: Collection[str]) -> tuple[str, ...]:
    """The contracts that a docstring names, in its order; ranges are resolved with the `known` ids.

    Raises:
        ValueError: a malformed entry, a range across groups, or an end of a range that does not exist.
    """
    if not docstring or "Contracts: " not in docstring:
        return ()
    _, _, tail = inspect.cleandoc(docstring).rpartition("Contracts: ")
    text = " ".join(tail.split())
    if not text.endswith("."):
        raise ValueError(f"the line of contracts ends with a full stop and the docstring with it: {text!r}")
    found: list[str] = []
    for entry in text[:-1].split(", "):
        first, dots, last = entry.partition(" ... ")
        found += _range(first, last, known) if dots else [_checked(first)]
    return tuple(found)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no contract id")
    return name


def _range(first: str, last: str, known: Collection[str]) -> list[str]:
    start, end = _NAME.fullmatch(first), _NAME.fullmatch(last)
    if not start or not end or start["group"] != end["group"] or first >= last:
        raise ValueError(f"{first} ... {last} is no range")
    for name in (first, last):
        if name not in known:
            raise ValueError(f"{first} ... {last}: there is no {name}")
    between = (name for name in known if first <= name <= last)
    return sorted(name for name in between if name.rpartition("-")[0] == start["group"])


def shown(names: Collection[str], known: Collection[str]) -> str:
    """The line that names these contracts, with ranges where they cover all there is between two."""
    ordered, wanted = sorted(known), sorted(names)
    parts: list[str] = []
    place = 0
    while place < len(wanted):
        last = place
        while last + 1 < len(wanted) and _next(ordered, wanted[last]) == wanted[last + 1]:
            last += 1
        parts.append(wanted[place] if last == place else f"{wanted[place]} ... {wanted[last]}")
        if last == place + 1:
            parts[-1:] = wanted[place : last + 1]
        place = last + 1
    return f"Contracts: {', '.join(parts)}."


def _next(ordered: list[str], name: str) -> str | None:
    group = [each for each in ordered if each.rpartition("-")[0] == name.rpartition("-")[0]]
    place = group.index(name) + 1
    return group[place] if place < len(group) else None


def obligations(protocol: type, known: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """Method of `protocol` -> the contracts that its docstring names; the class's own under its name."""
    found = {protocol.__name__: named_in(protocol.__doc__, known)}
    for name, member in vars(protocol).items():
        if not name.startswith("_") and (callable(member) or isinstance(member, property)):
            found[name] = named_in(member.__doc__, known)
    return found
