"""What the options name: loaded and tried before any test runs, a mistake told in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import pytest

from conformance_tests.checks import HarnessMistake, load
from conformance_tests.spi.harness import CoordinatorHarness, ExecutorHarness
from conformance_tests.spi.parts import PARTS
from ratchet.spi.codec import PayloadCodec
from ratchet.spi.coordinator import ClusterCoordinator
from ratchet.spi.resilience import ResilienceStrategy
from ratchet.spi.retry import RetryPolicy
from ratchet.spi.sanitizer import ErrorSanitizer

Factory = Callable[[], Any]

_WANTED: Final[dict[str, tuple[type, ...]]] = {
    "coordinator": (CoordinatorHarness, ClusterCoordinator),
    "retry-policy": (RetryPolicy,),
    "error-sanitizer": (ErrorSanitizer,),
    "resilience": (ResilienceStrategy,),
    "codec": (PayloadCodec,),
    "executor": (ExecutorHarness,),
}


def named(config: pytest.Config, part: str) -> list[str]:
    """What the option of this part names."""
    return list(config.getoption(f"--ratchet-{part}", default=[]) or ())


def check(config: pytest.Config) -> None:
    """Load and try everything that is named.

    Raises:
        pytest.UsageError: nothing is named, a name leads nowhere, or it makes something else.
    """
    names = [(part, name) for part in PARTS for name in named(config, part)]
    if not names:
        told = ", ".join(f"--ratchet-{part}" for part in PARTS)
        raise pytest.UsageError(f"say what to test: {told}, each PKG.MOD:FACTORY")
    for part, name in names:
        _try(part, name)


def _try(part: str, name: str) -> None:
    if ":" not in name.strip(":"):
        raise pytest.UsageError(f"{name!r} names no factory; write it like mypkg.module:factory")
    try:
        made = load(name)()
    except HarnessMistake as mistake:
        raise pytest.UsageError(str(mistake)) from None
    except Exception as error:
        raise pytest.UsageError(f"{name}() raised {type(error).__name__}: {error}") from None
    close = getattr(made, "close", None)
    if callable(close):
        with suppress(Exception):
            close()
    if not isinstance(made, _WANTED[part]):
        raise pytest.UsageError(f"{name} makes a {type(made).__name__}; --ratchet-{part} names {PARTS[part]}")
