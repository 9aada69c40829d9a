"""Two runs with canaries: without and with differential privacy."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedssl
from tests.small import small_run

CANARIES = {"privacy.canaries": 40, "data.limit": 400}
PRIVATE = {"privacy.mode": "client", "privacy.noise": 1.0}


@pytest.fixture(scope="package")
def plain(tmp_path_factory: pytest.TempPathFactory) -> fedssl.Run:
    return small_run(tmp_path_factory.mktemp("audit") / "plain", **CANARIES)


@pytest.fixture(scope="package")
def private(tmp_path_factory: pytest.TempPathFactory) -> fedssl.Run:
    return small_run(tmp_path_factory.mktemp("audit") / "private", **CANARIES, **PRIVATE)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"
