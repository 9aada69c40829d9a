"""SimCLR (Chen et al. 2020): identify the other view of an image among all views of the batch."""

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


class SimCLR(Objective):
    """SimCLR: identify an image's other view among all views of the batch (NT-Xent).

    Both views share one forward pass, and so one set of batch statistics, as in the paper.
    """

    couples: ClassVar[str] = "compares every image with all others of the batch"

    temperature: float = Field(0.5, gt=0, description="divides cosine similarities")

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        return Model(encoder=Part(encoder), projector=Part(build_projector(features, config)))

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        z = project(model, torch.cat(list(views)))
        return nt_xent(z, self.temperature)


@full_precision
def nt_xent(z: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of row i+n against all rows except i (SimCLR, Eq. 1), averaged over 2n rows."""
    z = F.normalize(z, dim=1)
    logits = (z @ z.T / temperature).fill_diagonal_(float("-inf"))
    partner = torch.arange(len(z), device=z.device).roll(len(z) // 2)
    return F.cross_entropy(logits, partner)
