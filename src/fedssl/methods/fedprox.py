"""FedProx (Li et al. 2020), with any objective (FedStyle's appendix; Dec-SSL)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedssl.methods.client import Client
from fedssl.methods.fedavg import FedAvg
from fedssl.methods.proximal import proximal
from fedssl.methods.training import Training, objective_loss, train_locally
from fedssl.models.model import Model


class FedProx(FedAvg):
    """FedAvg with a proximal term to the global model: + μ/2·‖w − w_g‖² over shared parameters."""

    mu: float = Field(0.2, ge=0, description="weight of the proximal term to the global model (μ)")
    start: Literal["global", "own"] = Field(
        "global",
        description="the model that local training starts from: the global one (FedProx), or the client's "
        "last one (the LocalUpdate of FedStyle's appendix, which does not overwrite w_k)",
    )

    @property
    def personalizes(self) -> bool:
        return self.start == "own"

    def keeps(self, model: Model) -> list[str]:
        # What a client keeps takes precedence over what it receives.
        own = self.shares(model) if self.start == "own" else []
        return list(dict.fromkeys([*super().keeps(model), *own]))

    def train(self, client: Client) -> Training:
        if not self.mu:
            return super().train(client)
        shared = {name: v for name, v in client.model.named_parameters() if name in client.uploads}
        own, anchor = list(shared.values()), [client.received[name].to(client.device) for name in shared]
        objective = objective_loss(client)
        return train_locally(client, loss=lambda batch: objective(batch) + proximal(own, anchor, self.mu))
