"""Ditto, and Ditto with FedProx, on a generative model: the baselines of PaDPaF (Table 1, Figure 7)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import ClassVar, Literal, cast

from pydantic import Field
from torch import nn

from fedssl.methods.alternating import AlternatingTraining, ProximalTerm
from fedssl.methods.client import Client
from fedssl.methods.method import Aggregate, ServerTools
from fedssl.methods.padpaf import Mean
from fedssl.methods.training import Training
from fedssl.models.encoders import Encoder
from fedssl.models.model import Model, Part, Role
from fedssl.models.options import ModelConfig
from fedssl.state import ServerState


class PaDPaFDitto(AlternatingTraining):
    """Ditto for generative models: a federated model, and a personal one with a proximal term (μ).

    It trains as `padpaf` does, with the same steps, learning rates and server. Buffers stay local.
    """

    evaluates: ClassVar[Literal["global", "cluster", "personal"]] = "personal"
    effort: ClassVar[float] = 2.0

    mu: float = Field(1.0, ge=0, description="proximal weight μ of the personal model to the global one")
    fedprox: float = Field(
        0.0, ge=0, description="proximal weight of the federated model to the received one (FedProx)"
    )

    def parts(self, model: Model, encoder: Callable[[], Encoder], config: ModelConfig) -> dict[str, Part]:
        return {"personal": Part(copy.deepcopy(model), Role.PRIVATE, copy_of=tuple(model.roles))}

    def personal_encoder(self, model: Model) -> nn.Module:
        return model.part("personal.encoder")

    def shares(self, model: Model) -> list[str]:
        return [name for name, _ in model.named_parameters() if not name.startswith("personal.")]

    def train(self, client: Client) -> Training:
        received = {name: value.to(client.device) for name, value in client.received.items()}
        federated = ProximalTerm(received, self.fedprox) if self.fedprox else None
        first = self.train_model(client, client.model, federated)
        own = cast(Model, client.model.part("personal"))
        second = self.train_model(client, own, ProximalTerm(received, self.mu), "personal")
        return Training(
            first.loss,
            first.steps + second.steps,
            first.views + second.views,
            {**first.values, **second.values},
        )

    def aggregate(self, server: ServerState, round: int, tools: ServerTools) -> Aggregate:
        return Mean(server, round, tools)
