"""L-DAWA_Loss: one angle per layer, on top of Loss (L-DAWA, Eq. 6)."""

from __future__ import annotations

from fedssl.aggregation.angles import Comparison
from fedssl.aggregation.dawa import LayerWise
from fedssl.aggregation.scaled_sum import Weight, log_likelihood
from fedssl.state import Upload


class LDawaLoss(LayerWise):
    """w^(l) ← Σ β_k·δ_k^(l)·w_k^(l) with β = softmax(−L)."""

    def weight(self, layer: str, compared: Comparison, upload: Upload) -> Weight:
        return Weight(self.delta(layer, compared, upload), log_likelihood(upload))
