"""BYOL (Grill et al. 2020): the online network predicts the output of a slow copy for the other view.

Three parts can be switched off (FedEMA, Figs. 2 and 3). With `stop_gradient=false` the optimizer trains the
target as well; with `ema=false` the target does not follow the online network. With both, the target is
updated by back-propagation only; with `ema=false` alone, only by the federated method.

The code of FedEMA's authors defines the target differently, which matters in these ablations
(`target="reference-code"`). In a client's first round it is the online network itself. After that it is a
separate network that the optimizer never updates, so that `stop_gradient` has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from fedssl.models.heads import build_predictor, build_projector, project
from fedssl.models.model import Model, Part, Role
from fedssl.models.options import ModelConfig
from fedssl.objectives.losses import negative_cosine
from fedssl.objectives.objective import Objective
from fedssl.objectives.target import follow, target_part


class BYOL(Objective):
    """BYOL: predict a slow copy's projection; 2 − 2cos summed over both directions (Eq. 2).

    The views are SimCLR's, as in FedEMA §B.1. Each view is a separate batch, with its own statistics.
    """

    couples: ClassVar[str] = ""

    momentum: float = Field(0.99, ge=0, le=1, description="m of the target's moving average, per batch")
    predictor: bool = Field(True, description="false: a view's projection is its own prediction (ablation)")
    stop_gradient: bool = Field(True, description="false: the optimizer trains the target too (ablation)")
    ema: bool = Field(True, description="false: the target does not follow the online network (ablation)")
    target: Literal["text", "reference-code"] = Field(
        "text",
        description="text: a copy of the online network; reference-code: in a client's first round the "
        "online network itself, later never trained by the optimizer, as in FedEMA's code",
    )

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        projector = build_projector(features, config)
        parts = {"encoder": Part(encoder), "projector": Part(projector)}
        if self.predictor:
            parts["predictor"] = Part(build_predictor(config))
        trained = self.target == "text" and not self.stop_gradient
        parts["target"] = target_part(encoder, projector, takes_gradient=trained)
        if self.target == "reference-code":
            parts["rounds"] = Part(Rounds(), Role.PRIVATE)
        return Model(**parts)

    def before_round(self, model: Model) -> None:
        if self.target == "reference-code":
            cast(Rounds, model.part("rounds")).count.add_(1)

    def _targets_itself(self, model: Model) -> bool:
        """Whether the target is the online network itself."""
        return self.target == "reference-code" and int(cast(Rounds, model.part("rounds")).count) <= 1

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        z1, z2 = (project(model, view) for view in views)
        p1, p2 = (model.part("predictor")(z) if self.predictor else z for z in (z1, z2))
        if self._targets_itself(model):
            t1, t2 = (z.detach() if self.stop_gradient else z for z in (z1, z2))
        else:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.stop_gradient):
                t1, t2 = (model.part("target")(view) for view in views)
        return 4 + 2 * (negative_cosine(p1, t2) + negative_cosine(p2, t1))

    def after_step(self, model: Model) -> None:
        if self._targets_itself(model):
            follow(model, 0.0)
        elif self.ema:
            follow(model, self.momentum)


class Rounds(nn.Module):
    """The number of rounds that a client has started; private."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
