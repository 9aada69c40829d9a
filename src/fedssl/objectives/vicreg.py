"""VICReg (Bardes, Ponce, LeCun, ICLR 2022): variance, invariance, covariance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.models.heads import build_projector, project
from fedssl.models.model import Model, Part
from fedssl.models.options import ModelConfig
from fedssl.objectives.losses import full_precision
from fedssl.objectives.objective import Objective


class VICReg(Objective):
    """VICReg: views agree, every dimension keeps its variance, and dimensions are decorrelated.

    Each view is a separate batch, with its own batch statistics.
    """

    couples: ClassVar[str] = "keeps the variance of features over the batch"

    invariance: float = Field(25.0, ge=0, description="weight of the distance between views")
    variance: float = Field(25.0, ge=0, description="weight of the variance term")
    covariance: float = Field(1.0, ge=0, description="weight of the covariance term")

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        return Model(encoder=Part(encoder), projector=Part(build_projector(features, config)))

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        a, b = (project(model, view) for view in views)
        return vicreg(a, b, self.invariance, self.variance, self.covariance)


@full_precision
def vicreg(a: Tensor, b: Tensor, invariance: float, variance: float, covariance: float) -> Tensor:
    """λ·s(a, b) + μ·[v(a) + v(b)]/2 + ν·[c(a) + c(b)] (Eqs. 1 to 6; v is halved as in the authors' code)."""
    spread = (_missing_deviation(a) + _missing_deviation(b)) / 2
    redundancy = _covariance(a) + _covariance(b)
    return invariance * F.mse_loss(a, b) + variance * spread + covariance * redundancy


def _missing_deviation(z: Tensor) -> Tensor:
    """How far the standard deviation of each dimension is below 1, on average."""
    return F.relu(1 - (z.var(dim=0) + 1e-4).sqrt()).mean()


def _covariance(z: Tensor) -> Tensor:
    """Σ_{i≠j} Cov(z)²_ij / d."""
    centered = z - z.mean(dim=0)
    covariance = centered.T @ centered / (len(z) - 1)
    return (covariance.square().sum() - covariance.diagonal().square().sum()) / z.shape[1]
