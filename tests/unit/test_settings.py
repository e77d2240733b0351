"""Settings: the groups validate themselves, the environment fills them, and a mistake is told with its remedy."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from ratchet import (
    ExecutionSettings,
    NodeSettings,
    PayloadSettings,
    PollingSettings,
    Scheduler,
    Settings,
    TimeoutSettings,
)
from ratchet.config import RatchetSettings, reference, variable
from ratchet.errors import ConfigurationError
from scripts import render_settings
from scripts.generated import ROOT

GROUPS: dict[str, Any] = {
    field.name: getattr(Settings(), field.name) for field in dataclasses.fields(Settings)
}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("RATCHET_"):
            monkeypatch.delenv(name)


def test_the_defaults_are_the_specifications() -> None:
    """Without any setting every value is the one that the specification names."""
    settings = Settings()
    assert settings.execution == ExecutionSettings(threads=8, async_=100, processes=0, batch_size=50)
    assert settings.execution.boost_interval == timedelta(minutes=15)
    assert settings.execution.ahead == timedelta(milliseconds=100)
    assert (settings.node.heartbeat, settings.node.orphan_grace) == (
        timedelta(seconds=10),
        timedelta(minutes=1),
    )
    assert (settings.node.sweep, settings.node.max_crash_redeliveries) == (timedelta(seconds=15), 3)
    assert settings.timeouts == TimeoutSettings(default=timedelta(minutes=30), warn_at=0.8)
    assert settings.payload == PayloadSettings(arguments=100 * 1024, result=64 * 1024)
    polling = PollingSettings(burst=0.5, fastest=2.0, slowest=30.0, idle=60.0, idle_after=300.0)
    assert settings.polling == polling


def test_intervals_follow_the_grace() -> None:
    """The heartbeat never exceeds a third of the grace, and the sweep neither."""
    node = NodeSettings(orphan_grace=timedelta(seconds=6))
    assert (node.heartbeat_interval, node.sweep_interval) == (2.0, 2.0)
    assert (NodeSettings().heartbeat_interval, NodeSettings().sweep_interval) == (10.0, 15.0)


WRONG: list[tuple[type, dict[str, Any], str]] = [
    (ExecutionSettings, {"threads": -1}, "execution.threads must lie between 0 and 100,000, not -1"),
    (ExecutionSettings, {"batch_size": 0}, "execution.batch_size must lie between 1 and 1,000, not 0"),
    (ExecutionSettings, {"threads": 0, "async_": 0}, "a node needs at least one slot"),
    (NodeSettings, {"orphan_grace": timedelta(seconds=2)}, "node.orphan_grace must be at least 3 s"),
    (NodeSettings, {"heartbeat": timedelta(0)}, "node.heartbeat must be longer than zero"),
    (
        NodeSettings,
        {"max_crash_redeliveries": -1},
        "node.max_crash_redeliveries must lie between 0",
    ),
    (NodeSettings, {"name": " "}, "node.name cannot be blank"),
    (TimeoutSettings, {"default": timedelta(0)}, "timeouts.default must be longer than zero"),
    (TimeoutSettings, {"warn_at": 1.5}, "timeouts.warn_at is a share between 0 and 1, not 1.5"),
]


@pytest.mark.parametrize(("group", "values", "sentence"), WRONG, ids=[sentence for *_, sentence in WRONG])
def test_a_senseless_value_is_refused(group: type, values: dict[str, Any], sentence: str) -> None:
    """Each group refuses what cannot work, in code and from the environment, with the same sentence."""
    with pytest.raises(ConfigurationError, match=sentence.replace("(", r"\(")):
        group(**values)
    (name,) = [name for name, default in GROUPS.items() if isinstance(default, group)]
    with pytest.raises(ConfigurationError, match=sentence):
        RatchetSettings(**{name: values})


def test_the_model_has_every_key_with_its_default() -> None:
    """The model's groups are those of `Settings`, and without an environment the values are the same."""
    assert set(RatchetSettings.model_fields) == set(GROUPS)
    assert RatchetSettings().to_settings() == Settings()


@pytest.mark.parametrize(
    ("name", "text", "group", "key", "value"),
    [
        ("RATCHET_NODE__ORPHAN_GRACE", "10", "node", "orphan_grace", timedelta(seconds=10)),
        ("RATCHET_NODE__ORPHAN_GRACE", "PT90S", "node", "orphan_grace", timedelta(seconds=90)),
        ("RATCHET_NODE__ORPHAN_GRACE", "00:01:30", "node", "orphan_grace", timedelta(seconds=90)),
        ("RATCHET_EXECUTION__AHEAD", "0.25", "execution", "ahead", timedelta(milliseconds=250)),
        ("RATCHET_EXECUTION__THREADS", "3", "execution", "threads", 3),
        ("RATCHET_EXECUTION__ASYNC", "7", "execution", "async_", 7),
        ("ratchet_execution__processes", "2", "execution", "processes", 2),
        (
            "RATCHET_EXECUTION__REQUIRE_TAGS",
            "gpu, big,",
            "execution",
            "require_tags",
            frozenset({"gpu", "big"}),
        ),
        ("RATCHET_NODE__NAME", "worker-1", "node", "name", "worker-1"),
        ("RATCHET_TIMEOUTS__WARN_AT", "0.5", "timeouts", "warn_at", 0.5),
        ("RATCHET_PAYLOAD", '{"result": 7}', "payload", "result", 7),
        ("RATCHET_POLLING__IDLE", "90", "polling", "idle", 90.0),
    ],
)
def test_a_variable_sets_its_key_and_no_other(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, group: str, key: str, value: object
) -> None:
    """Each kind of value is read from the environment; everything else keeps its default."""
    monkeypatch.setenv(name, text)
    settings = RatchetSettings().to_settings()
    changed = dataclasses.replace(getattr(Settings(), group), **{key: value})
    assert settings == dataclasses.replace(Settings(), **{group: changed})


