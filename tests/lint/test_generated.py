"""Generated text says what its source says."""

from __future__ import annotations

import inspect

import pytest

from ratchet.domain.lifecycle import TABLE, Status
from ratchet.spi.async_store import AsyncJobStore
from ratchet.spi.store import JobStore
from scripts import render_lifecycle
from scripts.generated import ROOT


def members(protocol: type) -> dict[str, object]:
    return {name: value for name, value in vars(protocol).items() if not name.startswith("_")}


def test_the_lifecycle_page_is_current() -> None:
    """The committed page is what the table renders to."""
    page = ROOT / "docs/reference/lifecycle.md"
    assert page.read_text(encoding="utf-8") == render_lifecycle.render()


def test_the_page_has_every_row_and_state() -> None:
    """No trigger and no state of the table is missing from the page."""
    page = render_lifecycle.render()
    for row in TABLE:
        assert page.count(f"\n| `{row.trigger}` |") == 2
    for status in Status:
        assert f" {status} " in page


def test_a_move_is_an_arrow() -> None:
    """Each source and target of each row is joined by an arrow that bears the trigger."""
    arrows = {}
    for line in render_lifecycle.diagram().splitlines():
        ends, colon, names = line.strip().partition(": ")
        if colon:
            arrows[ends] = names.split(", ")
    for row in TABLE:
        for source in row.sources:
            for target in row.targets or (source,):
                assert row.trigger in arrows[f"{source} --> {target}"]


def test_the_twins_have_the_same_members() -> None:
    """The async protocol has exactly the members of the sync one."""
    assert list(members(JobStore)) == list(members(AsyncJobStore))


@pytest.mark.parametrize("name", members(JobStore))
def test_twins_differ_only_in_awaiting(name: str) -> None:
    """A method of the async protocol is the sync one's, to be awaited; a property stays a property."""
    sync, twin = members(JobStore)[name], members(AsyncJobStore)[name]
    if isinstance(sync, property):
        assert isinstance(twin, property)
        sync, twin = sync.fget, twin.fget
    else:
        assert inspect.iscoroutinefunction(twin)
    assert callable(sync)
    assert callable(twin)
    assert inspect.signature(sync) == inspect.signature(twin)
    assert inspect.getdoc(sync) == inspect.getdoc(twin)
