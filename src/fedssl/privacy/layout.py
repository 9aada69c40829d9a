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


@dataclass(frozen=True)
class Layout:
    """The tensors that a vector consists of. Counters (integer tensors) are left out.

    Attributes:
        shapes: shape of every floating tensor, by name, in the order of the vector.
        statistics: names of the normalization statistics among them.
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
        """The position of each tensor in the vector."""
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
