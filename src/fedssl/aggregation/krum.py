"""Krum and Multi-Krum: the uploads closest to their neighbors (Blanchard et al. 2017, §4).

The paper scores parameters. Normalization statistics of a client with inconspicuous parameters would not be
checked, so they are scored separately, and clamped.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from pydantic import Field
from torch import Tensor

from fedssl.aggregation.robust import PIECE, Robust, by_coordinate
from fedssl.errors import RunError
from fedssl.state import State


class Krum(Robust):
    """Selects uploads by the sum of squared distances to their K − malicious − 2 nearest neighbors."""

    malicious: int = Field(1, ge=0, description="number of malicious clients; needs K ≥ 2·malicious + 3")
    keep: int = Field(
        1, ge=1, description="Multi-Krum: number of uploads with the lowest scores that are averaged"
    )

    def combine(self, states: list[State], layers: list[str]) -> State:
        needed = max(2 * self.malicious + 3, self.malicious + self.keep)
        if len(states) < needed:
            raise RunError(
                f"krum with malicious={self.malicious} and keep={self.keep} needs {needed} uploads, "
                f"but there are {len(states)}: lower aggregation.malicious "
                "or aggregation.keep, or use more clients per round"
            )
        statistics = sorted(states[0].keys() - set(layers))
        best = sorted(self._order(states, [layers, statistics])[: self.keep])
        chosen = by_coordinate([states[index] for index in best], lambda values: values.mean(dim=1))
        return {**chosen, **self._bounded(chosen, states, statistics)}

    def _order(self, states: list[State], kinds: Iterable[list[str]]) -> list[int]:
        """Clients from best to worst: by the worse of their ranks among parameters and among statistics."""
        ranks = [
            krum_scores(squared_distances(states, names), self.malicious).argsort(stable=True).argsort()
            for names in kinds
            if names
        ]
        both = torch.stack(ranks)
        worst, total = both.amax(dim=0).tolist(), both.sum(dim=0).tolist()
        return sorted(range(len(states)), key=lambda client: (worst[client], total[client], client))

    def _bounded(self, chosen: State, states: list[State], names: list[str]) -> State:
        """Clamp statistics to the range without the `malicious` lowest and highest clients."""
        statistics = [{name: state[name] for name in names} for state in states]
        first, last = self.malicious + 1, len(states) - self.malicious  # kthvalue counts from 1
        lowest = by_coordinate(statistics, lambda values: values.kthvalue(first, dim=1).values)
        highest = by_coordinate(statistics, lambda values: values.kthvalue(last, dim=1).values)
        return {name: chosen[name].clamp(lowest[name], highest[name]) for name in names}


def krum_scores(squared_distances: Tensor, malicious: int) -> Tensor:
    """Scores of all clients from the matrix of their squared distances."""
    nearest = squared_distances.sort(dim=1).values[:, 1:]  # excluding itself, at distance 0
    return nearest[:, : len(squared_distances) - malicious - 2].sum(dim=1)


def squared_distances(states: list[State], names: list[str]) -> Tensor:
    """Squared distances between all clients over the named tensors."""
    total = torch.zeros(len(states), len(states), dtype=torch.float64)
    for name in names:
        flat = [torch.split(state[name].reshape(-1), PIECE) for state in states]
        for piece in zip(*flat, strict=True):
            values = torch.stack(piece)
            # Not ‖a‖² + ‖b‖² − 2ab, which loses all digits if models are close.
            distances = torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist")
            total += distances.double().square().cpu()
    return total
