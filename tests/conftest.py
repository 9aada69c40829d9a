"""For all tests."""

import os
import sys
import tempfile

import pytest

from tests.suite.processes import guard
from tests.suite.skips import skips_of, summarize_skips

# Threads that wait for each other sleep: tests run side by side, and a thread that spins takes the core from
# the one it waits for. (OpenMP reads this when PyTorch is loaded, which is later than here.)
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Files that tests run are not recorded as trusted by the user who tests.
os.environ.setdefault("FEDSSL_HOME", tempfile.mkdtemp(prefix="fedssl-tests-"))


def pytest_configure() -> None:
    """The main process and every worker of xdist has a guard of its own."""
    if sys.platform != "win32":
        guard()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that wait for minutes on processes of their own begin first, and others run beside them."""
    items.sort(key=lambda item: "test_processes" not in item.nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Nothing is skipped silently. Workers of xdist send their reports to the process that prints this."""
    lines = list(summarize_skips(skips_of(terminalreporter.stats.get("skipped", []))))
    if lines:
        terminalreporter.section("skipped tests")
        for line in lines:
            terminalreporter.write_line(line)
