"""F38: integers of any size arrive as they were; an id that no job has is "not found"."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pytest

from ratchet import Status
from ratchet.errors import JobPurged, NotReplaceable, PayloadTooLarge
from ratchet.spi.store import JobStore, Selection
from tests.field_cases.exact import KINDS, same, slots, submitter

pytestmark = pytest.mark.field_case("F38")

VALUES: Final[tuple[Any, ...]] = (
    2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 11168737559087072609, 10**40, -(10**40), 2**64, 2**53 + 1,
    # json's own conversion stops at 4,300 digits.
    10**4299, 10**4300, -(10**6000),
    0, 1, True, False, 1.0, 0.0, -0.0, 1e300, 10**300, float(2**63), None,
)  # fmt: skip


def look(values: list[Any], nested: dict[str, Any]) -> Any:
    """Compares every value with what was meant, type included, and gives all back."""
    assert same(values, list(VALUES))
    assert same(nested, {"in": [{"deep": VALUES}], "set": {2**63, -(2**70)}})
    return [values, nested]


async def look_async(values: list[Any], nested: dict[str, Any]) -> Any:
    """The same on the loop."""
    return look(values, nested)


def one(value: Any) -> Any:
    """Gives it back."""
    return value


def annotated(value: int) -> int:
    """Gives an annotated integer back."""
    assert type(value) is int
    return value


@pytest.mark.parametrize("kind", KINDS)
def test_f38_values_and_types_survive_as_argument_and_result(make_node: Any, kind: str) -> None:
    """Every integer, bool and float arrives and comes back equal and of the same type, also inside containers."""
    node = make_node(**slots(kind, 1))
    nested = {"in": [{"deep": VALUES}], "set": {2**63, -(2**70)}}
    handle = submitter(node, kind)(look, look_async, list(VALUES), nested).submit()
    assert same(handle.result(30), [list(VALUES), nested])


def test_f38_each_value_alone_survives_at_the_top(make_node: Any) -> None:
    """Each value alone, as the only argument, as a param and as the whole result, keeps value and type."""
    node = make_node()
    handles = [node.enqueue(one, value).with_param("p", value).submit() for value in VALUES]
    for value, handle in zip(VALUES, handles, strict=True):
        assert same(handle.result(30), value)
        assert same(node.codec.decode_value(handle.job().params["p"]), value)


def test_f38_annotated_integers_survive(make_node: Any) -> None:
    """A parameter annotated as int takes integers of any size unchanged."""
    node = make_node()
    values = [value for value in VALUES if type(value) is int]
    for value, handle in zip(values, node.enqueue_many(annotated, [(v,) for v in values]), strict=True):
        assert same(handle.result(30), value)


def test_f38_an_integer_beyond_the_size_limit_is_refused_at_submit(make_node: Any) -> None:
    """An integer that is too long for the payload limit is refused at submission and nothing is stored."""
    node = make_node(start=False)
    with pytest.raises(PayloadTooLarge):
        node.enqueue(one, 10**200_000).submit()
    assert node.query.count() == 0


def huge() -> int:
    """A result beyond the limit of results."""
    return 10**200_000


def test_f38_a_result_beyond_the_size_limit_is_replaced_not_lost(make_node: Any) -> None:
    """An integer too long for the result limit leaves the job SUCCEEDED, with its size in place of its value."""
    job = make_node().enqueue(huge).submit().wait(60)
    assert job.status is Status.SUCCEEDED
    assert "result-too-large" in job.result


STRANGERS: Final = (
    UUID(int=0), UUID(int=1), UUID(int=2**63), UUID(int=2**64 + 1), UUID(int=2**127), UUID(int=2**128 - 1),
)  # fmt: skip


@pytest.mark.parametrize("id_", STRANGERS)
def test_f38_a_look_up_by_an_id_that_no_job_has_is_not_found(
    make_node: Any, open_here: Callable[..., JobStore], id_: UUID
) -> None:
    """Reading an unknown id, however large, answers "not found", and controlling it answers False."""
    node = make_node(start=False)
    node.enqueue(one, 1).submit()
    assert node.get(id_) is None
    assert node.query.detail(id_) is None
    assert node.query.find(Selection(ids=frozenset({id_}))).jobs == []
    assert node.store.history(id_) == []
    assert not node.store.get_many([id_])
    assert [node.cancel(id_), node.pause(id_), node.resume(id_), node.retry(id_)] == [False] * 4
    assert node.handle(id_).status is None
    with pytest.raises(JobPurged):
        node.handle(id_).result(timedelta(seconds=1))
    with pytest.raises(NotReplaceable):
        node.replace(id_, node.enqueue(one, 2))
    assert node.query.count() == 1
