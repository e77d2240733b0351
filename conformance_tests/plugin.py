"""The pytest plugin ``ratchet-conformance``; loaded at every start of pytest, so it imports nothing until used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from conformance_tests.report import Results

pytest_plugins = ["conformance_tests.spi.plugin"]  # the options of the suites of other parts

PROPERTY: Final = "ratchet"
"""Name under which a test report carries its contract."""

_OTHER_SUITES: Final = ("conformance_tests.spi", "conformance_tests/spi", "conformance_tests/mutants")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suite."""
    group = parser.getgroup("ratchet-conformance", "conformance of a Ratchet store")
    group.addoption("--ratchet-harness", metavar="PKG.MOD:NAME", help="the StoreHarness of the store to test")
    group.addoption(
        "--ratchet-url",
        metavar="URL",
        help="hand this URL to the harness; without one, to that of its scheme",
    )
    group.addoption("--ratchet-contracts", metavar="IDS", help="only these contracts, like CLAIM-06,FENCE-*")
    group.addoption(
        "--ratchet-soak", metavar="SECONDS", type=float, default=0.0, help="run the endurance test this long"
    )
    group.addoption("--ratchet-report-json", metavar="FILE", help="write the report as JSON")
    group.addoption("--ratchet-report-md", metavar="FILE", help="write the report as Markdown")


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker of the suite, and collect reports."""
    config.addinivalue_line(
        "markers", "field_case(*names): reports from the field whose clauses the test shows"
    )
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line("markers", "timeout(seconds): for pytest-timeout, where it is installed")
    config.pluginmanager.register(_Collector(config), "ratchet-conformance-reports")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Tell a mistake of the harness before anything is collected, in the controlling process of xdist, too."""
    for argument in session.config.args:
        if "conformance_tests" in argument and not any(other in argument for other in _OTHER_SUITES):
            from conformance_tests.session import begin

            begin(session.config)


class _Collector:
    """What became of each contract; with xdist in the controlling process."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._results: Results | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that shows a contract."""
        for name, value in report.user_properties:
            if name == PROPERTY:
                if self._results is None:
                    from conformance_tests.report import Results

                    self._results = Results()
                self._results.add(report, value)  # type: ignore[arg-type]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the reports; a whole run that is not complete has failed."""
        option, results = self._config.getoption, self._results
        if results is None or hasattr(self._config, "workerinput"):
            return
        results.write(option("--ratchet-report-json"), option("--ratchet-report-md"))
        narrowed = option("--ratchet-contracts") or option("keyword") or option("markexpr")
        narrowed = narrowed or any("::" in each or each.endswith(".py") for each in self._config.args)
        results.selection = bool(narrowed)
        if not narrowed and exitstatus == pytest.ExitCode.OK and not results.complete:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The report, ending with the verdict."""
        if self._results is not None:
            terminalreporter.section("Ratchet store conformance")
            for line in self._results.lines(verbose=self._config.get_verbosity() > 0):
                terminalreporter.line(line)
