"""Loss: clients with a lower loss have a larger weight (L-DAWA, §3.1, after its references 10 and 36)."""

from __future__ import annotations

from fedssl.aggregation.scaled_sum import ScaledSum, Weight, log_likelihood
from fedssl.state import Upload


class Loss(ScaledSum):
    """w ← Σ β_k·w_k with β = softmax(−L)."""

    def known(self, upload: Upload) -> Weight:
        return Weight(1.0, log_likelihood(upload))
