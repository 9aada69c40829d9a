"""User verification (Louizos, Reisser, Korzhenkov, ICLR 2024): projections also identify the client.

The mutual information of two views over all clients' images is at least that within clients, which the local
SimCLR loss bounds, plus what both views say about the client.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.errors import ConfigError
from fedssl.methods.client import Client
from fedssl.methods.fedavg import FedAvg
from fedssl.methods.latent import record_outputs
from fedssl.methods.training import Batch, Training, objective_loss, train_locally
from fedssl.models.encoders import Encoder
from fedssl.models.model import Model, Part
from fedssl.models.options import ModelConfig

HEAD = "verifier"


class UserVerification(FedAvg):
    """FedAvg with a shared linear head that predicts the client of an image, for two-view objectives."""

    weight: float = Field(1.0, ge=0, description="weight of the client classifier's loss (β)")
    clients: int = Field(
        100, ge=2, le=1 << 24, description="outputs of the head: at least the number of clients"
    )

    def parts(self, model: Model, encoder: Callable[[], Encoder], config: ModelConfig) -> dict[str, Part]:
        if not model.has("projector"):
            raise ConfigError(
                "method.name=user-verification classifies projections: use an objective with a projector"
            )
        return {HEAD: Part(nn.Linear(config.projector_out, self.clients))}

    def train(self, client: Client) -> Training:
        if client.id >= self.clients:
            raise ConfigError(
                f"client {client.id} needs an output: set method.clients to the number of clients"
            )
        model, objective = client.model, objective_loss(client)
        projector, head = model.part("projector"), model.part(HEAD)

        def loss(batch: Batch) -> Tensor:
            with record_outputs(projector) as seen:
                value = objective(batch)
            return value + self.weight * verification(head, torch.cat(seen), client.id)

        parameters = [*client.objective.trained(model), *head.parameters()]
        return train_locally(client, loss=loss, parameters=parameters)


def verification(head: nn.Module, projections: Tensor, client: int) -> Tensor:
    """−log r(s | z), averaged over projections of unit length (Eq. 8)."""
    logits = head(F.normalize(projections, dim=1))
    return F.cross_entropy(logits, torch.full((len(logits),), client, device=logits.device))
