"""Bounds on ε and confidence intervals from the successes of an attack."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import beta, binom, norm

Floats = NDArray[np.float64]
CONFIDENCE = 0.95
SHARES = (1.0, 0.5, 0.25)  # of the canaries, on which the attacker guesses; each is a chance to be lucky
LARGEST = 100.0  # ε beyond which nothing is searched for
RESAMPLES = 1000


@dataclass(frozen=True)
class Interval:
    """A number with its 95 % confidence interval."""

    value: float
    low: float
    high: float


# --- lower bounds on ε ------------------------------------------------------------------------------


def epsilon_lower_bound(inside: Floats, outside: Floats, delta: float) -> float:
    """The largest ε that the scores rule out, with 95 % confidence.

    The attacker takes the highest scores for canaries that took part and the lowest for others. It may
    abstain in between: three shares of guesses are tried, each with a third of the error.

    Args:
        inside: scores of canaries that took part.
        outside: scores of those that did not.
        delta: δ of the guarantee.

    Returns:
        ε ≥ 0; 0 where the attack shows nothing.
    """
    scores = np.concatenate([inside, outside])
    took_part = np.arange(len(scores)) < len(inside)
    order = np.argsort(scores, kind="stable")
    found, error = [0.0], (1 - CONFIDENCE) / len(SHARES)
    for share in SHARES:
        half = int(share * len(scores)) // 2
        if half:
            right = int(took_part[order[-half:]].sum() + (~took_part[order[:half]]).sum())
            found.append(epsilon_of_guesses(right, 2 * half, len(scores), delta, error))
    return max(found)


def epsilon_of_guesses(right: int, guesses: int, canaries: int, delta: float, error: float) -> float:
    """Find, by bisection, the largest ε at which this many right guesses are less likely than `error`."""
    if chance_of_guesses(right, guesses, canaries, 0.0, delta) > error:
        return 0.0
    low, high = 0.0, LARGEST
    while high - low > 1e-4:
        middle = (low + high) / 2
        unlikely = chance_of_guesses(right, guesses, canaries, middle, delta) <= error
        low, high = (middle, high) if unlikely else (low, middle)
    return low


def chance_of_guesses(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """The largest chance of `right` or more right guesses under (ε, δ)-differential privacy.

    Steinke, Nasr and Jagielski 2023, Theorem 5.2: a run with many canaries, each in or out by a fair coin, is
    as good as many runs. With δ = 0 a guess is right with probability e^ε / (1 + e^ε) at most.
    """
    share = 1 / (1 + math.exp(-epsilon))
    without_delta = float(binom.sf(right - 1, guesses, share))
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, share))  # P[right − i ≤ W < right]
    steepest = float((below / np.arange(1, right + 1)).max(initial=0.0))
    return min(1.0, without_delta + 2 * canaries * delta * steepest)


def epsilon_of_separation(separation: float, delta: float) -> float:
    """Compute ε of two normal distributions with means that are this many standard deviations apart.

    Balle and Wang 2018, Theorem 8: the curve of the Gaussian mechanism.
    """

    def excess(epsilon: float) -> float:
        first = norm.cdf(separation / 2 - epsilon / separation)
        second = math.exp(epsilon + norm.logcdf(-separation / 2 - epsilon / separation))
        return float(first - second) - delta

    if separation <= 0 or excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high))


def epsilon_estimate(inside: Floats, outside: Floats, delta: float, seed: int) -> Interval:
    """ε if scores are normal with the same spread (Andrew et al. 2023), with a bootstrap interval.

    This is an estimate of the attack's success, not a bound, because scores need not be normal.
    """
    rng = np.random.default_rng(seed)
    first = rng.choice(inside, (RESAMPLES, len(inside)))
    second = rng.choice(outside, (RESAMPLES, len(outside)))
    low, high = np.quantile(_separation(first, second), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    value = float(_separation(inside[None], outside[None])[0])
    return Interval(*(epsilon_of_separation(float(each), delta) for each in (value, low, high)))


def _separation(inside: Floats, outside: Floats) -> Floats:
    """Difference of means in pooled standard deviations, by row."""
    count = inside.shape[1] + outside.shape[1] - 2
    squares = inside.var(1) * inside.shape[1] + outside.var(1) * outside.shape[1]
    spread = np.maximum(np.sqrt(squares / max(count, 1)), 1e-12)
    found: Floats = (inside.mean(1) - outside.mean(1)) / spread
    return found


# --- how well two groups can be separated ----------------------------------------------------------


def area_under_curve(members: Floats, others: Floats) -> float:
    """The chance that a member has a higher score than another; ties count half."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, members, "left") + np.searchsorted(ordered, members, "right")
    return float(below.mean() / 2 / len(others))


def auc_interval(members: Floats, others: Floats, seed: int) -> Interval:
    """The area under the curve with a bootstrap interval."""
    rng = np.random.default_rng(seed)
    found = [
        area_under_curve(rng.choice(members, len(members)), rng.choice(others, len(others)))
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(found, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(area_under_curve(members, others), float(low), float(high))


def found_at(members: Floats, others: Floats, false_alarms: float) -> Interval:
    """Compute the true-positive rate at a false-positive rate.

    Args:
        members: scores of members.
        others: scores of others.
        false_alarms: share of others that may lie above the threshold.

    Returns:
        The share and its Clopper-Pearson interval.
    """
    allowed = int(false_alarms * len(others))
    threshold = np.sort(others)[len(others) - allowed - 1]
    count, total = int((members > threshold).sum()), len(members)
    tail = (1 - CONFIDENCE) / 2
    low = float(beta.ppf(tail, count, total - count + 1)) if count else 0.0
    high = float(beta.ppf(1 - tail, count + 1, total - count)) if count < total else 1.0
    return Interval(count / total, low, high)


def most_found(false_alarms: float, epsilon: float, delta: float) -> float:
    """The largest share of members that any attack finds under (ε, δ)-differential privacy."""
    if epsilon > LARGEST:
        return 1.0
    by_others = math.exp(epsilon) * false_alarms + delta
    by_members = 1 - math.exp(-epsilon) * (1 - delta - false_alarms)
    return max(0.0, min(1.0, by_others, by_members))
