"""FedX (Han et al., ECCV 2022): contrastive and relational losses, with the local and the global model.

In addition to the objective (the local contrast), a client contrasts its predictions for the first view
with the frozen global model's projections of the second view. Relations are similarities to other images of
the client, which should agree between both views, for local and for global projections.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedssl.errors import ConfigError
from fedssl.methods.client import Client
from fedssl.methods.fedavg import FedAvg
from fedssl.methods.training import Batch, Training, objective_loss, train_locally
from fedssl.models.encoders import Encoder
from fedssl.models.heads import mlp, project
from fedssl.models.model import Model, Part
from fedssl.models.options import ModelConfig
from fedssl.objectives.losses import full_precision
from fedssl.objectives.simclr import nt_xent

HEAD = "distiller"


class FedX(FedAvg):
    """FedAvg whose clients also learn from the frozen global model: FedX, for objectives with a projector."""

    effort: ClassVar[float] = 2.2  # a third batch, and all three through the frozen model

    contrast: float = Field(1.0, ge=0, description="weight of the contrast with the global model")
    relation: float = Field(1.0, ge=0, description="weight of both relational losses")
    temperature: float = Field(0.1, gt=0, description="of the contrast and of relations (τ)")
    target_temperature: float = Field(0.1, gt=0, description="of the relations that both views approach")

    def parts(self, model: Model, encoder: Callable[[], Encoder], config: ModelConfig) -> dict[str, Part]:
        if not model.has("projector"):
            raise ConfigError("method.name=fedx compares projections: use an objective with a projector")
        out = config.projector_out
        return {HEAD: Part(mlp(out, config.predictor_hidden, out, config.norm))}

    def train(self, client: Client) -> Training:
        model, objective = client.model, objective_loss(client)
        frozen = copy.deepcopy(model).eval().requires_grad_(False)
        head = model.part(HEAD)

        def loss(batch: Batch) -> Tensor:
            first, second = batch.views[:2]
            views = torch.cat([first, second, other_views(client, batch)])
            local = project(model, views)
            with torch.no_grad():
                anchors = project(frozen, views)
            z1, z2, others = local.chunk(3)
            p1, p2, _ = head(local).chunk(3)
            _, global2, global_others = anchors.chunk(3)
            contrast = nt_xent(torch.cat([p1, global2]), self.temperature)
            related = self._relation(z1, z2, others) + self._relation(p1, p2, global_others)
            return objective(batch) + self.contrast * contrast + self.relation * related

        parameters = [*client.objective.trained(model), *head.parameters()]
        return train_locally(client, loss=loss, parameters=parameters)

    def _relation(self, a: Tensor, b: Tensor, others: Tensor) -> Tensor:
        return relation(a, b, others, self.temperature, self.target_temperature)


def other_views(client: Client, batch: Batch) -> Tensor:
    """Make a view of another batch of random images of the client, of the same size."""
    drawn = torch.randint(len(client.images), (len(batch.positions),), generator=batch.rng)
    images, _ = client.images.batch(drawn)
    return client.views(images, batch.rng, client.device)[0]


@full_precision
def relation(a: Tensor, b: Tensor, others: Tensor, temperature: float, target_temperature: float) -> Tensor:
    """½·Σ KL(m ‖ r) over both views' relations r to other images, with m their mean (Eqs. 3 to 5)."""
    others = F.normalize(others, dim=1)
    similarities = [F.normalize(view, dim=1) @ others.T for view in (a, b)]
    mean = torch.stack([F.softmax(each / target_temperature, dim=1) for each in similarities]).mean(dim=0)
    logs = [F.log_softmax(each / temperature, dim=1) for each in similarities]
    return torch.stack([F.kl_div(each, mean, reduction="batchmean") for each in logs]).mean()
