"""Running statistics of all images together, from those of each client.

A client's variance is around its own mean, so the mean of the variances leaves out how far the means are
apart. With shares p of the images,

    μ̄ = Σ p·μ_k        σ̄² = Σ p·(σ²_k + μ²_k) − μ̄²

Both sides of the boundary know the previous global mean g, and use (μ − g)² in place of μ²: the sum is the
same, and nothing is lost to rounding where means are large beside deviations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fedssl.aggregation.angles import by_module
from fedssl.state import State

MEAN, VARIANCE = "running_mean", "running_var"  # PyTorch's names in every normalisation layer that has them


def pairs(statistics: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Names of a mean and the variance of the same layer."""
    for path, names in by_module(statistics).items():
        mean, variance = (f"{path}.{name}" if path else name for name in (MEAN, VARIANCE))
        if mean in names and variance in names:
            yield mean, variance


def second_moments(state: State, previous: State, statistics: Iterable[str]) -> State:
    """The state with σ² + (μ − g)² in place of every variance."""
    changed = {
        variance: state[variance] + (state[mean] - previous[mean].to(state[mean])).square()
        for mean, variance in pairs(statistics)
    }
    return {**state, **changed}


def variances(state: State, previous: State, statistics: Iterable[str]) -> State:
    """The inverse: from mean moments to variances, which rounding cannot make negative."""
    changed = {
        variance: (state[variance] - (state[mean] - previous[mean].to(state[mean])).square()).clamp(min=0)
        for mean, variance in pairs(statistics)
    }
    return {**state, **changed}
