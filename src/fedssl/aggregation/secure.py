"""The other way to run a scaled sum: clients scale their own layers, and the server only sums.

That is what secure aggregation can do: it shows the server Σ_k of what clients send, and nothing
else. A client needs the global model, its own, and the rule; the masses travel along.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedssl.aggregation.rule import check, is_counter, sum_type
from fedssl.aggregation.scaled_sum import ScaledSum
from fedssl.errors import RunError
from fedssl.state import State, Upload


@dataclass
class ScaledUpload:
    """What a client sends instead of an `Upload`: tensors to be summed, and the masses to divide by."""

    client: int
    state: State
    masses: dict[str, float]


@torch.no_grad()
def client_side(
    rule: ScaledSum,
    previous: State,
    upload: Upload,
    statistics: frozenset[str] = frozenset(),
    reference: float = 0.0,
) -> ScaledUpload:
    """Scale a client's tensors where they are; `reference` as in `ScaledSum.scale`.

    A layer with infinite mass (`euc`: one that training left as it was) counts e^40 here. With a
    rule that warms up, pass `rule.at(round)`.
    """
    scales, masses = rule.scale(previous, upload, statistics, reference)
    state = {
        name: tensor.clone() if is_counter(tensor) else tensor.to(sum_type(previous[name])) * scales[name]
        for name, tensor in upload.state.items()
    }
    return ScaledUpload(upload.client, state, masses)


class SumOnly:
    """The server's part: sums of what clients scaled, in any order, divided by the sums of their masses.

    Counters are the exception: they are no sums, and are taken from the largest.
    """

    def __init__(self, previous: State) -> None:
        self.previous = previous
        self._sums: State = {}
        self._masses: dict[str, float] = {}

    @torch.no_grad()
    def add(self, scaled: ScaledUpload) -> None:
        check(self.previous, scaled.state, f"upload of client {scaled.client}")
        for name, tensor in scaled.state.items():
            if name not in self._sums:
                self._sums[name] = tensor.clone()
            elif is_counter(tensor):
                torch.maximum(self._sums[name], tensor, out=self._sums[name])
            else:
                self._sums[name].add_(tensor)
        for name, mass in scaled.masses.items():
            self._masses[name] = self._masses.get(name, 0.0) + mass

    @torch.no_grad()
    def finish(self) -> State:
        """The new global state."""
        if not self._sums:
            raise RunError("nothing to aggregate: the round has no uploads")
        means = {
            name: tensor / self._masses[name] if name in self._masses else tensor.clone()
            for name, tensor in self._sums.items()
        }
        return {name: means[name].to(old.device, old.dtype) for name, old in self.previous.items()}
