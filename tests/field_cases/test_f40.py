"""F40: NaN, infinities and the negative zero travel exactly, as argument and as result."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from ratchet import Status, current_job
from tests.field_cases.exact import KINDS, same, slots, submitter

pytestmark = pytest.mark.field_case("F40")

NUMBERS: Final = {
    "ok": 0.5, "m": float("nan"), "hi": float("inf"), "lo": float("-inf"), "z": -0.0,
    "deep": [(float("nan"), {float("inf")})], "tiny": 5e-324, "most": 1.7976931348623157e308,
}  # fmt: skip
WHOLE: Final = (float("nan"), float("inf"), float("-inf"), -0.0)


def make() -> Any:
    """Returns the numbers."""
    return NUMBERS


async def make_async() -> Any:
    """Returns the numbers, from the loop."""
    return NUMBERS


def look(numbers: Any, *, also: float) -> bool:
    """True if they arrived exactly; the param, too."""
    assert same(numbers, NUMBERS)
    assert same(dict(current_job().params), {"n": NUMBERS})
    return same(also, float("nan"))


async def look_async(numbers: Any, *, also: float) -> bool:
    """The same on the loop."""
    return look(numbers, also=also)


def one(value: Any) -> Any:
    """Gives it back."""
    return value


@pytest.mark.parametrize("kind", KINDS)
def test_f40_result_round_trips(make_node: Any, kind: str) -> None:
    """A result with NaN and infinities is SUCCEEDED and read back exactly: NaN is NaN, signs are kept."""
    node = make_node(**slots(kind, 1))
    handle = submitter(node, kind)(make, make_async).submit()
    assert same(handle.result(30), NUMBERS)
    assert handle.status is Status.SUCCEEDED


@pytest.mark.parametrize("kind", KINDS)
def test_f40_arguments_and_params_round_trip(make_node: Any, kind: str) -> None:
    """The same numbers as arguments and params reach the body exactly: the decision at submit is the same."""
    node = make_node(**slots(kind, 1))
    builder = submitter(node, kind)(look, look_async, NUMBERS, also=float("nan"))
    assert builder.with_param("n", NUMBERS).submit().result(30) is True


@pytest.mark.parametrize("value", WHOLE, ids=repr)
def test_f40_as_the_whole_value(make_node: Any, value: float) -> None:
    """Each of them alone is argument and result exactly, never null."""
    handle = make_node().enqueue(one, value).submit()
    assert same(handle.result(30), value)
    assert "null" not in handle.job().result
    assert "null" not in handle.job().payload


def test_f40_what_is_stored_is_json(make_node: Any) -> None:
    """The stored texts are strict JSON: no NaN or Infinity token that a database's parser would refuse."""

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    handle = make_node().enqueue(one, NUMBERS).with_param("n", NUMBERS).submit()
    job = handle.wait(30)
    for text in (job.payload, job.result, job.params["n"]):
        json.loads(text, parse_constant=refuse)
        assert text.isascii()
