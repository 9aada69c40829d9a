"""For all tests."""

import os

import pytest

# Threads that wait for each other sleep: tests run side by side, and a thread that spins takes the core from
# the one it waits for. (OpenMP reads this when PyTorch is loaded, which is later than here.)
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that wait for minutes on processes of their own begin first, and others run beside them."""
    items.sort(key=lambda item: "test_processes" not in item.nodeid)
