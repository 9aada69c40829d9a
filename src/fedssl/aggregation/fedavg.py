"""FedAvg: the mean of the uploads, weighted by number of samples (McMahan et al. 2017; L-DAWA, Eq. 1)."""

from __future__ import annotations

from fedssl.aggregation.angles import Comparison
from fedssl.aggregation.scaled_sum import ScaledSum, Weight, log_samples
from fedssl.state import Upload


class FedAvg(ScaledSum):
    """w ← Σ n_k·w_k / Σ n_k."""

    def weight(self, layer: str, compared: Comparison, upload: Upload) -> Weight:
        return Weight(1.0, log_samples(upload))
