"""L-DAWA_FedAvg: one angle per layer, on top of FedAvg (L-DAWA, Eq. 5)."""

from __future__ import annotations

from fedssl.aggregation.angles import Comparison
from fedssl.aggregation.dawa import LayerWise
from fedssl.aggregation.scaled_sum import Weight, log_samples
from fedssl.state import Upload


class LDawaFedAvg(LayerWise):
    """w^(l) ← Σ n_k·δ_k^(l)·w_k^(l) / Σ n_k."""

    def weight(self, layer: str, compared: Comparison, upload: Upload) -> Weight:
        return Weight(self.delta(layer, compared, upload), log_samples(upload))
