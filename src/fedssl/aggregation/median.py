"""The median of each coordinate over clients (Yin et al. 2018, Definition 1)."""

from __future__ import annotations

from torch import Tensor

from fedssl.aggregation.robust import Robust, by_coordinate
from fedssl.state import State


class Median(Robust):
    """Of an even number of clients, the mean of the middle two."""

    def combine(self, states: list[State], layers: list[str]) -> State:
        return by_coordinate(states, median)


def median(values: Tensor) -> Tensor:
    """The median of each row."""
    clients = values.shape[1]
    ordered = values.sort(dim=1).values
    return (ordered[:, (clients - 1) // 2] + ordered[:, clients // 2]) / 2
