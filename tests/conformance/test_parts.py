"""The suites of other parts: ours are complete, and one with a fault is noticed by the right contract."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module

import pytest

from conformance_tests.spi.parts import shown_by
from tests.conformance import broken_parts, bus
from tests.docs.test_snippets import ROOT

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
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=110, cwd=ROOT)
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
    everything: dict[str, Mapping[type, str]] = {"coordinator": bus.BROKEN, **broken_parts.BROKEN}
    return {
        part: {f"{each.__module__}:{each.__name__}": contract for each, contract in parts.items()}
        for part, parts in everything.items()
    }


def _tests_of(part: str) -> dict[str, str]:
    """Contract -> the name of its test."""
    module = import_module(f"conformance_tests.spi.test_{part.replace('-', '_')}")
    tests = {name: shown_by(each) for name, each in vars(module).items() if name.startswith("test_")}
    return {shown.id: name for name, shown in tests.items() if shown is not None}


@pytest.mark.parametrize("part", list(OURS))
def test_faults_are_noticed(part: str) -> None:
    """Each part with a fault fails at least the contract that the fault breaks."""
    expected = _broken()[part]
    shows = _tests_of(part)
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
