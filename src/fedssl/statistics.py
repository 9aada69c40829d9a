"""Verdicts on claims of the form "a is better than b", paired over seeds.

A claim is tested against its margin with a two-sided paired t-test. All claims of a table are one family, and
Holm's correction keeps the probability of any false verdict in the table at 5 %. From six seeds on, an exact
sign-flip permutation test, which does not assume normal differences, has to agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit

Word = Literal["held", "not held", "undecided"]

ALPHA = 0.05
PERMUTATION_FROM = 5  # seeds from which the permutation test is reported
EXACT_UP_TO = 20  # seeds up to which all 2^n sign patterns are enumerated
SAMPLED_PATTERNS = 100_000

RULE = (
    "Differences are paired over seeds. Held and not held need a two-sided paired t-test against the margin "
    "with p ≤ 0.05 after Holm's correction over all comparisons of this table; from six seeds on, an exact "
    "sign-flip permutation test has to agree (p ≤ 0.05, uncorrected). Everything else is undecided, with "
    "the smallest distance from the margin that this many seeds could have shown. The interval has the "
    "confidence level at which Holm's procedure tested the line (95 % for a single comparison, more for "
    "several), so that it excludes the margin exactly when the corrected p is at most 0.05."
)


@dataclass(frozen=True)
class Summary:
    """Differences of which only the mean, the sample standard deviation and the number are known."""

    mean: float
    spread: float
    n: int


@dataclass(frozen=True)
class Claim:
    """What is tested: that the expected difference is greater than the margin.

    Attributes:
        differences: better − worse, one per seed; infinite where one side never reached a target. A
            `Summary` if single seeds are not known: it has a t-test, but no permutation test.
        margin: 0 for "better", positive for "better by at least", negative for "within" (non-inferiority).
        failed: names of the runs that failed, whose seeds are therefore missing from `differences`.
    """

    differences: Sequence[float] | Summary
    margin: float = 0.0
    failed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The outcome of testing a claim.

    Attributes:
        word: "held", "not held" or "undecided".
        n: number of seeds with a difference.
        mean: mean difference.
        spread: sample standard deviation of the differences.
        low, high: confidence interval of the mean difference, at level `confidence`.
        confidence: 1 − 0.05 / k, where k is the number of comparisons that Holm's procedure still had open
            when it tested this one (for comparisons after the first that failed: when it stopped).
        p: two-sided paired t-test against the margin, uncorrected. None with fewer than two seeds, and where
            the t distribution does not apply: all differences are equal, or one is infinite.
        p_permutation: two-sided sign-flip permutation test, uncorrected; None with fewer than five seeds.
        p_corrected: Holm-corrected p that decides; that of the permutation test where there is no t-test.
        detectable: half the width of the interval: with the observed spread, a mean difference that is at
            least this far from the margin would have been significant after correction. It is an
            observed-spread bound, not a power analysis: an effect of this size is missed half of the time.
        failed: names of the runs that failed.
    """

    word: Word
    n: int
    mean: float | None = None
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    p: float | None = None
    p_permutation: float | None = None
    p_corrected: float | None = None
    detectable: float | None = None
    failed: tuple[str, ...] = ()


# --- verdicts -------------------------------------------------------------------------------------


def check_claims(claims: Sequence[Claim]) -> list[Verdict]:
    """Test the claims of one table together.

    A claim that cannot be tested (fewer than two seeds) counts in the family with p = 1, so that verdicts do
    not become weaker as more runs of the table finish.
    """
    tests = [t_test(claim.differences, claim.margin) for claim in claims]
    permutations = [_permutation(claim) for claim in claims]
    # Without a spread the t-test does not apply, and the permutation test decides alone.
    deciding = [p if p is not None else other for p, other in zip(tests, permutations, strict=True)]
    family = [1.0 if p is None else p for p in deciding]
    return [
        _check_claim(claim, p, permutation, None if decides is None else corrected, level)
        for claim, p, permutation, decides, corrected, level in zip(
            claims, tests, permutations, deciding, holm(family), holm_levels(family), strict=True
        )
    ]


