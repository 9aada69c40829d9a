"""Whether an ordering that a paper claims holds here: paired over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

RULE = (
    "held: true in every seed, or by a paired t-test (p < 0.05, two-sided); not held: true in no seed, or "
    "the t-test says the opposite; undecided: neither, or one seed only."
)


@dataclass(frozen=True)
class Verdict:
    """What the seeds say, and by how much."""

    word: str
    mean: float | None = None
    spread: float | None = None
    p: float | None = None


def judge(differences: Sequence[float], relation: Literal[">", ">="] = ">", by: float = 0.0) -> Verdict:
    """`differences` are better − worse, one a seed; the claim is that they exceed `by`."""
    if not differences:
        return Verdict("no numbers")
    # Two runs of which neither reached its target are equal.
    shown = [0.0 if math.isnan(difference) else difference for difference in differences]
    mean, spread = _mean(shown), _spread(shown)
    if len(shown) == 1:
        return Verdict("undecided (one seed)", mean)
    beyond = [difference - by for difference in shown]
    p = _p(beyond)
    sure = p is not None and p < 0.05
    if all(value > 0 or (value == 0 and relation == ">=") for value in beyond) or (
        sure and _mean(beyond) > 0
    ):
        word = "held"
    elif all(value < 0 or (value == 0 and relation == ">") for value in beyond) or (
        sure and _mean(beyond) < 0
    ):
        word = "not held"
    else:
        word = "undecided"
    return Verdict(word, mean, spread, p)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _spread(values: Sequence[float]) -> float | None:
    finite = all(math.isfinite(value) for value in values)
    return statistics.stdev(values) if finite and len(values) > 1 else None


def _p(values: Sequence[float]) -> float | None:
    """Of a paired t-test; none where all differences are the same, or one is infinite."""
    spread = _spread(values)
    if not spread:
        return None
    from scipy import stats

    t = _mean(values) / (spread / math.sqrt(len(values)))
    return float(2 * stats.t.sf(abs(t), len(values) - 1))
