"""Ditto (Li et al. 2021) without labels (FedStyle's appendix)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import ClassVar, cast

from pydantic import Field
from torch import nn

from fedssl.methods.client import Client
from fedssl.methods.method import Method
from fedssl.methods.proximal import proximal
from fedssl.methods.training import Training, objective_loss, train_locally
from fedssl.models.encoders import Encoder
from fedssl.models.model import Model, Part, Role
from fedssl.models.options import ModelConfig


class Ditto(Method):
    """FedAvg with a personal model, which has a proximal term to the client's trained global model."""

    effort: ClassVar[float] = 2.0

    mu: float = Field(2.0, ge=0, description="weight of the proximal term to the global copy (μ)")

    def parts(self, model: Model, encoder: Callable[[], Encoder], config: ModelConfig) -> dict[str, Part]:
        return {"personal": Part(copy.deepcopy(model), Role.PRIVATE, copy_of=tuple(model.roles))}

    def personal_encoder(self, model: Model) -> nn.Module:
        return model.part("personal.encoder")

    def train(self, client: Client) -> Training:
        first = train_locally(client)
        personal = cast(Model, client.model.part("personal"))
        shared = set(personal.names(Role.SHARED))
        anchored = {name: value for name, value in personal.named_parameters() if name in shared}
        trained = dict(client.model.named_parameters())
        own, anchor = list(anchored.values()), [trained[name].detach() for name in anchored]
        objective = objective_loss(client, personal)
        second = train_locally(
            client,
            model=personal,
            loss=lambda batch: objective(batch) + proximal(own, anchor, self.mu),
            purpose="personal",
        )
        return Training(first.loss, first.steps + second.steps, first.views + second.views)
