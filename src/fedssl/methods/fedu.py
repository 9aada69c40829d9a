"""FedU's divergence-aware predictor update (Zhuang et al., ICCV 2021): a baseline of FedEMA and L-DAWA."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedssl.methods.client import Client
from fedssl.methods.ema import OwnModel, start_from_global, start_mixed
from fedssl.methods.method import PREDICTOR
from fedssl.state import Broadcast, State


class FedU(OwnModel):
    """The encoder is replaced by the global one, the predictor only if the two encoders are close.

    For an objective without a predictor (SimCLR, Barlow Twins in the L-DAWA paper, which does not say how),
    the head that takes its place is the projector.
    """

    divergence: Literal["paper", "reference-code"] = Field(
        "reference-code",
        description="how far apart the encoders are: mean change of convolution weights (reference-code: "
        "what FedU's threshold was published for), or ‖W_g − W_k‖ over all encoder parameters (paper)",
    )
    threshold: float = Field(0.4, ge=0, description="a client further away than this keeps its own predictor")

    def receive(self, client: Client, broadcast: Broadcast, memory: State) -> dict[str, float]:
        received = broadcast.model
        if not client.notes:
            start_from_global(client, received, memory)
            return {}
        apart = self.measure(client, received, memory)
        close = apart < self.threshold
        head = PREDICTOR if client.model.has("predictor") else ("projector",)
        start_mixed(client, received, memory, [(head, 0.0 if close else 1.0)])
        return {"divergence_before": apart, "predictor_replaced": float(close)}
