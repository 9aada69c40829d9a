"""The supervised baseline: cross-entropy by hand, and its requirements on the data."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedssl.errors import ConfigError, DataError
from fedssl.models.model import Model
from fedssl.objectives.supervised import Supervised


def test_cross_entropy_by_hand(
    build: Callable[..., Model], views: list[Tensor], rng: torch.Generator
) -> None:
    model = build(Supervised())
    labels = [0, 1, 2, 0, 1, 2]
    loss = Supervised().loss(model, views[:1], torch.tensor(labels), rng)
    total = 0.0
    for scores, label in zip(model.part("classifier")(model.part("encoder")(views[0])), labels, strict=True):
        exponentials = [math.exp(float(score)) for score in scores.detach()]
        total -= math.log(exponentials[label] / sum(exponentials))
    assert float(loss.detach()) == pytest.approx(total / 6, rel=1e-5)


def test_labels_and_two_classes_are_required(
    build: Callable[..., Model], views: list[Tensor], rng: torch.Generator
) -> None:
    objective = Supervised()
    assert objective.needs_labels
    assert objective.num_views == 1
    for classes in (0, 1):
        with pytest.raises(ConfigError, match=f"at least 2 classes, but the data have {classes}"):
            build(objective, classes=classes)
    with pytest.raises(DataError, match="needs labels"):
        objective.loss(build(objective), views[:1], None, rng)
