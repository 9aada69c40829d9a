"""The mean of each coordinate without its largest and smallest values (Yin et al. 2018, Definition 2)."""

from __future__ import annotations

import math

from pydantic import Field
from torch import Tensor

from fedssl.aggregation.robust import Robust, by_coordinate
from fedssl.errors import RunError
from fedssl.state import State


class TrimmedMean(Robust):
    """Discards at least `trim` of the clients at each end; the mean of the others is unweighted."""

    trim: float = Field(0.2, ge=0, lt=0.5, description="share of clients discarded at each end, rounded up")

    def combine(self, states: list[State], layers: list[str]) -> State:
        clients = len(states)
        cut = math.ceil(self.trim * clients - 1e-9)  # 0.2 · 15 is a little more than 3 in floats
        if 2 * cut >= clients:
            raise RunError(
                f"trimmed-mean cuts {cut} of {clients} uploads at each end (trim={self.trim}): "
                "lower aggregation.trim, or use more clients per round"
            )

        def trimmed(values: Tensor) -> Tensor:
            return values.sort(dim=1).values[:, cut : clients - cut].mean(dim=1)

        return by_coordinate(states, trimmed)
