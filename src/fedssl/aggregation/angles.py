"""Angular divergence δ = cos(w_g, w_k) between the global model and a client's (L-DAWA, Eq. 2).

Every fold measures it: some rules scale by it, and Fig. 4 of the paper follows it over the rounds.
It must not depend on how many threads sum or on how tensors lie in memory, or two engines would
disagree in the last bits. So products are summed over rows of a fixed length, each by one thread:
BLAS splits only what is longer, and a loop over rows beats it at that (see benchmarks/aggregation.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROW = 4096  # products that are summed in the tensor's own precision; rows are summed in double
PIECE = 32 * ROW  # elements handled at a time: two arrays of this size stay in a core's cache

Matrix = Any  # of NumPy on a CPU, whose loop over rows is the fastest; of torch on other devices

# In single precision, sums of squares outside of this range have lost digits, or are lost altogether.
SAFE = (1e-20, 1e30)


@dataclass(frozen=True)
class Comparison:
    """A client's layers beside the global ones."""

    angles: dict[str, float]  # δ of each layer
    angle: float  # δ of the whole model
    _global: dict[str, Tensor] = field(repr=False)
    _client: dict[str, Tensor] = field(repr=False)

    def distance(self, layer: str) -> float:
        """‖w_k − w_g‖ of one layer; zero only where they are equal."""
        return _distance(self._global[layer], self._client[layer])


class Reference:
    """The global layers, laid out once per round for comparison with every client's."""

    def __init__(self, previous: Mapping[str, Tensor], statistics: frozenset[str] = frozenset()) -> None:
        self.layers = {
            name: _flat(tensor)
            for name, tensor in previous.items()
            if tensor.is_floating_point() and name not in statistics
        }
        squares = [square for _, square in _products([(own, own) for own in self.layers.values()])]
        self._squares = [
            square if _safe(square) else _product(own.double(), own.double())[1]
            for own, square in zip(self.layers.values(), squares, strict=True)
        ]

    @torch.no_grad()
    def compare(self, state: Mapping[str, Tensor]) -> Comparison:
        """Measure a client's layers, in one pass over them."""
        theirs = {name: _flat(state[name].to(own.device, own.dtype)) for name, own in self.layers.items()}
        pairs = list(zip(self.layers.values(), theirs.values(), strict=True))
        sums = []
        for (a, b), own, (dot, their) in zip(pairs, self._squares, _products(pairs), strict=True):
            if not _safe(their) or not (_safe(own) or own == 0):
                dot, their = _product(a.double(), b.double())
            sums.append((dot, own, their))
        angles = dict(zip(self.layers, (_cosine(*three) for three in sums), strict=True))
        return Comparison(angles, _cosine(*map(sum, zip(*sums, strict=True))), self.layers, theirs)


def angles(
    previous: Mapping[str, Tensor], state: Mapping[str, Tensor], names: Iterable[str] | None = None
) -> dict[str, float]:
    """δ of each named layer (all floating tensors if none are named); 1 where either is all zeros."""
    layers = previous if names is None else {name: previous[name] for name in names}
    return Reference(layers).compare(state).angles


def mean_angle(angles: Mapping[str, float]) -> float:
    """The mean of δ over layers; 1 if there are none."""
    return sum(angles.values()) / len(angles) if angles else 1.0


def _cosine(dot: float = 0.0, own: float = 0.0, their: float = 0.0) -> float:
    """δ from sums of products; where either vector is zero the cosine is undefined and δ is 1."""
    length = math.sqrt(own) * math.sqrt(their)
    return max(-1.0, min(1.0, dot / length)) if length else 1.0


def _flat(tensor: Tensor) -> Tensor:
    """One dimension in logical order, widened to single precision; a view where it can be."""
    return tensor.detach().reshape(-1).to(torch.promote_types(tensor.dtype, torch.float32))


def _products(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[float, float]]:
    """(Σ a·b, Σ b·b) of each pair; the large ones are shared out among threads, the largest first."""
    threads = torch.get_num_threads()
    large = [index for index, (a, _) in enumerate(pairs) if a.numel() >= PIECE] if threads > 1 else []
    large.sort(key=lambda index: -pairs[index][0].numel())
    with ThreadPoolExecutor(threads) as pool:
        jobs = {index: pool.submit(_product, *pairs[index]) for index in large}
        return [jobs[i].result() if i in jobs else _product(*pair) for i, pair in enumerate(pairs)]


def _product(a: Tensor, b: Tensor) -> tuple[float, float]:
    """(Σ a·b, Σ b·b). A piece comes from memory for the first sum, and from cache for the second."""
    dot = square = 0.0
    with np.errstate(over="ignore"):  # what overflows is not safe, and is summed again in double
        for own, their in zip(_pieces(a), _pieces(b), strict=True):
            dot += _inner(own, their)
            square += _inner(their, their)
    return dot, square


def _pieces(tensor: Tensor) -> Iterator[Matrix]:
    """Whole rows, a piece at a time, then the rest as one short row."""
    values: Matrix = tensor.numpy() if tensor.device.type == "cpu" else tensor
    whole = len(values) // ROW * ROW
    for start in range(0, whole, PIECE):
        yield values[start : min(start + PIECE, whole)].reshape(-1, ROW)
    if whole < len(values):
        yield values[whole:].reshape(1, -1)


def _inner(a: Matrix, b: Matrix) -> float:
    """Σ a·b, row by row."""
    if isinstance(a, Tensor):
        return float(sum((a * b).sum(1).tolist()))
    return float(np.matmul(a[:, None, :], b[:, :, None]).sum(dtype=np.float64))


def _distance(a: Tensor, b: Tensor) -> float:
    square = 0.0
    for own, their in zip(_pieces(a), _pieces(b), strict=True):
        difference = their - own
        square += _inner(difference, difference)
    if a.dtype != torch.float64 and not _safe(square):
        return _distance(a.double(), b.double())
    return math.sqrt(square)


def _safe(square: float) -> bool:
    return SAFE[0] < square < SAFE[1]
