"""The tensors of a state as one vector, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedssl.aggregation.rule import is_counter
from fedssl.state import State

MEAN, VARIANCE = "running_mean", "running_var"
FLOOR = 0.01  # of its last value, below which noise does not push a variance


@dataclass(frozen=True)
class Layout:
    """Which tensors a vector consists of. Counters (integer tensors) are left out.

    Attributes:
        shapes: shape of every floating tensor, by name, in the order of the vector.
        statistics: names of the normalisation statistics among them.
    """

    shapes: dict[str, torch.Size]
    statistics: frozenset[str]

    @classmethod
    def of(cls, state: Mapping[str, Tensor], statistics: frozenset[str]) -> Layout:
        shapes = {name: tensor.shape for name, tensor in state.items() if not is_counter(tensor)}
        return cls(shapes, statistics & shapes.keys())

    @property
    def size(self) -> int:
        """Length of the vector."""
        return sum(shape.numel() for shape in self.shapes.values())

    def slices(self) -> dict[str, slice]:
        """Where each tensor is in the vector."""
        found, start = {}, 0
        for name, shape in self.shapes.items():
            found[name] = slice(start, start + shape.numel())
            start += shape.numel()
        return found

    def flatten(self, state: Mapping[str, Tensor]) -> NDArray[np.float64]:
        """The tensors of a state, one after the other."""
        vector = np.empty(self.size)
        for name, part in self.slices().items():
            vector[part] = state[name].detach().reshape(-1).cpu().double().numpy()
        return vector

    def unflatten(self, vector: NDArray[np.float64]) -> State:
        """Tensors in double precision."""
        return {
            name: torch.from_numpy(vector[part]).reshape(self.shapes[name])
            for name, part in self.slices().items()
        }

    def to_moments(self, state: Mapping[str, Tensor]) -> State:
        """The state with second moments in place of variances, which may be averaged like parameters.

        The mean of the clients' variances misses how far their means are apart; the mean of E[x²] does not.
        """
        moments = {name: state[name] for name in self.shapes}
        for mean, variance in self._pairs():
            moments[variance] = state[variance].double() + state[mean].double().square()
        return moments

    def from_moments(self, moments: Mapping[str, Tensor], previous: Mapping[str, Tensor]) -> State:
        """The inverse of `to_moments`; a variance does not fall below a hundredth of its previous value."""
        state = dict(moments)
        for mean, variance in self._pairs():
            found = moments[variance] - moments[mean].square()
            state[variance] = torch.maximum(found, FLOOR * previous[variance].to(found))
        return state

    def _pairs(self) -> list[tuple[str, str]]:
        """Means and variances of the same layer. Which tensors are statistics was decided by module type."""
        found = []
        for name in self.shapes:
            path, _, kind = name.rpartition(".")
            if name in self.statistics and kind == VARIANCE:
                found.append((f"{path}.{MEAN}", name))
        return found
