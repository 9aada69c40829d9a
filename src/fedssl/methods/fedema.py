"""FedEMA (Zhuang, Wen, Zhang: Divergence-aware federated self-supervised learning, ICLR 2022)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from fedssl.methods.client import Client
from fedssl.methods.ema import OwnModel, start_from_global, start_mixed, trained_last_round
from fedssl.methods.method import ENCODER, PREDICTOR, Aggregate, ServerTools
from fedssl.methods.training import Training
from fedssl.state import Broadcast, ServerState, State, Upload, distance


class FedEMA(OwnModel):
    """Clients average the global model with their own, and keep more of it the further both diverge."""

    scaler: float | None = Field(
        None, ge=0, description="λ for all clients; none: autoscaler, with one λ_k per client"
    )
    tau: float = Field(0.7, ge=0, le=1, description="autoscaler: μ expected after a client's first round (τ)")
    apply_to: Literal["both", "encoder", "predictor"] = Field(
        "both", description="parts that are averaged; the other one is replaced by the global one"
    )

    def broadcast(self, server: ServerState, client: int, round: int) -> Broadcast:
        known = server.values.get(f"lambda/{client}")
        values = {} if known is None else {"lambda": known}
        return replace(super().broadcast(server, client, round), values=values)

    def receive(self, client: Client, broadcast: Broadcast, memory: State) -> dict[str, float]:
        """Algorithm 1, lines 13–18."""
        scaler = self._scaler(client, broadcast)
        if scaler is None or not trained_last_round(client):
            start_from_global(client, broadcast.model, memory)
            return {}
        apart = self.measure(client, broadcast.model, memory)
        mu = min(scaler * apart, 1.0)
        rates = (
            (ENCODER, 0.0 if self.apply_to == "predictor" else mu),
            (PREDICTOR, 0.0 if self.apply_to == "encoder" else mu),
        )
        start_mixed(client, broadcast.model, memory, rates)
        return {"mu": mu, "mu_capped": float(mu == 1.0), "lambda": scaler, "divergence_before": apart}

    def train(self, client: Client) -> Training:
        training = super().train(client)
        if "drift" in client.notes:
            client.notes.setdefault("lambda", _scaler_for(self.tau, client.notes["drift"]))
        return training

    def aggregate(self, server: ServerState, round: int, tools: ServerTools) -> Aggregate:
        if self.scaler is not None or self.divergence == "reference-code":
            return super().aggregate(server, round, tools)
        tools.check_server_sees_uploads(
            "FedEMA's autoscaler needs their distances; set method.scaler, or "
            "method.divergence=reference-code"
        )
        return ScalingAggregate(server, round, tools, self.tau)

    def _scaler(self, client: Client, broadcast: Broadcast) -> float | None:
        if self.scaler is not None:
            return self.scaler
        return (client.notes if self.divergence == "reference-code" else broadcast.values).get("lambda")


class ScalingAggregate(Aggregate):
    """Gives every client its λ_k = τ/‖W_g^{r+1} − W_k^r‖ after the first round it took part in (lines 9, 10).

    The uploads of newcomers are held until the new global model is known.
    """

    def __init__(self, server: ServerState, round: int, tools: ServerTools, tau: float) -> None:
        super().__init__(server, round, tools)
        self.tau = tau
        self.newcomers: dict[int, State] = {}

    def add(self, upload: Upload) -> dict[str, Any]:
        if f"lambda/{upload.client}" not in self.server.values:
            self.newcomers[upload.client] = {name: upload.state[name] for name in self.tools.parameters}
        return super().add(upload)

    def finish(self) -> ServerState:
        server = super().finish()
        names = sorted(self.tools.parameters)
        scalers = {
            f"lambda/{client}": _scaler_for(self.tau, distance(server.model, own, names))
            for client, own in self.newcomers.items()
        }
        return replace(server, values={**server.values, **scalers})


def _scaler_for(tau: float, apart: float) -> float:
    """λ_k; 0 if the client's model equals the global one."""
    return tau / apart if apart > 0 else 0.0
