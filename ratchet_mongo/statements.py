"""Decided changes as few update statements: those that differ only in their values are one. Pure.

A server may commit each statement by itself, with a sync of its journal for each; and every statement is
parsed and planned. Fifty outcomes as one statement took a fifth of the processor time of fifty statements
on the server that stands in for MongoDB in the tests. The values of each job stand in the statement as
a literal, which is never evaluated, and are looked up by the job's `_id`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from pymongo import UpdateMany, UpdateOne

from ratchet_mongo.documents import Document
from ratchet_mongo.indexes import BY_ID
from ratchet_mongo.moves import Move

Statement: TypeAlias = UpdateOne | UpdateMany

MOST: Final = 50
"""Changes in one statement: to find a job's values in it takes as many comparisons, and a hundred were no faster."""
SMALL: Final = 8 * 1024
"""Bytes of text up to which a change shares a statement: all of one stay far below 16 MB."""

_GUARDS: Final = frozenset({"_id", "status", "claim_seq", "version"})
"""The filter of a change that can share a statement; with a fence of its own it cannot."""


def statements(moves: Sequence[Move]) -> list[Statement]:
    """Statements that write `moves`, of different jobs each, in any order."""
    alike: dict[object, list[Move]] = {}
    for one in moves:
        alike.setdefault(_shape(one), []).append(one)
    made: list[Statement] = []
    for shape, group in alike.items():
        if shape is None or len(group) == 1:
            made += [UpdateOne(one.where, one.update) for one in group]
            continue
        for start in range(0, len(group), MOST):
            made.append(_together(group[start : start + MOST]))
    return made


def _shape(one: Move) -> object:
    """What changes must have in common to be one statement; None: this one stands alone."""
    if one.where.keys() != _GUARDS or one.text > SMALL:
        return None
    guards = tuple(one.where[name] for name in ("status", "claim_seq", "version"))
    pushed = one.update.get("$push", {})
    slices = tuple((name, pushed[name].get("$slice")) for name in sorted(pushed))
    return guards, tuple(sorted(one.update.get("$unset", ()))), slices


def _together(group: Sequence[Move]) -> UpdateMany:
    """Changes of one shape: the guards that they share, and an update that finds each job's own values."""
    first = group[0]
    ids = [one.guard.id for one in group]
    own: list[Document] = [
        {"set": one.update["$set"], **{name: add["$each"] for name, add in _pushed(one).items()}}
        for one in group
    ]
    fields: Document = {}
    for name, add in _pushed(first).items():
        longer: Document = {"$concatArrays": [{"$ifNull": [f"${name}", []]}, f"$$own.{name}"]}
        fields[name] = {"$slice": [longer, add["$slice"]]} if "$slice" in add else longer
    place = {"$indexOfArray": [{"$literal": ids}, "$_id"]}
    changed: Document = {
        "$let": {
            "vars": {"own": {"$arrayElemAt": [{"$literal": own}, place]}},
            "in": {"$mergeObjects": ["$$ROOT", "$$own.set", fields]},
        }
    }
    stages: list[Document] = [{"$replaceWith": changed}]
    cleared = sorted(first.update.get("$unset", ()))
    if cleared:
        stages.append({"$unset": cleared})
    return UpdateMany({**first.where, "_id": {"$in": ids}}, stages, hint=BY_ID)


def _pushed(one: Move) -> dict[str, Document]:
    pushed: dict[str, Document] = one.update.get("$push", {})
    return pushed
