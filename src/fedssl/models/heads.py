"""The heads on top of an encoder.

All objectives share one shape, that of FedEMA's experiments: Linear-BN-ReLU-Linear (4096 and 2048 wide at the
papers' scale; `model.projector_*` here). Objectives therefore differ in their loss only: Barlow Twins has two
layers instead of three, and SimSiam no BatchNorm at its output. MoCo v1 has one linear layer, as have all
objectives with `model.projector=linear`, like the code of L-DAWA's authors. `model.projector_norm=none` is
the projector of FedStyle, without BatchNorm.
"""

from __future__ import annotations

from torch import Tensor, nn

from fedssl.models.model import Model
from fedssl.models.norms import group_norm
from fedssl.models.options import ModelConfig


def mlp(inputs: int, hidden: int, outputs: int, norm: str = "batch") -> nn.Sequential:
    """Linear-BN-ReLU-Linear; the first layer has no bias, because BatchNorm would remove it.

    With `norm="group"`, group normalization, which has its own bias, takes BatchNorm's place.
    """
    return nn.Sequential(
        nn.Linear(inputs, hidden, bias=False),
        nn.BatchNorm1d(hidden) if norm == "batch" else group_norm(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, outputs),
    )


def build_projector(features: int, config: ModelConfig) -> nn.Module:
    """Build the projector, which maps features to the space of the loss."""
    if config.projector == "linear":
        return nn.Linear(features, config.projector_out)
    if config.projector_norm == "none":
        hidden = nn.Linear(features, config.projector_hidden)
        return nn.Sequential(
            hidden, nn.ReLU(inplace=True), nn.Linear(hidden.out_features, config.projector_out)
        )
    return mlp(features, config.projector_hidden, config.projector_out, config.norm)


def build_predictor(config: ModelConfig) -> nn.Module:
    """Build the predictor, which maps one view's projection to the other's."""
    return mlp(config.projector_out, config.predictor_hidden, config.projector_out, config.norm)


def project(model: Model, images: Tensor) -> Tensor:
    """Apply the model's encoder and projector."""
    projection: Tensor = model.part("projector")(model.part("encoder")(images))
    return projection