def test_every_key_has_a_variable_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The documented variable of every key is the one that sets it."""
    shown = {each.variable: each for _, settings in reference().values() for each in settings}
    assert len(shown) == sum(len(dataclasses.fields(default)) for default in GROUPS.values())
    for name, each in shown.items():
        with monkeypatch.context() as patch:
            patch.setenv(name, "?")
            if "text" in each.kind:
                assert "?" in str(getattr(getattr(RatchetSettings(), each.group), each.key))
            else:
                with pytest.raises(ConfigurationError, match=rf"{each.group}\.{each.key} \({name}\)"):
                    RatchetSettings()


def test_keywords_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value given in code replaces the environment's, key by key."""
    monkeypatch.setenv("RATCHET_EXECUTION__THREADS", "3")
    monkeypatch.setenv("RATCHET_EXECUTION__PROCESSES", "2")
    settings = RatchetSettings(execution={"threads": 4})
    assert (settings.execution.threads, settings.execution.processes) == (4, 2)
    whole = RatchetSettings(node=NodeSettings(name="x"))
    assert whole.node == NodeSettings(name="x")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("RATCHET_NODE__ORPHAN_GRAC", "10",
         "node.orphan_grac is no setting (RATCHET_NODE__ORPHAN_GRAC); did you mean 'orphan_grace'?"),
        ("RATCHET_NOED__NAME", "x", "the variable RATCHET_NOED__NAME names no group of settings; did you mean 'node'?"),
        ("RATCHET_XYZ__NAME", "x", "names no group of settings; there are execution, node, payload, polling, timeouts"),
        ("RATCHET_NODE__ORPHAN_GRACE", "soon", "write seconds, like 10 or 0.5, or ISO 8601, like PT10S"),
        ("RATCHET_NODE__ORPHAN_GRACE", "2", "node.orphan_grace must be at least 3 s, not 0:00:02"),
        ("RATCHET_EXECUTION__THREADS", "many",
         "execution.threads (RATCHET_EXECUTION__THREADS): Input should be a valid integer"),
        ("RATCHET_NODE", "{", "RATCHET_NODE is not JSON; set single keys, like RATCHET_NODE__KEY=..."),
    ],
)  # fmt: skip
def test_a_mistake_in_the_environment_is_told(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, sentence: str
) -> None:
    """An unknown key or group names the nearest, and a value that does not fit names its variable."""
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigurationError) as caught:
        RatchetSettings()
    assert sentence in str(caught.value)
    with pytest.raises(ConfigurationError):
        Scheduler.from_url("memory://")


def test_a_mistake_in_code_is_told() -> None:
    """An unknown group or key given as a keyword names the nearest too."""
    with pytest.raises(ConfigurationError, match=r"'noed' is no group of settings; did you mean 'node'\?"):
        RatchetSettings(noed={})
    with pytest.raises(ConfigurationError, match=r"node.nmae is no setting .*; did you mean 'name'\?"):
        RatchetSettings(node={"nmae": "x"})


def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables without a group, and those of other programs, are not settings."""
    for name in ("RATCHET_URL", "RATCHET_APP", "NODE__NAME", "MYRATCHET_NODE__NAME"):
        monkeypatch.setenv(name, "memory://")
    assert RatchetSettings().to_settings() == Settings()


def test_settings_are_frozen() -> None:
    """Neither the model nor its groups can be changed after they were made."""
    with pytest.raises(ValidationError, match="frozen"):
        RatchetSettings().node = NodeSettings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        NodeSettings().name = "x"  # type: ignore[misc]


def test_from_url_reads_the_environment_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """`from_url` without settings reads the environment; explicit settings are taken as they are."""
    monkeypatch.setenv("RATCHET_EXECUTION__THREADS", "3")
    assert Scheduler.from_url("memory://").settings.execution.threads == 3
    assert Scheduler.from_url("memory://", settings=Settings()).settings.execution.threads == 8


@pytest.mark.parametrize(("variables", "loaded"), [({}, False), ({"RATCHET_NODE__NAME": "x"}, True)])
def test_the_settings_model_is_loaded_only_for_an_environment(
    variables: dict[str, str], loaded: bool
) -> None:
    """Without a variable of ours pydantic-settings is never imported."""
    code = (
        "import sys; from ratchet import Scheduler; Scheduler.from_url('memory://'); "
        "print('pydantic_settings' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=True
    )
    assert done.stdout.strip() == str(loaded)


def test_the_reference_is_current_and_complete() -> None:
    """The committed page is what the model renders to, and every key has a meaning."""
    page = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    assert page == render_settings.render()
    for about, settings in reference().values():
        assert about
        for each in settings:
            assert each.meaning
            assert f"| `{each.variable}` |" in page
    assert variable("execution", "async_") == "RATCHET_EXECUTION__ASYNC"
