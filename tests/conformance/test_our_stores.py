"""Our own stores are complete: the whole suite, as an author would run it, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import NOT_RUN

ROOT = Path(__file__).resolve().parents[2]


def conformance(*words: str, report: Path, **environment: str) -> str:
    """The verdict of a run; the test fails where the run does."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--pyargs",
        "conformance_tests",
    ]
    command += [*words, "--ratchet-report-json", str(report)]
    run = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    print(run.stdout[-400:])
    return str(json.loads(report.read_text())["verdict"])


def is_complete(*words: str, report: Path) -> None:
    """Complete, and the committed page says what the run says."""
    verdict = conformance(*words, report=report)
    assert "complete" in verdict, verdict
    assert "incomplete" not in verdict
    page = [sys.executable, "scripts/render_conformance.py", "--check", str(report)]
    current = subprocess.run(page, cwd=ROOT, capture_output=True, text=True, check=False)
    assert current.returncode == 0, current.stdout + current.stderr


@pytest.mark.timeout(900)
@pytest.mark.stores("memory", "sqlite")
def test_complete(store_url: str, tmp_path: Path) -> None:
    """Every contract that the suite lists is shown by this store, and its committed report says what the run says."""
    scheme = store_url.partition(":")[0]
    # The harness of the memory store names its own.
    url = "memory://" if scheme == "memory" else store_url
    is_complete("--ratchet-url", url, report=tmp_path / f"{scheme}.json")


# -- MongoDB: sync on a replica set completely; elsewhere what the driver or the deployment makes different -----


@pytest.mark.timeout(1800)
@pytest.mark.stores("mongodb")
@pytest.mark.mongodb_needs("speed")
def test_mongodb_is_complete(store_url: str, tmp_path: Path) -> None:
    """Every contract that the suite lists is shown by this store, and its committed report says what the run says."""
    is_complete("--ratchet-harness", "tests.mongo.harness:MongoHarness", report=tmp_path / "mongodb.json")


DRIVERS = "ASYNC-*,STORE-*,UNIT-*,RACE-01,RACE-20,RACE-21,MANY-*"
DEPLOYMENTS = "STORE-*,UNIT-*,WAKE-*,INSERT-14,RACE-01,MANY-*"


@pytest.mark.timeout(900)
@pytest.mark.stores("mongodb")
@pytest.mark.mongodb_needs("speed")
@pytest.mark.parametrize(
    ("harness", "standalone", "contracts"),
    [
        ("AsyncMongoHarness", "0", DRIVERS),
        ("MotorHarness", "0", DRIVERS),
        ("MongoHarness", "1", DEPLOYMENTS),
        ("AsyncMongoHarness", "1", f"{DEPLOYMENTS},ASYNC-*"),
        ("MotorHarness", "1", f"{DEPLOYMENTS},ASYNC-*"),
    ],
    ids=["async", "motor", "standalone", "async-standalone", "motor-standalone"],
)
def test_mongodb_in_other_flavours(
    store_url: str, tmp_path: Path, harness: str, standalone: str, contracts: str
) -> None:
    """Contracts in which drivers and deployments may differ hold in every flavour (`nox -s soak` runs all of them)."""
    if standalone == "1" and os.environ.get("RATCHET_TEST_MONGODB_URL"):
        pytest.skip(f"{NOT_RUN}mongodb: the deployment is what it is")
    words = ["--ratchet-harness", f"tests.mongo.harness:{harness}", "--ratchet-contracts", contracts]
    report = tmp_path / "flavour.json"
    conformance(*words, report=report, RATCHET_TEST_MONGODB_STANDALONE=standalone)
    told = Counter(row["verdict"] for row in json.loads(report.read_text())["contracts"])
    assert told["PASSED"] >= 10, told
