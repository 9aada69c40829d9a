from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import fedssl
from tests.generative.small import run_of
from tests.threads import one_thread  # noqa: F401


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Reference classifiers are cached in a temporary folder instead of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSSL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def gan(runs: Path) -> fedssl.Run:
    return run_of("gan", runs / "gan")


@pytest.fixture(scope="session")
def conditional(runs: Path) -> fedssl.Run:
    return run_of("conditional-gan", runs / "conditional")
