"""FedAvg: the mean of the uploads, weighted by number of samples (McMahan et al. 2017; L-DAWA, Eq. 1)."""

from __future__ import annotations

from fedssl.aggregation.scaled_sum import ScaledSum, Weight, by_samples
from fedssl.state import Upload


class FedAvg(ScaledSum):
    """w ← Σ n_k·w_k / Σ n_k."""

    def known(self, upload: Upload) -> Weight:
        return by_samples(upload)
