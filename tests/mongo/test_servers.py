"""Which server the tests get, and what is not run on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.mongo import servers

Having = Callable[..., None]


@pytest.fixture
def having(monkeypatch: pytest.MonkeyPatch) -> Having:
    """Pretends that the machine has these, and no other server."""

    def pretend(*, deployment: str = "", rust: bool = False, python: bool = False) -> None:
        monkeypatch.setenv(servers.DEPLOYMENT, deployment)
        monkeypatch.setattr(servers, "rust_server", lambda: "secantusd-rs" if rust else None)
        there = {"pymongo", "secantus"} if python else {"pymongo"}
        monkeypatch.setattr(servers, "find_spec", lambda name: name if name in there else None)

    return pretend


def test_a_deployment_comes_before_the_fast_stand_in_and_that_before_the_slow_one(having: Having) -> None:
    """The environment's deployment, else the Rust server, else the Python one; without any the reason is told."""
    having(deployment="mongodb://there", rust=True, python=True)
    assert servers.kind() == "deployment"
    having(rust=True, python=True)
    assert servers.kind() == "secantusd-rs"
    having(python=True)
    assert servers.kind() == "secantusdb"
    having()
    with pytest.raises(servers.NoServer, match="neither secantusd-rs"):
        servers.kind()


def test_only_the_slow_one_lacks_abilities_and_says_which(having: Having) -> None:
    """On the Python server a test that needs more is not run, with its reason; on the others everything is."""
    having(python=True)
    assert {ability: servers.lacking(ability) for ability in servers.LACKING} == dict(servers.LACKING)
    assert servers.lacking() is None
    for others in ({"rust": True}, {"deployment": "mongodb://there"}):
        having(**others)
        assert {servers.lacking(ability) for ability in servers.LACKING} == {None}


def test_a_deployment_bears_any_number_of_jobs(having: Having) -> None:
    """Cases are made smaller for the stand-ins only."""
    borne = []
    for has in ({"deployment": "mongodb://there"}, {"rust": True}, {"python": True}):
        having(**has)
        borne.append(servers.bearable(1_000_000))
    assert borne[0] == 1_000_000
    assert borne[0] > borne[1] > borne[2] >= 100
