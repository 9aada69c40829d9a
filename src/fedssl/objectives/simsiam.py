"""SimSiam (Chen & He 2021): each view predicts the other one's projection, which takes no gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedssl.models.heads import build_predictor, build_projector, project
from fedssl.models.model import Model, Part
from fedssl.models.options import ModelConfig
from fedssl.objectives.losses import negative_cosine
from fedssl.objectives.objective import Objective


class SimSiam(Objective):
    """SimSiam: predict the other view; −½cos(p₁, sg z₂) − ½cos(p₂, sg z₁) (Eq. 4).

    Each view is a separate batch, with its own batch statistics.
    """

    couples: ClassVar[str] = ""

    predictor: bool = Field(True, description="false: a view's projection is its own prediction (ablation)")
    stop_gradient: bool = Field(True, description="false: predictions also train their targets (ablation)")

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        parts = {"encoder": Part(encoder), "projector": Part(build_projector(features, config))}
        if self.predictor:
            parts["predictor"] = Part(build_predictor(config))
        return Model(**parts)

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        z1, z2 = (project(model, view) for view in views)
        p1, p2 = (model.part("predictor")(z) if self.predictor else z for z in (z1, z2))
        if self.stop_gradient:
            z1, z2 = z1.detach(), z2.detach()
        return (negative_cosine(p1, z2) + negative_cosine(p2, z1)) / 2
