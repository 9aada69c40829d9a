"""Graphs and mixing matrices for training without a server."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedssl.errors import ConfigError

Graph = NDArray[np.bool_]  # symmetric, no loops
Mixing = NDArray[np.float64]  # symmetric, doubly stochastic
Topology = Literal["star", "cycle", "tree", "random", "complete"]

TRIES = 1000  # random graphs to draw until one is connected


def graph(topology: Topology, nodes: int, edge_probability: float, rng: np.random.Generator) -> Graph:
    """Build a connected graph; only `random` uses the generator."""
    if topology == "random":
        return _random(nodes, edge_probability, rng)
    edges = {
        "star": [(0, node) for node in range(1, nodes)],
        "cycle": [(node, (node + 1) % nodes) for node in range(nodes if nodes > 2 else nodes - 1)],
        "tree": [((node - 1) // 2, node) for node in range(1, nodes)],
        "complete": [(one, other) for other in range(nodes) for one in range(other)],
    }[topology]
    neighbors = np.zeros((nodes, nodes), dtype=bool)
    for one, other in edges:
        neighbors[one, other] = neighbors[other, one] = True
    return neighbors


def _random(nodes: int, edge_probability: float, rng: np.random.Generator) -> Graph:
    """Every edge with the same probability, drawn again until the graph is connected (Dec-SSL, §B.5)."""
    for _ in range(TRIES):
        above = np.triu(rng.random((nodes, nodes)) < edge_probability, k=1)
        neighbors: Graph = above | above.T
        if connected(neighbors):
            return neighbors
    raise ConfigError(
        f"engine.edge_probability={edge_probability}: none of {TRIES} random graphs on {nodes} nodes is "
        f"connected; above {np.log(nodes) / nodes:.2f} most are"
    )


def connected(neighbors: Graph) -> bool:
    """Whether there is a path between any two nodes."""
    reached = np.zeros(len(neighbors), dtype=bool)
    reached[0] = True
    while True:
        further = reached | neighbors[reached].any(axis=0)
        if (further == reached).all():
            return bool(reached.all())
        reached = further


def metropolis_hastings(neighbors: Graph) -> Mixing:
    """W_ij = 1/(1 + max(degree_i, degree_j)) for neighbors, W_ii = 1 − Σ_j W_ij."""
    degrees = neighbors.sum(axis=0)
    weights = np.where(neighbors, 1.0 / (1.0 + np.maximum.outer(degrees, degrees)), 0.0)
    np.fill_diagonal(weights, 1.0 - weights.sum(axis=1))
    return weights


def among(neighbors: Graph, active: Collection[int]) -> Mixing:
    """Weights of the subgraph of active nodes; the others keep their models."""
    there = np.isin(np.arange(len(neighbors)), list(active))
    return metropolis_hastings(neighbors & np.logical_and.outer(there, there))


def spectral_gap(weights: Mixing) -> float:
    """1 − |λ₂|: a lower bound of how much a mixing step reduces the distance from consensus."""
    sizes = np.sort(np.abs(np.linalg.eigvalsh(weights)))
    return float(1.0 - sizes[-2]) if len(sizes) > 1 else 1.0
