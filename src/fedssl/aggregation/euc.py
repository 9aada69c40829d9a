"""EUC: layers are weighted by their inverse distance from the global ones (L-DAWA, §5.4)."""

from __future__ import annotations

import math

from fedssl.aggregation.angles import Comparison
from fedssl.aggregation.scaled_sum import ScaledSum, Weight
from fedssl.state import Upload


class Euc(ScaledSum):
    """w^(l) ← Σ β_k·w_k^(l) with β_k ∝ 1/‖w_k^(l) − w_g^(l)‖; clients at distance 0 share all the weight.

    The paper gives no formula; this is the simplest one.
    """

    def weight(self, layer: str, compared: Comparison, upload: Upload) -> Weight:
        distance = compared.distance(layer)
        return Weight(1.0, -math.log(distance) if distance else math.inf)
