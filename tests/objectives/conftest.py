from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.threads import one_thread  # noqa: F401
from torch import Tensor

from fedssl.models.encoders import build_encoder
from fedssl.models.model import Model
from fedssl.models.options import ModelConfig
from fedssl.objectives.objective import Objective

TINY = {"width": 4, "projector_hidden": 16, "projector_out": 8, "predictor_hidden": 16, "patch": 4}


@pytest.fixture
def build() -> Callable[..., Model]:
    """A tiny model for an objective, with the same weights whenever it is built."""

    def build(objective: Objective, encoder: str = "resnet8", classes: int = 3, **model: int) -> Model:
        config = ModelConfig(encoder=encoder, **{**TINY, **model})
        with torch.random.fork_rng():
            torch.manual_seed(0)
            made = build_encoder(config, (8, 8), 3)
            return objective.build(made.module, made.features, config, classes)

    return build


@pytest.fixture
def views() -> list[Tensor]:
    """Two similar views of six 8×8 images."""
    rng = torch.Generator().manual_seed(1)
    images = torch.randn(6, 3, 8, 8, generator=rng)
    return [images + 0.3 * torch.randn(images.shape, generator=rng) for _ in range(2)]


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(2)
