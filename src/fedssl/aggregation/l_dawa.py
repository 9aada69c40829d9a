"""L-DAWA: one angle per layer (Rehman et al. 2023, Eq. 4, where the sum over layers is concatenation)."""

from __future__ import annotations

from fedssl.aggregation.angles import Comparison
from fedssl.aggregation.dawa import Dawa
from fedssl.aggregation.scaled_sum import Weight
from fedssl.state import Upload


class LDawa(Dawa):
    """w^(l) ← (1/K) Σ δ_k^(l)·w_k^(l)."""

    def weight(self, layer: str, compared: Comparison, upload: Upload) -> Weight:
        return Weight(compared.angles[layer], 0.0)
