"""For all tests."""

import os
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import pytest

from tests.suite.processes import guard
from tests.suite.skips import skips_of, summarize_skips

# Threads that wait for each other sleep: tests run side by side, and a thread that spins takes the core from
# the one it waits for. (OpenMP reads this when PyTorch is loaded, which is later than here.)
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# One thread wherever no test asks for more. OpenBLAS's threads always spin: on a busy machine NumPy's linear
# algebra takes thirty times as much processor time with two of them as with one.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Files that tests run are not recorded as trusted by the user who tests.
os.environ.setdefault("FEDSSL_HOME", tempfile.mkdtemp(prefix="fedssl-tests-"))


def pytest_configure() -> None:
    """The main process and every worker of xdist has its own guard."""
    if sys.platform != "win32":
        guard()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that wait for their own processes for minutes start first, and others run meanwhile."""
    items.sort(key=lambda item: "test_processes" not in item.nodeid)


@pytest.fixture
def warm_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes of `engine.workers` start fast, see `tests.suite.warm`."""
    from fedssl.engines import workers
    from tests.suite.warm import WarmWorker

    monkeypatch.setattr(workers, "subprocess", SimpleNamespace(Popen=WarmWorker, PIPE=subprocess.PIPE))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Nothing is skipped silently. Workers of xdist send their reports to the process that prints this."""
    lines = list(summarize_skips(skips_of(terminalreporter.stats.get("skipped", []))))
    if lines:
        terminalreporter.section("skipped tests")
        for line in lines:
            terminalreporter.write_line(line)
