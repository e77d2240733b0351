"""Deliberately broken stores: each has one fault, and names the contract that must notice it."""

from __future__ import annotations

from typing import Final

from conformance_tests.mutants import (  # noqa: F401 - each registers its mutants, in this order
    changing,
    claims,
    crashing,
    fences,
    keys,
    racing,
    reading,
    recovering,
    settling,
    units,
)
from conformance_tests.mutants.base import REGISTERED, Mutant

MUTANTS: Final = tuple(REGISTERED)
"""All of them, by group."""

__all__ = ["MUTANTS", "Mutant"]
