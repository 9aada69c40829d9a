"""For all tests."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that wait for minutes on processes of their own begin first, and others run beside them."""
    items.sort(key=lambda item: "test_processes" not in item.nodeid)
