"""FedProx (Li et al. 2020), with any objective (FedStyle's appendix; Dec-SSL)."""

from __future__ import annotations

from pydantic import Field

from fedssl.methods.client import Client
from fedssl.methods.fedavg import FedAvg
from fedssl.methods.proximal import proximal
from fedssl.methods.training import Training, objective_loss, train_locally


class FedProx(FedAvg):
    """FedAvg whose clients are pulled towards the global model: + μ/2·‖w − w_g‖² over what is shared."""

    mu: float = Field(0.2, ge=0, description="strength of the pull towards the global model (μ)")

    def train(self, client: Client) -> Training:
        if not self.mu:
            return super().train(client)
        own = [value for name, value in client.model.named_parameters() if name in client.uploads]
        received = [value.detach().clone() for value in own]
        objective = objective_loss(client)
        return train_locally(client, loss=lambda batch: objective(batch) + proximal(own, received, self.mu))
