"""Whether a method can be called as its protocol says: told in words before a test trips over it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any


def mismatch(method: Callable[..., Any], wanted: Callable[..., Any]) -> str | None:
    """What keeps `method` from being called like `wanted`; None if nothing does.

    Tried with all arguments and with only those that have no default: positional ones by position (their
    names are the author's own), keyword-only ones by name. What more `method` takes is its own affair.

    Args:
        method: bound, or a function without `self`.
        wanted: the function of the protocol, with `self`.
    """
    try:
        has = inspect.signature(method)
    except (TypeError, ValueError):  # something built in, which tells nothing
        return None
    parameters = list(inspect.signature(wanted).parameters.values())[1:]
    needed = [each for each in parameters if each.default is inspect.Parameter.empty]
    for given in (parameters, needed):
        try:
            _bind(has, given)
        except TypeError as error:
            return f"cannot be called as ({_written(parameters)}): {error}"
    return None


def _bind(has: inspect.Signature, given: Sequence[inspect.Parameter]) -> None:
    by_name = {each.name: None for each in given if each.kind is inspect.Parameter.KEYWORD_ONLY}
    has.bind(*[None] * (len(given) - len(by_name)), **by_name)


def _written(parameters: Sequence[inspect.Parameter]) -> str:
    """As in the protocol, without types."""
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
    return str(inspect.Signature(plain))[1:-1]
