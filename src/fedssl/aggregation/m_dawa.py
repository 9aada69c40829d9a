"""M-DAWA: one angle for the whole model (L-DAWA, Eq. 3)."""

from __future__ import annotations

from fedssl.aggregation.angles import Comparison
from fedssl.aggregation.dawa import Dawa
from fedssl.aggregation.scaled_sum import Weight
from fedssl.state import Upload


class MDawa(Dawa):
    """w ← (1/K) Σ δ_k·w_k."""

    def weight(self, layer: str, compared: Comparison, upload: Upload) -> Weight:
        return Weight(compared.angle, 0.0)
