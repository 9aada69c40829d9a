"""Who talks to whom without a server, and with which weights: pure functions on matrices."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedssl.errors import ConfigError

Graph = NDArray[np.bool_]  # symmetric, no loops
Mixing = NDArray[np.float64]  # symmetric, doubly stochastic
Topology = Literal["star", "cycle", "tree", "random", "complete"]

TRIES = 1000  # graphs that are drawn before an edge probability is given up


def graph(topology: Topology, nodes: int, edge_probability: float, rng: np.random.Generator) -> Graph:
    """Who is whose neighbour; every graph is connected. Only `random` draws from the generator."""
    if topology == "random":
        return _random(nodes, edge_probability, rng)
    edges = {
        "star": [(0, node) for node in range(1, nodes)],
        "cycle": [(node, (node + 1) % nodes) for node in range(nodes if nodes > 2 else nodes - 1)],
        "tree": [((node - 1) // 2, node) for node in range(1, nodes)],
        "complete": [(one, other) for other in range(nodes) for one in range(other)],
    }[topology]
    neighbours = np.zeros((nodes, nodes), dtype=bool)
    for one, other in edges:
        neighbours[one, other] = neighbours[other, one] = True
    return neighbours


def _random(nodes: int, edge_probability: float, rng: np.random.Generator) -> Graph:
    """Every edge with the same probability, drawn again until the graph is connected (Dec-SSL, §B.5)."""
    for _ in range(TRIES):
        above = np.triu(rng.random((nodes, nodes)) < edge_probability, k=1)
        neighbours: Graph = above | above.T
        if connected(neighbours):
            return neighbours
    raise ConfigError(
        f"engine.edge_probability={edge_probability}: none of {TRIES} random graphs on {nodes} nodes is "
        f"connected; above {np.log(nodes) / nodes:.2f} most are"
    )


def connected(neighbours: Graph) -> bool:
    """Whether there is a path between any two nodes."""
    reached = np.zeros(len(neighbours), dtype=bool)
    reached[0] = True
    while True:
        further = reached | neighbours[reached].any(axis=0)
        if (further == reached).all():
            return bool(reached.all())
        reached = further


def metropolis_hastings(neighbours: Graph) -> Mixing:
    """W_ij = 1/(1 + max(degree_i, degree_j)) for neighbours; what is missing to 1 a node gives itself."""
    degrees = neighbours.sum(axis=0)
    weights = np.where(neighbours, 1.0 / (1.0 + np.maximum.outer(degrees, degrees)), 0.0)
    np.fill_diagonal(weights, 1.0 - weights.sum(axis=1))
    return weights


def among(neighbours: Graph, active: Collection[int]) -> Mixing:
    """Weights while some nodes are away: those of the graph on the others; who is away keeps what it has."""
    there = np.isin(np.arange(len(neighbours)), list(active))
    return metropolis_hastings(neighbours & np.logical_and.outer(there, there))


def spectral_gap(weights: Mixing) -> float:
    """1 − |λ₂|: by how much a mixing step shrinks the distance from consensus at the least."""
    sizes = np.sort(np.abs(np.linalg.eigvalsh(weights)))
    return float(1.0 - sizes[-2]) if len(sizes) > 1 else 1.0
