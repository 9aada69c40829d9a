"""Generated bad input gives clear errors, and former crashes stay fixed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from hypothesis import HealthCheck, given, settings

from tests.fuzz.targets import TARGETS, limited, replay

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.json"))
EXAMPLES = 300


@pytest.mark.parametrize("name", TARGETS)
def test_generated_bad_input_gives_clear_errors(name: str) -> None:
    target = TARGETS[name]

    @settings(
        max_examples=max(4, round(target.share * EXAMPLES)),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(target.strategy())
    def check(value: object) -> None:
        with limited():
            target.check(value)

    check()


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_former_crashes_give_clear_errors(file: Path) -> None:
    replay(file)
