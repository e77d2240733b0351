"""The suites of other parts: ours are complete, and one with a fault is noticed by the right contract."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from conformance_tests.obligations import named_in
from conformance_tests.spi.parts import PARTS, contracts_of
from ratchet.spi.codec import PayloadCodec
from ratchet.spi.coordinator import ClusterCoordinator
from ratchet.spi.executor import Executor
from ratchet.spi.resilience import ResilienceStrategy
from ratchet.spi.retry import RetryPolicy
from ratchet.spi.sanitizer import ErrorSanitizer
from scripts import render_part_contracts
from tests.conformance import broken_parts, bus
from tests.docs.test_snippets import ROOT

pytestmark = pytest.mark.timeout(300)  # a run of the suite in a process of its own, on a busy machine

OURS = {
    "coordinator": [
        "tests.conformance.parts:Local",
        "tests.conformance.parts:Sqlite",
        "tests.conformance.bus:Bus",
    ],
    "retry-policy": ["ratchet.defaults.retry:DefaultRetryPolicy"],
    "error-sanitizer": ["ratchet.defaults.sanitizer:DefaultErrorSanitizer"],
    "resilience": ["ratchet.defaults.resilience:PassThrough"],
    "codec": ["tests.conformance.parts:codec"],
    "executor": [f"tests.conformance.parts:{kind}" for kind in ("Threads", "Processes", "Loop")],
}
ABSENT = {
    "tests.conformance.parts:Local": {
        f"CO-{number:02}" for number in (1, 2, 3, 4, 5, 6, 9, 12, 13, 14, 15, 16)
    },
    "tests.conformance.parts:Sqlite": {"CO-02", "CO-06", "CO-12", "CO-13"},
}


def run(*arguments: str) -> tuple[int, str]:
    """Run the suites in a process of their own; exit code and what they printed."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--pyargs",
        "conformance_tests.spi",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=280, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr


def verdicts(output: str) -> Mapping[str, str]:
    """Part -> verdict, as the report says."""
    return dict(re.findall(r"^Ratchet conformance 1\.0, (\S+): (\w+)$", output, re.MULTILINE))


def unpassed(output: str) -> Iterator[tuple[str, str, str]]:
    """(part, verdict, contract) of everything that the report lists."""
    found: list[tuple[str, str]] = []
    for line in output.splitlines():
        if told := re.match(r"(FAILED|NOT DECLARED|NOT OFFERED) +([A-Z]{2}-\d\d) ", line):
            found.append((told[1], told[2]))
        elif end := re.match(r"Ratchet conformance 1\.0, (\S+): ", line):
            yield from ((end[1], *each) for each in found)
            found.clear()


@pytest.mark.parametrize("part", list(OURS))
def test_ours_are_complete(part: str) -> None:
    """Every shipped part passes its suite; what does not apply to it is said, by contract."""
    code, output = run(*(f"--ratchet-{part}={name}" for name in OURS[part]))
    assert code == 0, output[-3000:]
    assert verdicts(output) == dict.fromkeys(OURS[part], "complete")
    absent: dict[str, set[str]] = {}
    for name, _, contract in unpassed(output):
        absent.setdefault(name, set()).add(contract)
    assert absent == {name: ABSENT[name] for name in OURS[part] if name in ABSENT}


def _broken() -> dict[str, dict[str, str]]:
    everything: Mapping[str, Mapping[Any, str]] = {"coordinator": bus.BROKEN, **broken_parts.BROKEN}
    return {
        part: {f"{each.__module__}:{each.__name__}": contract for each, contract in parts.items()}
        for part, parts in everything.items()
    }


@pytest.mark.parametrize("part", list(OURS))
def test_faults_are_noticed(part: str) -> None:
    """Each part with a fault fails at least the contract that the fault breaks."""
    expected = _broken()[part]
    shows = {each.id: each.test.rpartition("::")[2] for each in contracts_of(part)}
    pairs = [f"({shows[contract]} and {name.partition(':')[2]})" for name, contract in expected.items()]
    options = [f"--ratchet-{part}={name}" for name in expected]
    _, output = run(*options, "--tb=no", "-r", "N", "-k", " or ".join(pairs))
    failed: dict[str, set[str]] = {}
    for name, verdict, contract in unpassed(output):
        if verdict == "FAILED":
            failed.setdefault(name, set()).add(contract)
    missed = {
        name: contract for name, contract in expected.items() if contract not in failed.get(name, set())
    }
    assert not missed, f"{failed}\n{output[-3000:]}"


PROTOCOLS = {
    "coordinator": ClusterCoordinator,
    "retry-policy": RetryPolicy,
    "error-sanitizer": ErrorSanitizer,
    "resilience": ResilienceStrategy,
    "codec": PayloadCodec,
    "executor": Executor,
}


@pytest.mark.parametrize("part", list(PARTS))
def test_obligations(part: str) -> None:
    """The docstring of each protocol names exactly the contracts that its suite shows."""
    shown = [each.id for each in contracts_of(part)]
    assert sorted(named_in(PROTOCOLS[part].__doc__ or "", shown)) == shown
    assert len(shown) >= 5


def test_the_page_is_current() -> None:
    """The committed page is what the suites render to."""
    assert render_part_contracts.PAGE.read_text(encoding="utf-8") == render_part_contracts.render()


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--ratchet-codec=no.such.module:Codec", "there is no module 'no' on the import path"),
        ("--ratchet-codec=tests.conformance.parts:codek", "did you mean 'codec'?"),
        ("--ratchet-codec=tests.conformance.parts:Local", "--ratchet-codec names a PayloadCodec"),
        ("--ratchet-codec=tests.conformance.parts", "write it like"),
        ("", "say what to test"),
    ],
)
def test_mistakes_are_told(option: str, sentence: str) -> None:
    """A factory that is not there, or makes something else, is told in one sentence without a traceback."""
    code, output = run(*filter(None, [option]))
    assert code == pytest.ExitCode.USAGE_ERROR, output
    assert sentence in output
    assert "Traceback" not in output
