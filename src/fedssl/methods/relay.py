"""Relay: clients train one after another, each starting from the previous client's model.

Consecutive steps make more progress than parallel ones: the mean of K models that each took n
steps is closer to n steps than to K·n. A model that visits K clients in a row takes K·n steps at the same
cost in views and bytes, but a round takes longer, because clients wait for each other. Known as cyclic
weight transfer (Chang et al. 2018) and as sequential federated learning (Li and Lyu, NeurIPS 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedssl.methods.fedavg import FedAvg
from fedssl.rng import numpy_rng


class Relay(FedAvg):
    """FedAvg whose models visit several clients, one after another, before they are averaged."""

    visits: int = Field(
        0,
        ge=0,
        description="clients that a model visits in a round; 0: all of the round, 1: FedAvg. Clients are "
        "assigned to routes at random in every round",
    )

    def routes(self, clients: Sequence[int], round: int, seed: int) -> list[list[int]]:
        if self.visits == 1:
            return super().routes(clients, round, seed)
        order = [int(client) for client in numpy_rng(seed, round, "routes").permutation(clients)]
        routes = -(-len(order) // (self.visits or len(order)))  # rounded up
        return [order[first::routes] for first in range(routes)]
