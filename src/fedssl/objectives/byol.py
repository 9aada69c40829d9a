"""BYOL (Grill et al. 2020): the online network predicts what a slow copy of it makes of the other view.

Its three parts are switches (FedEMA, Figs. 2 and 3). Without `stop_gradient` the optimizer trains the
target as well; without `ema` the online network does not move it. Without both, the target is updated
by back-propagation only; without `ema` alone, by nothing but the federated method.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from fedssl.models.heads import build_predictor, build_projector, project
from fedssl.models.model import Model, Part
from fedssl.models.options import ModelConfig
from fedssl.objectives.losses import negative_cosine
from fedssl.objectives.objective import Objective
from fedssl.objectives.target import follow, target_part


class BYOL(Objective):
    """BYOL: predict a slow copy's view; 2 − 2cos summed over both directions (Eq. 2).

    The views are SimCLR's, as in FedEMA §B.1. They go through apart, each with its own batch statistics.
    """

    momentum: float = Field(0.99, ge=0, le=1, description="m of the target's moving average, per batch")
    predictor: bool = Field(True, description="false: a view's projection is its own prediction (ablation)")
    stop_gradient: bool = Field(True, description="false: the optimizer trains the target too (ablation)")
    ema: bool = Field(True, description="false: the target does not follow the online network (ablation)")

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        projector = build_projector(features, config)
        parts = {"encoder": Part(encoder), "projector": Part(projector)}
        if self.predictor:
            parts["predictor"] = Part(build_predictor(config))
        parts["target"] = target_part(encoder, projector, takes_gradient=not self.stop_gradient)
        return Model(**parts)

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        z1, z2 = (project(model, view) for view in views)
        p1, p2 = (model.part("predictor")(z) if self.predictor else z for z in (z1, z2))
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.stop_gradient):
            t1, t2 = (model.part("target")(view) for view in views)
        return 4 + 2 * (negative_cosine(p1, t2) + negative_cosine(p2, t1))

    def after_step(self, model: Model) -> None:
        if self.ema:
            follow(model, self.momentum)
