"""Recipes in temporary files, and a stand-in for training that takes no time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedssl.config import Config
from fedssl.papers.recipe import Recipe, load
from fedssl.tables import runner

SMALL = """
title = "a comparison"
source = "Table 1"
[base]
rounds = 2
data = { name = "digits", limit = 100 }
model = { width = 4, projector_hidden = 32, projector_out = 16, predictor_hidden = 32 }
partition = { scheme = "classes", clients = 5, classes = 2 }
train = { epochs = 1, batch_size = 16 }
probe = { every = 1 }
engine = { threads = 1 }
log = { tensorboard = false }
[[column]]
name = "iid"
config = { partition = "iid" }
[[column]]
name = "skewed"
config = { partition = { scheme = "classes", classes = 2 } }
[[row]]
name = "SimCLR"
config = { objective = "simclr" }
paper = { iid = 70.0, skewed = [60.0, 0.5] }
[[row]]
name = "BYOL"
config = { objective = "byol" }
paper = { iid = 80.0 }
[[ordering]]
better = "BYOL"
worse = "SimCLR"
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def to_file(text: str, name: str = "mine.toml") -> Path:
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        return file

    return to_file


@pytest.fixture
def small(write: Callable[..., Path]) -> Recipe:
    return load(str(write(SMALL)))


class FakeTraining:
    """Writes the files of a run. `fails` and `dies` are functions of the config."""

    def __init__(self) -> None:
        self.trained: list[Path] = []
        self.accuracy: Callable[[Config], float] = lambda config: 0.5
        self.untrained = 0.25
        self.fails: Callable[[Config], bool] = lambda config: False

    def __call__(self, config: Config, path: Path) -> None:
        self.trained.append(path)
        path.mkdir(parents=True, exist_ok=True)
        if self.fails(config):
            raise ValueError("no such\nluck")
        entry = {"accuracy": self.accuracy(config), "untrained": self.untrained}
        result: dict[str, Any] = {
            "probes": [{"protocol": protocol, **entry} for protocol in ("linear", "knn")],
            "why_no_probes": "",
            "seconds": 2.0,
        }
        (path / "result.json").write_text(json.dumps(result))


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> FakeTraining:
    fake = FakeTraining()
    monkeypatch.setattr(runner, "train", fake)
    return fake
