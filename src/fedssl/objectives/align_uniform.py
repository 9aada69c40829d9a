"""Alignment and uniformity on the hypersphere (Wang and Isola, ICML 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedssl.models.heads import project
from fedssl.models.model import Model
from fedssl.objectives.losses import full_precision
from fedssl.objectives.simclr import SimCLR


class AlignUniform(SimCLR):
    """Alignment and uniformity: views of an image are close, and images are spread over the sphere."""

    temperature: float = Field(2.0, gt=0, description="t: the kernel of uniformity is exp(−t·‖z − z'‖²)")
    uniformity: float = Field(1.0, ge=0, description="weight of uniformity")

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        z = project(model, torch.cat(list(views)))
        return align_and_spread(z, self.temperature, self.uniformity)


@full_precision
def align_and_spread(z: Tensor, temperature: float, uniformity: float) -> Tensor:
    """E‖a − b‖² + λ·½·Σ_views log E exp(−t·‖z_i − z_j‖²), with rows on the unit sphere (Eqs. 2 and 3)."""
    a, b = F.normalize(z, dim=1).chunk(2)
    alignment = (a - b).square().sum(dim=1).mean()
    spread = sum(torch.pdist(view).square().mul(-temperature).exp().mean().log() for view in (a, b))
    return alignment + uniformity * spread / 2