def _permutation(claim: Claim) -> float | None:
    if isinstance(claim.differences, Summary) or len(claim.differences) < PERMUTATION_FROM:
        return None
    return sign_flip_test(claim.differences, claim.margin)


def _check_claim(
    claim: Claim, p: float | None, permutation: float | None, corrected: float | None, level: float
) -> Verdict:
    n = claim.differences.n if isinstance(claim.differences, Summary) else len(claim.differences)
    if n == 0:
        return Verdict("undecided", 0, failed=claim.failed)
    mean, spread = mean_and_spread(claim.differences)
    interval = t_interval(claim.differences, 1 - level)
    # With five seeds the rarest sign pattern has probability 2/32, so the test cannot agree before six seeds.
    attainable = permutation is not None and 2.0 ** (1 - n) <= ALPHA
    agrees = not attainable or (permutation is not None and permutation <= ALPHA)
    word: Word = "undecided"
    if corrected is not None and corrected <= ALPHA and agrees:
        word = "held" if _balance(claim.differences, claim.margin) > 0 else "not held"
    return Verdict(
        word=word,
        n=n,
        mean=mean,
        spread=spread,
        low=interval[0] if interval else None,
        high=interval[1] if interval else None,
        confidence=1 - level if interval else None,
        p=p,
        p_permutation=permutation,
        p_corrected=corrected,
        detectable=(interval[1] - interval[0]) / 2 if interval else None,
        failed=claim.failed,
    )


def _balance(differences: Sequence[float] | Summary, margin: float) -> float:
    """The sum of differences from the margin; of their signs where one is infinite."""
    if isinstance(differences, Summary):
        return differences.mean - margin
    beyond = np.asarray(differences, float) - margin
    return float((beyond if np.isfinite(beyond).all() else np.sign(beyond)).sum())


def at_least(parts: Sequence[Verdict], k: int) -> Verdict:
    """Whether at least `k` of the parts hold.

    Held if k or more are held; not held if too many are not held for k to be possible; else undecided. The
    parts belong to the table's family, so this adds no further error. `n` is the smallest of the parts.
    """
    held, lost = (sum(part.word == word for part in parts) for word in ("held", "not held"))
    word: Word = "held" if held >= k else "not held" if lost > len(parts) - k else "undecided"
    failed = tuple(dict.fromkeys(name for part in parts for name in part.failed))
    return Verdict(word, min((part.n for part in parts), default=0), failed=failed)


def summarize(verdicts: Sequence[Verdict]) -> str:
    """`7 of 11 held, 1 not held, 3 undecided`."""
    held, lost, undecided = (
        sum(verdict.word == word for verdict in verdicts) for word in ("held", "not held", "undecided")
    )
    return f"{held} of {len(verdicts)} held, {lost} not held, {undecided} undecided"


# --- numbers of seeds -----------------------------------------------------------------------------


def mean_and_spread(numbers: Sequence[float] | Summary) -> tuple[float, float | None]:
    """Mean and sample standard deviation (None for a single number, or where one is infinite)."""
    if isinstance(numbers, Summary):
        return numbers.mean, numbers.spread
    mean = math.fsum(numbers) / len(numbers) if all(map(math.isfinite, numbers)) else sum(numbers)
    if len(numbers) < 2 or not math.isfinite(mean):
        return mean, None
    return mean, math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1))


def paired_differences(better: Mapping[int, float], worse: Mapping[int, float]) -> dict[int, float]:
    """better − worse for every seed that both have."""
    return paired_contrast([(1.0, better), (-1.0, worse)])


def paired_contrast(terms: Sequence[tuple[float, Mapping[int, float]]]) -> dict[int, float]:
    """Σ weight · number for every seed that all terms have.

    Numbers are infinite where a target was never reached. Two sides that both never reached it are equal: the
    contrast is 0.
    """
    used = [(weight, numbers) for weight, numbers in terms if weight]
    shared = set.intersection(*(set(numbers) for _, numbers in terms)) if terms else set()
    sums = {seed: sum(weight * numbers[seed] for weight, numbers in used) for seed in sorted(shared)}
    return {seed: 0.0 if math.isnan(value) else value for seed, value in sums.items()}


