"""Without SECAGG_VECTORS one test reports that the suites were not run; with it, their counts end the run."""

from __future__ import annotations

import pytest

from tests.harness.suites import TALLIES, folder

collect_ignore_glob = [] if folder() else ["test_suite_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TALLIES:
        terminalreporter.section("suites of others")
        for name, tally in sorted(TALLIES.items()):
            terminalreporter.line(f"{name}: {tally}")
