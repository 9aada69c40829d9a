"""FedAvg with fixed layer norms: L-DAWA's effect on norms without its angles (a control)."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field

from fedssl.aggregation.angles import by_module
from fedssl.aggregation.dawa import Layer
from fedssl.aggregation.fedavg import FedAvg
from fedssl.state import State
from fedssl.vectors import flat, square


class FixedNorms(FedAvg):
    """w^(l) ← ‖w_g^(l)‖·w̄^(l)/‖w̄^(l)‖, where w̄ = Σ n_k·w_k / Σ n_k is FedAvg's.

    In front of BatchNorm an update is orthogonal to its weight, so that norms grow under FedAvg and
    ‖δ_k·w_k‖ = ‖w_g‖ under L-DAWA. This rule stops the growth for all clients alike. Layers that were or
    would become all zeros are not changed.
    """

    scales_weights: ClassVar[bool] = True

    layer: Layer = Field(
        "weights",
        description="the unit whose norm is kept. tensor: every weight and every bias; module: weight and "
        "bias together, and γ and β; weights: tensors of two or more dimensions only",
    )

    def complete(self, previous: State, statistics: frozenset[str], mean: State) -> State:
        mean = super().complete(previous, statistics, mean)
        changed: State = {}
        for names in self._groups(previous, statistics):
            was = math.sqrt(sum(square(flat(previous[name])) for name in names))
            now = math.sqrt(sum(square(flat(mean[name])) for name in names))
            if was and now:
                changed |= {name: mean[name] * (was / now) for name in names}
        return {**mean, **changed}

    def _groups(self, previous: State, statistics: frozenset[str]) -> list[list[str]]:
        layers = [
            name for name, tensor in previous.items() if tensor.is_floating_point() and name not in statistics
        ]
        if self.layer == "module":
            return list(by_module(layers).values())
        return [[name] for name in layers if self.layer == "tensor" or previous[name].ndim > 1]
