"""Angles and norms by kind of layer, because weights, γ and β behave differently."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedssl.state import State
from fedssl.vectors import flat, square

Kinds = Mapping[str, str]  # names of layers: `Model.kinds`


def mean_by_kind(values: Mapping[str, float], kinds: Kinds, prefix: str) -> dict[str, float]:
    """The mean over layers, for each kind: `PREFIX_weights`, `PREFIX_gamma`, `PREFIX_beta`."""
    found: dict[str, list[float]] = {}
    for name, value in values.items():
        if name in kinds:
            found.setdefault(f"{prefix}_{kinds[name]}", []).append(value)
    return {key: sum(listed) / len(listed) for key, listed in found.items()}


def norms_by_kind(models: Sequence[State], kinds: Kinds) -> dict[str, float]:
    """‖w‖ of each layer: the mean over layers (and over models, where the server has several)."""
    norms = {
        name: sum(math.sqrt(square(flat(model[name]))) for model in models) / len(models)
        for name in kinds
        if models and name in models[0]
    }
    return mean_by_kind(norms, kinds, "norm")
