"""The canary audit: how clearly the updates of canary clients show in the final model."""

from __future__ import annotations

import math
from typing import Any

from fedssl.audit.bounds import CONFIDENCE, epsilon_estimate, epsilon_lower_bound
from fedssl.evaluation.loaded import LoadedRun
from fedssl.privacy.canary import canary_layout, cosines

FEWEST = 10  # canaries that take part, and as many that do not


def audit_canaries(run: LoadedRun) -> dict[str, Any]:
    """A lower bound on ε from the canaries of a run.

    Args:
        run: the run, which `privacy.canaries` gave canaries.

    Returns:
        The bound, an estimate, the accountant's ε, and the scores; or `why_not`.
    """
    canaries, privacy = run.live.runner.canaries, run.trained.privacy
    count = int(canaries.taking_part.sum())
    if not canaries.count:
        return {"why_not": "The run has no canaries: train with privacy.canaries=100 to measure ε."}
    if min(count, canaries.count - count) < FEWEST:
        return {
            "why_not": f"Of {canaries.count} canaries {count} took part; {FEWEST} on either side are needed: "
            "train with a larger privacy.canaries."
        }
    final, first = run.server.model, run.live.runner.first_server().model
    layout = canary_layout(first, run.live.runner.statistics)
    scores = cosines(canaries, layout.flatten(final) - layout.flatten(first))
    inside, outside = scores[canaries.taking_part], scores[~canaries.taking_part]
    estimate = epsilon_estimate(inside, outside, privacy.delta, run.trained.seed)
    return {
        "count": canaries.count,
        "taking_part": count,
        "confidence": CONFIDENCE,
        "delta": privacy.delta,
        "lower_bound": epsilon_lower_bound(inside, outside, privacy.delta),
        "estimate": estimate.value,
        "estimate_low": estimate.low,
        "estimate_high": estimate.high,
        "largest_bound": largest_bound(count, canaries.count - count, privacy.delta),
        "accountant": spent(run),
        "inside": [round(float(score), 6) for score in inside],
        "outside": [round(float(score), 6) for score in outside],
    }


def largest_bound(taking_part: int, others: int, delta: float) -> float:
    """Return the bound from this many canaries if the attacker is never wrong."""
    import numpy as np

    return epsilon_lower_bound(np.ones(taking_part), np.zeros(others), delta)


def spent(run: LoadedRun) -> float | None:
    """The accountant's ε; None where no noise was added."""
    found = [line["epsilon"] for line in run.directory.metrics() if "epsilon" in line]
    return float(found[-1]) if found and math.isfinite(found[-1]) else None
