"""L-DAWA: one angle per layer (Rehman et al. 2023, Eq. 4, where the sum over layers is concatenation)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from fedssl.aggregation.angles import Comparison
from fedssl.aggregation.dawa import LayerWise
from fedssl.aggregation.scaled_sum import Weight
from fedssl.state import Upload

REFERENCE_CODE = {"layer": "tensor", "statistics": "scaled", "warmup": 3}


class LDawa(LayerWise):
    """w^(l) ← (1/K) Σ δ_k^(l)·w_k^(l)."""

    preset: Literal["none", "reference-code"] = Field(
        "none",
        description="reference-code: what the authors' code does, which is layer=tensor, statistics=scaled "
        "and warmup=3 unless they are set",
    )

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, values: Any) -> Any:
        chosen = isinstance(values, dict) and values.get("preset") == "reference-code"
        return {**REFERENCE_CODE, **values} if chosen else values

    def weight(self, layer: str, compared: Comparison, upload: Upload) -> Weight:
        return Weight(self.delta(layer, compared, upload), 0.0)
