"""The pytest plugin ``ratchet-conformance-spi``: the options of the suites, and their reports."""

from __future__ import annotations

from typing import Any, Final

import pytest

OPTIONS: Final = ("coordinator", "retry-policy", "error-sanitizer", "resilience", "codec", "executor")
PROPERTY: Final = "ratchet-spi"


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option for each part; given more than once, each is tested."""
    group = parser.getgroup("ratchet-conformance-spi", "conformance of other parts of Ratchet")
    for part in OPTIONS:
        group.addoption(
            f"--ratchet-{part}",
            metavar="PKG.MOD:FACTORY",
            action="append",
            default=[],
            help=f"the {part.replace('-', ' ')} to test with conformance_tests.spi",
        )


def pytest_configure(config: pytest.Config) -> None:
    """Collect what the tests tell."""
    config.pluginmanager.register(_Collector(), "ratchet-conformance-spi-reports")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Tell a mistake in an option before anything is collected."""
    if any(
        "conformance_tests.spi" in each or "conformance_tests/spi" in each for each in session.config.args
    ):
        from conformance_tests.spi.loading import check

        check(session.config)


class _Collector:
    """What became of each contract of each part; with xdist in the controlling process."""

    def __init__(self) -> None:
        self.told: dict[str, dict[str, tuple[str, str]]] = {}  # subject -> contract -> (verdict, why)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that shows a contract: one failure fails it."""
        for name, value in report.user_properties:
            if name != PROPERTY:
                continue
            pair: Any = value
            subject, contract = str(pair[0]), str(pair[1])
            from conformance_tests.report import Verdict

            verdict, why = Verdict.PASSED.value, ""
            if report.failed:
                verdict, why = Verdict.FAILED.value, report.nodeid.rpartition("::")[2]
            elif report.skipped:
                reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
                verdict, _, why = reason.removeprefix("Skipped: ").partition(": ")
            known = self.told.setdefault(subject, {}).get(contract)
            if (
                known is None
                or verdict == Verdict.FAILED
                or (known[0] != Verdict.FAILED and verdict == Verdict.PASSED)
            ):
                self.told[subject][contract] = verdict, why

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """For each part what did not pass, and a verdict."""
        if not self.told:
            return
        from conformance_tests import SUITE_VERSION
        from conformance_tests.report import Verdict

        terminalreporter.section("Ratchet conformance of other parts")
        for subject, contracts in sorted(self.told.items()):
            for contract, (verdict, why) in sorted(contracts.items()):
                if verdict != Verdict.PASSED:
                    terminalreporter.line(f"{verdict:12}  {contract:8}  {why}")
            failed = any(verdict == Verdict.FAILED for verdict, _ in contracts.values())
            end = "incomplete" if failed else "complete"
            terminalreporter.line(f"Ratchet conformance {SUITE_VERSION}, {subject}: {end}")
