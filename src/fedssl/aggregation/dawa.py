"""Divergence-aware rules: a client's weights are scaled by their angle to the global ones (L-DAWA, §3.2)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedssl.aggregation.angles import Comparison
from fedssl.aggregation.fedavg import FedAvg
from fedssl.aggregation.scaled_sum import ScaledSum
from fedssl.state import Upload

Layer = Literal["tensor", "module", "weights"]


class Dawa(ScaledSum):
    """δ is between −1 and 1; negative values are kept, and the weights are not divided by Σ δ."""

    scales_weights: ClassVar[bool] = True

    warmup: int = Field(0, ge=0, description="rounds of plain FedAvg first (the authors' code: 3)")

    def at(self, round: int | None) -> ScaledSum:
        warm = round is not None and round <= self.warmup
        return FedAvg(statistics=self.statistics) if warm else self


class LayerWise(Dawa):
    """One angle per layer; `layer` defines what a layer is."""

    layer: Layer = Field(
        "tensor",
        description="the unit of an angle. tensor: every weight and every bias; module: weight and bias "
        "together, and γ and β; weights: tensors of two or more dimensions, others have δ = 1",
    )

    def delta(self, name: str, compared: Comparison, upload: Upload) -> float:
        """δ of the layer that a tensor belongs to; a normalization statistic is always a separate layer."""
        if name not in compared.angles or self.layer == "tensor":
            return compared.cosine(name)
        if self.layer == "module":
            return compared.module_angles[name.rpartition(".")[0]]
        return compared.cosine(name) if upload.state[name].ndim > 1 else 1.0
