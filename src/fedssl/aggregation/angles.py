"""Angular divergence δ = cos(w_g, w_k) between the global model and a client's (L-DAWA, Eq. 2).

Every fold measures it: some rules scale by it, and Fig. 4 of the paper follows it over the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fedssl.vectors import flat, pieces, safe, square, square_distance

Seen = Callable[[str, Tensor, slice], None]  # the name of a layer, a piece of it, and where that lies
Sums = tuple[float, float, float]  # Σ w_g·w_k, Σ w_g², Σ w_k² of one layer


@dataclass(frozen=True)
class Comparison:
    """A client's layers beside the global ones."""

    angles: dict[str, float]  # δ of each layer
    angle: float  # δ of the whole model
    _sums: dict[str, Sums] = field(repr=False)
    _global: dict[str, Tensor] = field(repr=False)
    _client: dict[str, Tensor] = field(repr=False)

    def cosine(self, name: str) -> float:
        """δ of one layer, or of a normalisation statistic."""
        if name in self.angles:
            return self.angles[name]
        own, their = self._global[name].double(), self._client[name].double()
        return _cosine(float(torch.dot(own, their)), square(own), square(their))

    def distance(self, name: str) -> float:
        """‖w_k − w_g‖ of one layer, or of a normalisation statistic; zero only where they are equal."""
        return math.sqrt(square_distance(self._global[name], self._client[name]))

    @cached_property
    def module_angles(self) -> dict[str, float]:
        """δ of each module's layers taken as one vector, by the module's path."""
        return {
            path: _cosine(*map(sum, zip(*(self._sums[name] for name in names), strict=True)))
            for path, names in by_module(self.angles).items()
        }


class Reference:
    """The global layers, laid out once per round for comparison with every client's."""

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
    def compare(self, state: Mapping[str, Tensor], seen: Seen | None = None) -> Comparison:
        """Measure a client's layers, in one pass over them; `seen` gets every piece while it is in cache."""
        own = self.layers | self._statistics
        theirs = {
            name: state[name].detach().to(tensor.device, tensor.dtype).reshape(-1)
            for name, tensor in own.items()
        }
        sums = {name: self._sums(name, theirs[name], seen) for name in self.layers}
        angles = {name: _cosine(*three) for name, three in sums.items()}
        whole = _cosine(*map(sum, zip(*sums.values(), strict=True)))
        return Comparison(angles, whole, sums, own, theirs)

    def _sums(self, name: str, their: Tensor, seen: Seen | None) -> Sums:
        own, own_square = self.layers[name], self._squares[name]
        dot = their_square = 0.0
        for piece in pieces(own):
            part = their[piece]
            dot += float(torch.dot(own[piece], part))
            their_square += float(torch.dot(part, part))
            if seen is not None:
                seen(name, part, piece)
        if not safe(their_square) or not (safe(own_square) or own_square == 0):
            wide = their.double()
            dot, their_square = float(torch.dot(own.double(), wide)), float(torch.dot(wide, wide))
        return dot, own_square, their_square


def angles(
    previous: Mapping[str, Tensor], state: Mapping[str, Tensor], names: Iterable[str] | None = None
) -> dict[str, float]:
    """δ of each named layer (all floating tensors if none are named); 1 where either is all zeros."""
    layers = previous if names is None else {name: previous[name] for name in names}
    return Reference(layers).compare(state).angles


def by_module(names: Iterable[str]) -> dict[str, list[str]]:
    """Names of tensors by the path of the module that has them: weight and bias, γ and β."""
    modules: dict[str, list[str]] = {}
    for name in names:
        modules.setdefault(name.rpartition(".")[0], []).append(name)
    return modules


def mean_angle(angles: Mapping[str, float]) -> float:
    """The mean of δ over layers; 1 if there are none."""
    return sum(angles.values()) / len(angles) if angles else 1.0


def _cosine(dot: float = 0.0, own: float = 0.0, their: float = 0.0) -> float:
    """δ from sums of products; where either vector is zero the cosine is undefined and δ is 1."""
    length = math.sqrt(own) * math.sqrt(their)
    return max(-1.0, min(1.0, dot / length)) if length else 1.0
