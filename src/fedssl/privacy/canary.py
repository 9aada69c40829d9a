"""Canary clients (Andrew et al. 2023): clients with random updates that an audit looks for.

A fair coin decides for each canary whether it takes part at all. How well the final model separates those
that did from those that did not gives a lower bound on ε (`fedssl audit`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from fedssl.aggregation.rule import is_counter
from fedssl.privacy.layout import Layout
from fedssl.rng import numpy_rng
from fedssl.state import State


class Canaries:
    """The canaries of a run. Their numbers follow those of the clients with images.

    Args:
        seed: the seed of the run.
        clients: number of clients with images.
        count: `privacy.canaries`.
    """

    def __init__(self, seed: int, clients: int, count: int) -> None:
        self.seed, self.clients, self.count = seed, clients, count
        coins = numpy_rng(seed, "canary", "coins").random(count)
        self.taking_part: NDArray[np.bool_] = coins < 0.5

    @property
    def total(self) -> int:
        """Number of clients and canaries."""
        return self.clients + self.count

    def includes(self, client: int) -> bool:
        """Whether a client is a canary."""
        return client >= self.clients

    def image_owner(self, client: int) -> int:
        """The client whose images a client trains on; a canary uses those of another client."""
        return client % self.clients

    def without_absent(self, sampled: Iterable[int]) -> list[int]:
        """The sampled clients, without the canaries that do not take part."""
        return [
            client
            for client in sampled
            if not self.includes(client) or self.taking_part[client - self.clients]
        ]

    def direction(self, number: int, size: int) -> NDArray[np.float64]:
        """The update of a canary: a vector of length 1, the same in every round.

        Args:
            number: of the canary, from 0.
            size: number of values that the clients share.
        """
        drawn = numpy_rng(self.seed, "canary", "direction", number).standard_normal(size)
        return drawn / np.linalg.norm(drawn)

    def upload(
        self, client: int, received: State, trained: State, statistics: frozenset[str], clip: float | None
    ) -> State:
        """The model that a canary sends instead of the one it has trained.

        Args:
            client: the number of the canary among all clients.
            received: the tensors that it was sent.
            trained: the same tensors after training.
            statistics: names of normalization statistics; they stay as received.
            clip: the largest norm of an update, which the canary's update has; None: the norm of the update
                of the client whose images it uses.
        """
        layout = canary_layout(received, statistics)
        old = layout.flatten(received)
        length = math.sqrt(float(np.square(layout.flatten(trained) - old).sum())) if clip is None else clip
        new = layout.unflatten(old + length * self.direction(client - self.clients, layout.size))
        return {
            name: new[name].to(value.dtype) if name in new else value.clone()
            for name, value in received.items()
        }


def canary_layout(state: State, statistics: frozenset[str]) -> Layout:
    """The tensors that canaries change: parameters, without statistics and counters."""
    kept = {name: value for name, value in state.items() if name not in statistics and not is_counter(value)}
    return Layout.of(kept, frozenset())


@torch.no_grad()
def cosines(canaries: Canaries, change: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cosine of the model's change with each canary's direction."""
    length = float(np.linalg.norm(change)) or 1.0
    return np.array(
        [canaries.direction(number, len(change)) @ change / length for number in range(canaries.count)]
    )
