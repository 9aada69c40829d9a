"""FedU's divergence-aware predictor update (Zhuang et al., ICCV 2021): a baseline of FedEMA and L-DAWA."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedssl.methods.client import Client
from fedssl.methods.ema import OwnModel, start_from_global, start_mixed
from fedssl.methods.method import PREDICTOR, Aggregate, ServerTools
from fedssl.state import Broadcast, ServerState, State, Upload

THRESHOLD = "threshold"  # among the numbers that the server keeps and sends


class FedU(OwnModel):
    """The encoder is replaced by the global one, the predictor only if the two encoders are close.

    For objectives without a predictor (SimCLR and Barlow Twins in the L-DAWA paper, which gives no details),
    the projector takes its place.
    """

    divergence: Literal["paper", "reference-code"] = Field(
        "reference-code",
        description="distance of the encoders: mean change of convolution weights (reference-code, for which "
        "FedU's threshold was published), or ‖W_g − W_k‖ over all encoder parameters (paper)",
    )
    threshold: float = Field(0.4, ge=0, description="largest distance at which the predictor is replaced")
    quantile: float | None = Field(
        None,
        ge=0,
        le=1,
        description="instead of threshold: predictors are replaced up to this quantile of the last round's "
        "divergences; none: use threshold",
    )

    def broadcast(self, server: ServerState, client: int, round: int) -> Broadcast:
        known = {name: value for name, value in server.values.items() if name == THRESHOLD}
        return replace(super().broadcast(server, client, round), values=known)

    def receive(self, client: Client, broadcast: Broadcast, memory: State) -> dict[str, float]:
        received = broadcast.model
        if not client.notes:
            start_from_global(client, received, memory)
            return {}
        apart = self.measure(client, received, memory)
        close = self._is_close(apart, broadcast.values.get(THRESHOLD))
        head = PREDICTOR if client.model.has("predictor") else ("projector",)
        start_mixed(client, received, memory, [(head, 0.0 if close else 1.0)])
        return {"divergence_before": apart, "predictor_replaced": float(close)}

    def _is_close(self, apart: float, quantile: float | None) -> bool:
        """Whether a divergence is below the threshold or quantile; true until the server has seen any."""
        if self.quantile is None:
            return apart < self.threshold
        return quantile is None or apart <= quantile

    def aggregate(self, server: ServerState, round: int, tools: ServerTools) -> Aggregate:
        if self.quantile is None:
            return super().aggregate(server, round, tools)
        return QuantileAggregate(server, round, tools, self.quantile)


class QuantileAggregate(Aggregate):
    """Turns the divergences of a round into the next round's threshold.

    Earlier rounds do not count: divergence falls with the learning rate, so that late rounds would be below
    any quantile over all rounds.
    """

    def __init__(self, server: ServerState, round: int, tools: ServerTools, quantile: float) -> None:
        super().__init__(server, round, tools)
        self.quantile = quantile
        self.seen: list[float] = []

    def add(self, upload: Upload) -> dict[str, Any]:
        if "divergence_before" in upload.values:
            self.seen.append(upload.values["divergence_before"])
        return super().add(upload)

    def finish(self) -> ServerState:
        server = super().finish()
        if not self.seen:
            return server
        threshold = float(np.quantile(self.seen, self.quantile))
        return replace(server, values={**server.values, THRESHOLD: threshold})
