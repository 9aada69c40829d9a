"""Angular divergence δ = cos(w_g, w_k) between the global model and a client's (L-DAWA, Eq. 2).

Every fold measures it: some rules scale by it, and Fig. 4 of the paper plots it over the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fedssl.vectors import flat, pieces, safe, square, square_distance

Visit = Callable[[str, Tensor, slice], None]  # called with a layer's name, a piece of it, and its position
Sums = tuple[float, float, float]  # Σ w_g·w_k, Σ w_g², Σ w_k² of one layer


@dataclass(frozen=True)
class Comparison:
    """A client's layers compared with the global ones."""

    angles: dict[str, float]  # δ of each layer
    angle: float  # δ of the whole model
    _sums: dict[str, Sums] = field(repr=False)
    _global: dict[str, Tensor] = field(repr=False)
    _client: dict[str, Tensor] = field(repr=False)

    def cosine(self, name: str) -> float:
        """δ of one layer, or of a normalization statistic."""
        if name in self.angles:
            return self.angles[name]
        own, their = self._global[name].double(), self._client[name].double()
        return _cosine(float(torch.dot(own, their)), square(own), square(their))

    def distance(self, name: str) -> float:
        """‖w_k − w_g‖ of one layer, or of a normalization statistic; zero only if they are equal."""
        return math.sqrt(square_distance(self._global[name], self._client[name]))

    @cached_property
    def module_angles(self) -> dict[str, float]:
        """δ of each module's concatenated layers, by the module's path."""
        return {
            path: _cosine(*map(sum, zip(*(self._sums[name] for name in names), strict=True)))
            for path, names in by_module(self.angles).items()
        }


class Reference:
    """The global layers, flattened once per round for comparison with every client's."""

    def __init__(self, previous: Mapping[str, Tensor], statistics: frozenset[str] = frozenset()) -> None:
        self.layers = {
            name: flat(tensor)
            for name, tensor in previous.items()
            if tensor.is_floating_point() and name not in statistics
        }
        self._statistics = {
            name: flat(tensor)
            for name, tensor in previous.items()
            if tensor.is_floating_point() and name in statistics
        }
        self._squares = {name: square(own) for name, own in self.layers.items()}

    @torch.no_grad()
    def compare(self, state: Mapping[str, Tensor], visit: Visit | None = None) -> Comparison:
        """Measure a client's layers in one pass; `visit` is called with every piece while it is in cache."""
        own = self.layers | self._statistics
        theirs = {
            name: state[name].detach().to(tensor.device, tensor.dtype).reshape(-1)
            for name, tensor in own.items()
        }
        sums = {name: self._sums(name, theirs[name], visit) for name in self.layers}
        angles = {name: _cosine(*three) for name, three in sums.items()}
        whole = _cosine(*map(sum, zip(*sums.values(), strict=True)))
        return Comparison(angles, whole, sums, own, theirs)

    def _sums(self, name: str, their: Tensor, visit: Visit | None) -> Sums:
        own, own_square = self.layers[name], self._squares[name]
        dot = their_square = 0.0
        for piece in pieces(own):
            part = their[piece]
            dot += float(torch.dot(own[piece], part))
            their_square += float(torch.dot(part, part))
            if visit is not None:
                visit(name, part, piece)
        if not safe(their_square) or not (safe(own_square) or own_square == 0):
            wide = their.double()
            dot, their_square = float(torch.dot(own.double(), wide)), float(torch.dot(wide, wide))
        return dot, own_square, their_square


def angles(
    previous: Mapping[str, Tensor], state: Mapping[str, Tensor], names: Iterable[str] | None = None
) -> dict[str, float]:
    """δ of each named layer (None: of all floating tensors); 1 if either is all zeros."""
    layers = previous if names is None else {name: previous[name] for name in names}
    return Reference(layers).compare(state).angles


def by_module(names: Iterable[str]) -> dict[str, list[str]]:
    """Group names of tensors by the path of their module."""
    modules: dict[str, list[str]] = {}
    for name in names:
        modules.setdefault(name.rpartition(".")[0], []).append(name)
    return modules


def mean_angle(angles: Mapping[str, float]) -> float:
    """The mean of δ over layers; 1 without layers."""
    return sum(angles.values()) / len(angles) if angles else 1.0


def _cosine(dot: float = 0.0, own: float = 0.0, their: float = 0.0) -> float:
    """δ from sums of products; 1 if either vector is zero, for which the cosine is undefined."""
    length = math.sqrt(own) * math.sqrt(their)
    return max(-1.0, min(1.0, dot / length)) if length else 1.0