def trend_weights(xs: Sequence[float]) -> list[float]:
    """Weights whose contrast is the least-squares slope over the rank of x: the change per step of x.

    Ranks instead of x itself, because sweeps are often over decades and the claim is about the direction.
    """
    ranks = np.unique(np.asarray(xs, float), return_inverse=True)[1].astype(float)
    centered = ranks - ranks.mean()
    return [float(weight) for weight in centered / (centered**2).sum()]


# --- tests ----------------------------------------------------------------------------------------


def t_test(differences: Sequence[float] | Summary, margin: float = 0.0) -> float | None:
    """p of the two-sided paired t-test that the mean difference is the margin; None where it does not apply.

    Two seeds are enough, but with one degree of freedom |t| must exceed 12.7 for p < 0.05.
    """
    error = _standard_error(differences)
    if error is None:
        return None
    t = (mean_and_spread(differences)[0] - margin) / error.of_mean
    return float(2 * stdtr(error.degrees, -abs(t)))


def t_interval(
    differences: Sequence[float] | Summary, confidence: float = 1 - ALPHA
) -> tuple[float, float] | None:
    """Two-sided confidence interval of the mean difference; None where the t-test does not apply."""
    error = _standard_error(differences)
    if error is None:
        return None
    mean = mean_and_spread(differences)[0]
    half = float(-stdtrit(error.degrees, (1 - confidence) / 2)) * error.of_mean
    return mean - half, mean + half


class _Error(NamedTuple):
    of_mean: float
    degrees: int  # of freedom


def _standard_error(differences: Sequence[float] | Summary) -> _Error | None:
    """None with fewer than two differences, infinite ones, or equal ones.

    Equal differences occur with counts (rounds to a target) and say nothing about the spread: a t-test with
    a spread of zero would call any three equal differences significant.
    """
    if isinstance(differences, Summary):
        n, largest = differences.n, abs(differences.mean)
    else:
        n, largest = len(differences), max(map(abs, differences), default=0.0)
    if n < 2:
        return None
    _, spread = mean_and_spread(differences)
    if spread is None or spread <= 1e-12 * largest:
        return None
    return _Error(spread / math.sqrt(n), n - 1)


def sign_flip_test(differences: Sequence[float], margin: float = 0.0) -> float:
    """p of the two-sided permutation test that differences from the margin are symmetric around 0.

    The share of sign patterns whose |sum| is at least the observed one: of all 2^n up to 20 differences, of a
    fixed random sample beyond. Where a difference is infinite, signs alone count (the sign test).
    """
    beyond = np.asarray(differences, float) - margin
    if not np.isfinite(beyond).all():
        beyond = np.sign(beyond)
    tolerance = 1e-9 * float(np.abs(beyond).sum())
    observed = abs(float(beyond.sum())) - tolerance
    if len(beyond) > EXACT_UP_TO:
        signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(SAMPLED_PATTERNS, len(beyond)))
        extreme = int((np.abs(signs @ beyond) >= observed).sum())
        return (extreme + 1) / (SAMPLED_PATTERNS + 1)  # the observed pattern is one of them
    sums = np.zeros(1)
    for value in beyond:
        sums = np.concatenate([sums + value, sums - value])
    return float((np.abs(sums) >= observed).mean())


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-corrected p-values, in the given order: at most α for hypotheses rejected at level α."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(_ascending(p_values)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


def holm_levels(p_values: Sequence[float], alpha: float = ALPHA) -> list[float]:
    """The level at which Holm's procedure tests each hypothesis: p is at most this level exactly if rejected.

    The smallest p is tested at α/m, the next at α/(m − 1), and so on up to the first that is not rejected,
    whose level then holds for the rest.
    """
    levels, stopped = [alpha] * len(p_values), None
    for rank, place in enumerate(_ascending(p_values)):
        level = alpha / (len(p_values) - rank)
        if stopped is None and p_values[place] > level:
            stopped = level
        levels[place] = level if stopped is None else stopped
    return levels


def _ascending(p_values: Sequence[float]) -> list[int]:
    return sorted(range(len(p_values)), key=lambda place: p_values[place])
