"""Decoupled contrastive learning (Yeh et al., ECCV 2022): SimCLR without positives in the denominator."""

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


class DCL(SimCLR):
    """Decoupled contrastive learning: attract the other view, repel all other images of the batch.

    SimCLR's gradient vanishes for easy pairs, which are frequent in small batches. Without the positive in
    the denominator it does not, so that small batches and few steps learn more.
    """

    temperature: float = Field(0.2, gt=0, description="divides cosine similarities")

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        z = project(model, torch.cat(list(views)))
        return decoupled(z, self.temperature)


@full_precision
def decoupled(z: Tensor, temperature: float) -> Tensor:
    """−s_ij/τ + log Σ_k exp(s_ik/τ) over all views k of other images (Eq. 6), averaged over the 2n rows."""
    z = F.normalize(z, dim=1)
    rows = torch.arange(len(z), device=z.device)
    partner = rows.roll(len(z) // 2)
    logits = z @ z.T / temperature
    positives = logits[rows, partner]
    same_image = torch.zeros_like(logits, dtype=torch.bool)
    same_image[rows, rows] = same_image[rows, partner] = True
    return (logits.masked_fill(same_image, float("-inf")).logsumexp(dim=1) - positives).mean()
