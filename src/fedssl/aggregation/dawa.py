"""Divergence-aware rules: a client's weights are scaled by their angle to the global ones (L-DAWA, §3.2)."""

from __future__ import annotations

from pydantic import Field

from fedssl.aggregation.fedavg import FedAvg
from fedssl.aggregation.scaled_sum import ScaledSum


class Dawa(ScaledSum):
    """δ lies in [−1, 1]; negative values are kept, and the weights are not divided by Σ δ."""

    warmup: int = Field(0, ge=0, description="so many rounds of plain FedAvg first")

    def at(self, round: int | None) -> ScaledSum:
        return FedAvg() if round is not None and round <= self.warmup else self
