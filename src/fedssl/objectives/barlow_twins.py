"""Barlow Twins (Zbontar et al. 2021): the views' cross-correlation becomes the identity."""

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


class BarlowTwins(Objective):
    """Barlow Twins: the views' cross-correlation becomes the identity; invariance + λ·redundancy.

    Each view is a separate batch, with its own batch statistics.
    """

    couples: ClassVar[str] = "correlates features over the batch"

    off_diagonal: float = Field(0.005, ge=0, description="λ: weight of the redundancy term")
    scale: float = Field(1.0, gt=0, description="factor of the loss, which is a sum over dimensions")

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        return Model(encoder=Part(encoder), projector=Part(build_projector(features, config)))

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        a, b = (project(model, view) for view in views)
        return self.scale * barlow_twins(a, b, self.off_diagonal)


@full_precision
def barlow_twins(a: Tensor, b: Tensor, off_diagonal: float) -> Tensor:
    """Σᵢ(1−Cᵢᵢ)² + λ·Σᵢ≠ⱼ Cᵢⱼ², with C the correlation of a's and b's columns over the batch (Eqs. 1, 2)."""
    correlation = _standardized(a).T @ _standardized(b) / len(a)
    diagonal = correlation.diagonal()
    redundancy = correlation.square().sum() - diagonal.square().sum()
    return (1 - diagonal).square().sum() + off_diagonal * redundancy


def _standardized(z: Tensor) -> Tensor:
    return F.batch_norm(z, None, None, training=True)
