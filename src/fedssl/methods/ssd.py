"""SSD (Fang et al., ICCV 2025): clients use different dimensions, and the projector is the teacher.

Uniformity within clients does not make representations uniform over all of them. Every client therefore
stretches its projections along a few random dimensions, so that clients occupy different
directions without communicating.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedssl.errors import ConfigError
from fedssl.methods.client import Client
from fedssl.methods.fedavg import FedAvg
from fedssl.methods.latent import record_outputs
from fedssl.methods.training import Batch, Training, objective_loss, train_locally
from fedssl.models.encoders import Encoder
from fedssl.models.model import Model, Part
from fedssl.models.options import ModelConfig
from fedssl.objectives.losses import full_precision
from fedssl.rng import torch_rng


class SSD(FedAvg):
    """FedAvg with soft separation and distillation, for objectives with a projector."""

    weight: float = Field(0.5, ge=0, description="weight of the separation of clients")
    scale: float = Field(2.0, ge=1, description="factor of a client's dimensions")
    dimensions: float = Field(0.1, gt=0, le=1, description="share of the dimensions that a client stretches")
    distillation: float = Field(
        0.1,
        ge=0,
        description="weight of the distillation from projector to encoder; above 0, "
        "model.projector_out must equal the number of features",
    )

    def parts(self, model: Model, encoder: Callable[[], Encoder], config: ModelConfig) -> dict[str, Part]:
        if not model.has("projector"):
            raise ConfigError("method.name=ssd separates projections: use an objective with a projector")
        features = encoder().features if self.distillation else config.projector_out
        if features != config.projector_out:
            raise ConfigError(
                f"method.name=ssd distills projections into features, which have {features} dimensions: set "
                f"model.projector_out={features} (it is {config.projector_out}), or method.distillation=0"
            )
        return {}

    def train(self, client: Client) -> Training:
        model, objective = client.model, objective_loss(client)
        encoder, projector = model.part("encoder"), model.part("projector")
        stretch: Tensor | None = None

        def loss(batch: Batch) -> Tensor:
            nonlocal stretch
            with record_outputs(encoder) as features, record_outputs(projector) as projections:
                value = objective(batch)
            z = torch.cat(projections)
            if stretch is None:
                stretch = self.stretch(client.seed, client.id, z.shape[1]).to(z.device)
            value = value + self.weight * separation(z, stretch)
            if self.distillation:
                value = value + self.distillation * distillation(torch.cat(features), z)
            return value

        return train_locally(client, loss=loss)

    def stretch(self, seed: int, client: int, width: int) -> Tensor:
        """The factor d_k of every dimension for a client: `scale` for its own, 1 for all others."""
        own = torch.randperm(width, generator=torch_rng(seed, 0, client, "ssd"))
        factors = torch.ones(width)
        factors[own[: max(1, round(self.dimensions * width))]] = self.scale
        return factors


@full_precision
def separation(z: Tensor, stretch: Tensor) -> Tensor:
    """‖z − sg(z ⊙ d_k)‖² of projections on the unit sphere, averaged over rows."""
    z = F.normalize(z, dim=1)
    target = F.normalize(z.detach() * stretch, dim=1)
    return (z - target).square().sum(dim=1).mean()


@full_precision
def distillation(features: Tensor, z: Tensor) -> Tensor:
    """KL(softmax(sg z) ‖ softmax(h)) of unit projections z and unit features h, averaged over rows."""
    teacher = F.softmax(F.normalize(z, dim=1).detach(), dim=1)
    student = F.log_softmax(F.normalize(features, dim=1), dim=1)
    return F.kl_div(student, teacher, reduction="batchmean")
