"""EMA with a fixed μ: the baseline of FedEMA's Figures 7b and 10b."""

from __future__ import annotations

from pydantic import Field

from fedssl.methods.client import Client
from fedssl.methods.ema import OwnModel, start_from_global, start_mixed, trained_last_round
from fedssl.methods.method import ENCODER, PREDICTOR
from fedssl.state import Broadcast, State


class ConstantMu(OwnModel):
    """Clients mix the global model with their own at a fixed rate; 0 is FedAvg, 1 is no communication."""

    mu_encoder: float = Field(0.5, ge=0, le=1, description="share of its own encoder that a client keeps")
    mu_predictor: float = Field(0.5, ge=0, le=1, description="share of its own predictor that a client keeps")

    def receive(self, client: Client, broadcast: Broadcast, memory: State) -> dict[str, float]:
        if not trained_last_round(client):
            start_from_global(client, broadcast.model, memory)
            return {}
        rates = ((ENCODER, self.mu_encoder), (PREDICTOR, self.mu_predictor))
        start_mixed(client, broadcast.model, memory, rates)
        return {"mu": self.mu_encoder, "mu_predictor": self.mu_predictor}
