"""Rules that are robust to some malicious uploads. They need all uploads of a round in memory.

Memory grows with the clients of a round. The rules also cover BatchNorm's statistics: averaging these by
number of samples would let through the attacks that the rules block elsewhere.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from fedssl.aggregation.angles import Comparison
from fedssl.aggregation.rule import Fold, Rule, is_counter, sum_type
from fedssl.state import State, Upload

PIECE = 1 << 15  # coordinates processed at a time, for all clients


class Robust(Rule):
    """A rule on all uploads of a round together."""

    @abstractmethod
    def combine(self, states: list[State], layers: list[str]) -> State:
        """Combine the floating tensors of all uploads; `layers` are those that are not statistics."""

    def start(
        self, previous: State, statistics: frozenset[str] = frozenset(), round: int | None = None
    ) -> Fold:
        return BufferingFold(self, previous, statistics)


class BufferingFold(Fold):
    """Buffers a copy of every upload until the end."""

    def __init__(self, rule: Robust, previous: State, statistics: frozenset[str]) -> None:
        super().__init__(previous, statistics)
        self.rule = rule
        self._states: list[State] = []

    def _add(self, upload: Upload) -> Comparison:
        copies = {
            name: upload.state[name].to(old.device, sum_type(old), copy=True)
            for name, old in self.previous.items()
            if not is_counter(old)
        }
        self._states.append(copies)
        return self.reference.compare(upload.state)

    def _finish(self) -> State:
        return self.rule.combine(self._states, list(self.reference.layers))


def by_coordinate(states: list[State], combine: Callable[[Tensor], Tensor]) -> State:
    """Apply `combine`, which maps coordinates × clients to coordinates, piece by piece."""
    combined = {}
    for name, first in states[0].items():
        flat = [torch.split(state[name].reshape(-1), PIECE) for state in states]
        pieces = [combine(torch.stack(piece, dim=1)) for piece in zip(*flat, strict=True)]
        combined[name] = torch.cat(pieces).view(first.shape)
    return combined
