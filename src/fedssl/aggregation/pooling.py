"""Running statistics of all images, pooled from those of the clients.

A client's variance is around its own mean, so the mean of the variances ignores the differences between the
means. With shares p of the images,

    μ̄ = Σ p·μ_k        σ̄² = Σ p·(σ²_k + μ²_k) − μ̄²

Server and clients know the previous global mean g and use (μ − g)² instead of μ²: the result is the same, and
rounding errors stay small if means are much larger than deviations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fedssl.aggregation.angles import by_module
from fedssl.state import State

MEAN, VARIANCE = "running_mean", "running_var"  # PyTorch's names in every normalization layer that has them


def pairs(statistics: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Names of a mean and the variance of the same layer."""
    for path, names in by_module(statistics).items():
        mean, variance = (f"{path}.{name}" if path else name for name in (MEAN, VARIANCE))
        if mean in names and variance in names:
            yield mean, variance


def second_moments(state: State, previous: State, statistics: Iterable[str]) -> State:
    """Replace every variance by σ² + (μ − g)²."""
    changed = {
        variance: state[variance] + (state[mean] - previous[mean].to(state[mean])).square()
        for mean, variance in pairs(statistics)
    }
    return {**state, **changed}


def variances(state: State, previous: State, statistics: Iterable[str]) -> State:
    """The inverse of `second_moments` for mean moments; variances are clamped at 0."""
    changed = {
        variance: (state[variance] - (state[mean] - previous[mean].to(state[mean])).square()).clamp(min=0)
        for mean, variance in pairs(statistics)
    }
    return {**state, **changed}
