"""FedSC (Jing et al., ICML 2024): contrast with the images of other clients through their second moments.

The spectral contrastive loss of all images together, −2·E z·z' + ‖E zzᵀ‖² (HaoChen et al. 2021), depends on
other clients only through R = E zzᵀ, a matrix as wide as the projections. Clients upload theirs with the
model, and receive the mean of all with the next global model. One exchange per round suffices, but the
moments that a client contrasts with are one round old.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.errors import ConfigError
from fedssl.methods.client import Client
from fedssl.methods.fedavg import FedAvg
from fedssl.methods.method import Aggregate, ServerTools
from fedssl.methods.training import Batch, Training, count_steps, train_locally
from fedssl.models.encoders import Encoder
from fedssl.models.heads import project
from fedssl.models.model import Model, Part, Role
from fedssl.models.options import ModelConfig
from fedssl.objectives.losses import full_precision
from fedssl.objectives.simclr import SimCLR
from fedssl.state import Broadcast, ServerState, State, Upload

IMAGES = "images"  # of all clients of the last round
ROUND = "round"  # in which the client trained last


class Moments(nn.Module):
    """A second moment R = E zzᵀ; zero until there is one."""

    matrix: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.zeros(width, width))


class FedSC(FedAvg):
    """FedAvg with the spectral contrastive loss, whose repulsion reaches the images of other clients."""

    alpha: float = Field(
        0.5, ge=0, le=1, description="share of the client's own images in the repulsion (α); 1: no others"
    )
    length: float = Field(10.0, gt=0, description="square length that projections are scaled to")

    def parts(self, model: Model, encoder: Callable[[], Encoder], config: ModelConfig) -> dict[str, Part]:
        width = config.projector_out
        return {"moments": Part(Moments(width)), "own_moments": Part(Moments(width), Role.PRIVATE)}

    def broadcast(self, server: ServerState, client: int, round: int) -> Broadcast:
        values = {IMAGES: server.values[IMAGES]} if IMAGES in server.values else {}
        return replace(super().broadcast(server, client, round), values=values)

    def receive(self, client: Client, broadcast: Broadcast, memory: State) -> dict[str, float]:
        client.notes[IMAGES] = broadcast.values.get(IMAGES, 0.0)
        return super().receive(client, broadcast, memory)

    def train(self, client: Client) -> Training:
        """Minimize the method's own loss; the moments of the last local epoch replace those received."""
        model, config = client.model, client.config
        if not isinstance(client.objective, SimCLR):
            raise ConfigError(
                "method.name=fedsc replaces the objective's loss: leave objective.name at simclr"
            )
        shared, own = (cast(Moments, model.part(name)) for name in ("moments", "own_moments"))
        took_part = client.notes.get(ROUND) == client.round - 1
        share = len(client.images) / max(client.notes[IMAGES], 1) if took_part else 0.0
        others = moments_of_others(shared.matrix, own.matrix, share)
        planned = count_steps(len(client.images), config.batch_size, config.epochs)
        last = count_steps(len(client.images), config.batch_size, min(1.0, config.epochs))
        total, steps = torch.zeros_like(shared.matrix), 0

        def loss(batch: Batch) -> Tensor:
            nonlocal steps
            z = F.normalize(project(model, torch.cat(batch.views[:2])).float(), dim=1) * self.length**0.5
            if steps >= planned - last:
                total.add_(z.detach().T @ z.detach() / len(z), alpha=1 / last)
            steps += 1
            return spectral(*z.chunk(2), others, self.alpha)

        training = train_locally(client, loss=loss)
        for moments in (shared, own):
            moments.matrix.copy_(total)
        client.notes[ROUND] = client.round
        return training

    def aggregate(self, server: ServerState, round: int, tools: ServerTools) -> Aggregate:
        return CountedMean(server, round, tools)


class CountedMean(Aggregate):
    """FedAvg's, and the number of images, from which a client knows its share of the mean."""

    def __init__(self, server: ServerState, round: int, tools: ServerTools) -> None:
        super().__init__(server, round, tools)
        self.images = 0

    def add(self, upload: Upload) -> dict[str, Any]:
        measured = super().add(upload)
        self.images += upload.num_samples
        return measured

    def finish(self) -> ServerState:
        server = super().finish()
        return replace(server, values={**server.values, IMAGES: float(self.images)})


def moments_of_others(mean: Tensor, own: Tensor, share: float) -> Tensor:
    """R̄₋ₖ from R̄ = p·R_k + (1 − p)·R̄₋ₖ; R̄ itself if there are no other clients."""
    return mean.clone() if share >= 1 else (mean - share * own) / (1 - share)


@full_precision
def spectral(a: Tensor, b: Tensor, others: Tensor, alpha: float) -> Tensor:
    """−2·E z·z' + α·E(z·z⁻)² + 2(1 − α)·tr(R·R̄₋ₖ), where z⁻ are views of other images of the batch.

    E(z·z⁻)² over independent images is ‖R_k‖², of which the batch's own R would be a biased estimate.
    """
    count = len(a)
    products = (a @ b.T).square()
    attract = (a * b).sum(dim=1).mean()
    within = (products.sum() - products.diagonal().sum()) / max(1, count * (count - 1))
    z = torch.cat([a, b])
    across = ((z @ others) * z).sum(dim=1).mean()
    return -2 * attract + alpha * within + 2 * (1 - alpha) * across
