"""Settings from the environment: `RatchetSettings`, read once at the edge and turned into plain `Settings`."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import re
import typing
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, NoReturn

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from ratchet.errors import ConfigurationError
from ratchet.settings import (
    ExecutionSettings,
    NodeSettings,
    PayloadSettings,
    PollingSettings,
    Settings,
    TimeoutSettings,
)

PREFIX: Final = "RATCHET_"
SEPARATOR: Final = "__"
_NUMBER: Final = re.compile(r"\s*[+-]?\d+(\.\d*)?\s*")


class _Environment(EnvSettingsSource):
    """The environment, in which a variable of no known group is a mistake, not somebody else's."""

    def __call__(self) -> dict[str, Any]:
        """The values found."""
        groups = sorted(self.settings_cls.model_fields)
        for name in self.env_vars:
            group, separator, _ = name.upper().removeprefix(PREFIX).partition(SEPARATOR)
            if separator and name.upper().startswith(PREFIX) and group.lower() not in groups:
                _unknown(f"the variable {name.upper()} names no group of settings", group.lower(), groups)
        return super().__call__()


class RatchetSettings(BaseSettings):
    """Every setting, from keyword arguments and the environment; keywords win. See `Settings` for the groups.

    A variable is ``RATCHET_<GROUP>__<KEY>``, like ``RATCHET_NODE__ORPHAN_GRACE=10``. A duration is a number of
    seconds or ISO 8601 (``PT10S``); several tags are separated by commas. A whole group may be given as JSON
    (``RATCHET_NODE='{"orphan_grace": 10}'``).

        >>> RatchetSettings(node={"orphan_grace": "PT10S"}).to_settings().node.orphan_grace
        datetime.timedelta(seconds=10)

    Raises:
        ConfigurationError: an unknown key (the message names the nearest), or a value that does not fit.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        env_prefix=PREFIX,
        env_nested_delimiter=SEPARATOR,
        extra="forbid",
        enable_decoding=False,  # values are read here, so that a list of tags need not be JSON
    )

    # The groups are the frozen dataclasses themselves: no key and no default is written twice.
    execution: ExecutionSettings = Field(default_factory=ExecutionSettings)
    node: NodeSettings = Field(default_factory=NodeSettings)
    timeouts: TimeoutSettings = Field(default_factory=TimeoutSettings)
    payload: PayloadSettings = Field(default_factory=PayloadSettings)
    polling: PollingSettings = Field(default_factory=PollingSettings)

    def __init__(self, **groups: Any) -> None:
        for name in groups:
            if name not in type(self).model_fields:
                _unknown(f"{name!r} is no group of settings", name, sorted(type(self).model_fields))
        try:
            super().__init__(**groups)
        except ValidationError as error:
            raise ConfigurationError(_told(error)) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Keywords, then the environment; no files."""
        return init_settings, _Environment(settings_cls)

    @field_validator("*", mode="before")
    @classmethod
    def _read(cls, value: object, info: ValidationInfo) -> object:
        group = info.field_name or ""
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise ConfigurationError(
                    f"{variable(group)} is not JSON; set single keys, like {variable(group, 'KEY')}=..."
                ) from None
        if not isinstance(value, Mapping):
            return value
        kinds = typing.get_type_hints(type(cls.model_fields[group].get_default(call_default_factory=True)))
        return {key: _value(kinds[key], given) for key, given in _keys(group, value, kinds)}

    def to_settings(self) -> Settings:
        """The same values as the scheduler takes them."""
        return Settings(**{name: getattr(self, name) for name in type(self).model_fields})


def variable(group: str, key: str = "") -> str:
    """The name of the environment variable of a key (or of a whole group)."""
    name = f"{PREFIX}{group}{SEPARATOR}{key}" if key else f"{PREFIX}{group}"
    return name.upper().removesuffix("_")


def _keys(group: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in given.items():
        name = key if key in known else f"{key}_"  # async_ is a word of the language without its mark
        if name not in known:
            _unknown(
                f"{group}.{key} is no setting ({variable(group, key)})",
                key,
                [each.rstrip("_") for each in known],
            )
        yield name, value


def _value(kind: Any, given: Any) -> Any:
    if not isinstance(given, str):
        return given
    if kind is timedelta and _NUMBER.fullmatch(given):
        return float(given)
    if typing.get_origin(kind) is frozenset:
        return frozenset(part.strip() for part in given.split(",") if part.strip())
    return given


def _unknown(problem: str, word: str, known: list[str]) -> NoReturn:
    near = difflib.get_close_matches(word, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    raise ConfigurationError(f"{problem}; {hint}")


def _told(error: ValidationError) -> str:
    """What is wrong, by key and variable; never the whole input, which might hold secrets."""
    told = []
    for each in error.errors(include_url=False, include_context=False):
        place = [str(part) for part in each["loc"]]
        name = variable(place[0], place[1]) if len(place) > 1 else variable(place[0])
        hint = (
            "; write seconds, like 10 or 0.5, or ISO 8601, like PT10S" if "time_delta" in each["type"] else ""
        )
        told.append(f"{'.'.join(place)} ({name}): {each['msg']}{hint}")
    return "; ".join(told)


# -- the reference ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One key, for the documentation."""

    group: str
    key: str
    variable: str
    kind: str
    default: str
    meaning: str


_KINDS: Final = {timedelta: "duration", int: "whole number", float: "number", str | None: "text"}


def reference() -> dict[str, tuple[str, list[Setting]]]:
    """Group -> (what it is about, its keys), from the model and the docstrings of its groups."""
    found = {}
    for group, field in RatchetSettings.model_fields.items():
        defaults = field.get_default(call_default_factory=True)
        about, meanings = _documented(type(defaults))
        kinds = typing.get_type_hints(type(defaults))
        found[group] = (
            about,
            [
                Setting(
                    group,
                    each.name,
                    variable(group, each.name),
                    _KINDS.get(kinds[each.name], "texts, separated by commas"),
                    _shown(getattr(defaults, each.name)),
                    meanings[each.name],
                )
                for each in dataclasses.fields(defaults)
            ],
        )
    return found


def _documented(cls: type) -> tuple[str, dict[str, str]]:
    """(summary, attribute -> meaning) of a docstring in the house's form."""
    summary, _, attributes = (inspect.getdoc(cls) or "").partition("\n\nAttributes:\n")
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in inspect.cleandoc(attributes).splitlines():
        if not line.startswith(" "):
            head, _, text = line.partition(": ")
            names = [name.strip() for name in head.split(",")]
            meanings |= dict.fromkeys(names, text)
        else:
            for name in names:
                meanings[name] += f" {line.strip()}"
    return " ".join(summary.split()), meanings


def _shown(value: object) -> str:
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        for size, unit in ((3600, "h"), (60, "min"), (1, "s")):
            if seconds and seconds % size == 0:
                return f"{seconds / size:g} {unit}"
        return f"{seconds * 1000:g} ms" if seconds else "0"
    if value is None or value == frozenset():
        return "-"
    return str(value)
