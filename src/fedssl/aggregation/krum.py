"""Krum and Multi-Krum: the uploads that lie closest to their neighbours (Blanchard et al. 2017, §4)."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fedssl.aggregation.robust import PIECE, Robust, by_coordinate
from fedssl.errors import RunError
from fedssl.state import State


class Krum(Robust):
    """An upload's score is the sum of squared distances to its K − malicious − 2 nearest; the lowest wins."""

    malicious: int = Field(1, ge=0, description="hostile clients to withstand, of K ≥ 2·malicious + 3")
    keep: int = Field(
        1, ge=1, description="Multi-Krum: number of uploads with the lowest scores that are averaged"
    )

    def combine(self, states: list[State], layers: list[str]) -> State:
        needed = max(2 * self.malicious + 3, self.malicious + self.keep)
        if len(states) < needed:
            raise RunError(
                f"krum with malicious={self.malicious} and keep={self.keep} needs {needed} uploads, "
                f"and there are {len(states)}: lower aggregation.malicious "
                "or aggregation.keep, or have more clients per round"
            )
        scores = krum_scores(_squared_distances(states, layers), self.malicious)
        best = scores.argsort(stable=True)[: self.keep].sort().values.tolist()  # ties: the lowest client id
        return by_coordinate([states[index] for index in best], lambda values: values.mean(dim=1))


def krum_scores(squared_distances: Tensor, malicious: int) -> Tensor:
    """Scores of all clients from the matrix of their squared distances."""
    nearest = squared_distances.sort(dim=1).values[:, 1:]  # without itself, at distance 0
    return nearest[:, : len(squared_distances) - malicious - 2].sum(dim=1)


def _squared_distances(states: list[State], layers: list[str]) -> Tensor:
    total = torch.zeros(len(states), len(states), dtype=torch.float64)
    for name in layers:
        flat = [torch.split(state[name].reshape(-1), PIECE) for state in states]
        for piece in zip(*flat, strict=True):
            values = torch.stack(piece)
            # Differences proper: ‖a‖² + ‖b‖² − 2ab loses all digits where models are close.
            distances = torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist")
            total += distances.double().square().cpu()
    return total
