"""Centered clipping: a mean in which no upload counts for more than τ (Karimireddy et al. 2021, Eq. 5)."""

from __future__ import annotations

import statistics

from pydantic import Field

from fedssl.aggregation.median import median
from fedssl.aggregation.robust import Robust, by_coordinate
from fedssl.state import State, distance


class CenteredClipping(Robust):
    """v ← v + (1/K) Σ_k (w_k − v)·min(1, τ/‖w_k − v‖), from the median of each coordinate.

    τ is a multiple of the median distance from v, and therefore has no unit. The paper starts from the last
    round's v. Parameters and normalization statistics are clipped separately, each by its own τ.
    """

    radius: float = Field(1.0, gt=0, description="τ, as a multiple of the median distance from the center")
    steps: int = Field(1, ge=1, description="number of updates of the center per round")

    def combine(self, states: list[State], layers: list[str]) -> State:
        others = sorted(states[0].keys() - set(layers))
        center = by_coordinate(states, median)
        for names in (layers, others):
            for _ in range(self.steps):
                center |= self._moved(center, states, names)
        return center

    def _moved(self, center: State, states: list[State], names: list[str]) -> State:
        distances = [distance(state, center, names) for state in states]
        radius = self.radius * statistics.median_low(distances)
        shares = [min(1.0, radius / each) if each else 1.0 for each in distances]
        moved = {}
        for name in names:
            moved[name] = center[name].clone()
            for share, state in zip(shares, states, strict=True):
                moved[name].add_(state[name] - center[name], alpha=share / len(states))
        return moved
