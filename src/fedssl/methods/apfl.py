"""APFL (Deng, Kamani, Mahdavi 2020) without labels (FedStyle's appendix)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.methods.client import Client
from fedssl.methods.latent import record_outputs, replace_parts
from fedssl.methods.method import Method
from fedssl.methods.training import Batch, Training, train_locally
from fedssl.models.encoders import Encoder
from fedssl.models.model import Model, Part, Role
from fedssl.models.options import ModelConfig


class APFL(Method):
    """FedAvg with a personal model that is trained as part of a mixture with the global one.

    ẑ¹ = α·z_g¹ + (1−α)·z² and ẑ² = α·z_g² + (1−α)·z¹, where z_g takes no gradient: the global copy
    is trained by its own loss. Personal features are mixed in the same proportion.
    """

    effort: ClassVar[float] = 2.0

    alpha: float = Field(0.5, ge=0, le=1, description="share of the global copy in the mixture (α)")

    def parts(self, model: Model, encoder: Callable[[], Encoder], config: ModelConfig) -> dict[str, Part]:
        if not model.has("projector") or model.names(Role.PRIVATE):
            raise ConfigError(
                "method.name=apfl mixes the projections of two networks: choose objective.name=simclr, "
                f"simsiam or barlow-twins, not an objective with the parts {', '.join(model.roles)}"
            )
        return {"personal": Part(copy.deepcopy(model), Role.PRIVATE, copy_of=tuple(model.roles))}

    def personal_encoder(self, model: Model) -> nn.Module:
        return Mixture(model.part("encoder"), model.part("personal.encoder"), self.alpha)

    def train(self, client: Client) -> Training:
        objective, shared = client.objective, client.model
        personal = cast(Model, shared.part("personal"))
        mixed = replace_parts(personal, encoder=nn.Identity(), projector=nn.Identity())
        total = torch.zeros((), device=client.device)

        def loss(batch: Batch) -> Tensor:
            with record_outputs(shared.part("projector")) as theirs:
                own_loss = objective.loss(shared, batch.views, batch.labels, batch.rng)
            # Only the projections are used, not this loss.
            with record_outputs(personal.part("projector")) as mine:
                objective.loss(personal, batch.views, batch.labels, batch.rng)
            views = mixture(torch.cat(theirs).detach(), torch.cat(mine), self.alpha)
            total.add_(own_loss.detach())
            return own_loss + objective.loss(mixed, views, batch.labels, batch.rng)

        # The two losses have disjoint parameters, so one backward pass of their sum serves both.
        trained = [*objective.trained(shared), *objective.trained(personal)]
        training = train_locally(client, loss=loss, parameters=trained)
        return replace(training, loss=float(total) / training.steps)


def mixture(theirs: Tensor, mine: Tensor, alpha: float) -> list[Tensor]:
    """Mix projections, each the concatenation of first and second views, to ẑ¹ and ẑ²."""
    (their_first, their_second), (my_first, my_second) = theirs.chunk(2), mine.chunk(2)
    return [
        alpha * their_first + (1 - alpha) * my_second,
        alpha * their_second + (1 - alpha) * my_first,
    ]


class Mixture(nn.Module):
    """Features of two encoders, weighted by α and 1−α."""

    def __init__(self, first: nn.Module, second: nn.Module, alpha: float) -> None:
        super().__init__()
        self.first, self.second, self.alpha = first, second, alpha

    def forward(self, images: Tensor) -> Tensor:
        mixed: Tensor = self.alpha * self.first(images) + (1 - self.alpha) * self.second(images)
        return mixed
