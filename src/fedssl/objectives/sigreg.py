"""SIGReg (Balestriero and LeCun 2025, LeJEPA): embeddings follow N(0, I), tested on random directions."""

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


class SIGReg(Objective):
    """SIGReg: views agree, and the embeddings of every client follow the same distribution, N(0, I).

    Random directions are drawn for each batch. On each, the empirical characteristic function of the
    embeddings is compared with that of N(0, 1) (Epps and Pulley 1983).
    """

    couples: ClassVar[str] = "compares the distribution of features in the batch"

    weight: float = Field(0.05, ge=0, le=1, description="λ: share of the Gaussian term in the loss")
    directions: int = Field(256, ge=1, le=1 << 16, description="number of random directions per batch")
    knots: int = Field(
        17, ge=2, le=4096, description="number of points at which characteristic functions are compared"
    )

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        return Model(encoder=Part(encoder), projector=Part(build_projector(features, config)))

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        z = torch.stack([project(model, view) for view in views])
        drawn = torch.randn(z.shape[-1], self.directions, generator=rng).to(z.device)
        return sigreg(z, F.normalize(drawn, dim=0), self.weight, self.knots)


@full_precision
def sigreg(z: Tensor, directions: Tensor, weight: float, knots: int) -> Tensor:
    """(1−λ)·E‖z − z̄‖² + λ·(mean over views of the Epps–Pulley statistic), for z [views, n, d]."""
    invariance = (z - z.mean(dim=0)).square().mean()
    gaussian = torch.stack([epps_pulley(view @ directions, knots) for view in z]).mean()
    return (1 - weight) * invariance + weight * gaussian


def epps_pulley(samples: Tensor, knots: int) -> Tensor:
    """n·∫|φ_n(t) − exp(−t²/2)|²·exp(−t²/2) dt over [−5, 5], mean over the columns of `samples` [n, m]."""
    t = torch.linspace(0, 5, knots, device=samples.device)  # the integrand is even
    angles = samples[..., None] * t
    expected = torch.exp(-t.square() / 2)
    apart = (angles.cos().mean(dim=0) - expected).square() + angles.sin().mean(dim=0).square()
    integral = 2 * torch.trapezoid(apart * expected, t)
    return len(samples) * integral.mean()
