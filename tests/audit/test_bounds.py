"""Bounds on ε and intervals, compared with numbers worked out by hand and with other libraries."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest
from sklearn.metrics import roc_auc_score

from fedssl.audit.bounds import (
    area_under_curve,
    auc_interval,
    chance_of_guesses,
    epsilon_estimate,
    epsilon_lower_bound,
    epsilon_of_guesses,
    epsilon_of_separation,
    found_at,
    most_found,
)
from fedssl.privacy.accountant import epsilon


def test_ten_of_ten_right_guesses() -> None:
    """With δ = 0: p^10 = 0.05 for p = 0.7411, and ln(p / (1 − p)) = 1.0516."""
    assert epsilon_of_guesses(10, 10, 10, 0.0, 0.05) == pytest.approx(1.0516, abs=2e-3)
    assert epsilon_of_guesses(5, 10, 10, 0.0, 0.05) == 0


def test_guesses_are_coin_tosses_if_delta_is_zero() -> None:
    share = math.exp(0.7) / (1 + math.exp(0.7))
    assert chance_of_guesses(15, 20, 20, 0.7, 0.0) == pytest.approx(binom.sf(14, 20, share))


def test_the_cost_of_delta_follows_the_theorem() -> None:
    """α = max over i of P[right − i ≤ W < right] / i, times 2·m·δ, with plain loops."""
    right, guesses, canaries, eps, delta = 8, 10, 30, 0.5, 1e-3
    share = math.exp(eps) / (1 + math.exp(eps))
    chances = [math.comb(guesses, k) * share**k * (1 - share) ** (guesses - k) for k in range(guesses + 1)]
    alpha = max(sum(chances[right - i : right]) / i for i in range(1, right + 1))
    expected = sum(chances[right:]) + 2 * canaries * delta * alpha
    assert chance_of_guesses(right, guesses, canaries, eps, delta) == pytest.approx(expected)


def test_randomized_response_rarely_exceeds_its_epsilon() -> None:
    """Scores that tell the truth with probability e / (1 + e) are 1-DP: at most 5 % of bounds exceed 1."""
    rng = np.random.default_rng(0)
    truthful, above = math.e / (1 + math.e), 0
    for _ in range(300):
        took_part = rng.random(60) < 0.5
        told = np.where(rng.random(60) < truthful, took_part, ~took_part) + 1e-6 * rng.random(60)
        above += epsilon_lower_bound(told[took_part], told[~took_part], 0.0) > 1
    assert above <= 15


def test_more_canaries_give_larger_bounds() -> None:
    few, many = (epsilon_lower_bound(np.ones(n), np.zeros(n), 1e-5) for n in (10, 100))
    assert 0 < few < many < 6
    assert epsilon_lower_bound(np.zeros(50), np.ones(50), 1e-5) == 0  # an attacker who is always wrong


@pytest.mark.parametrize(("separation", "delta"), [(0.5, 1e-5), (2.0, 1e-3), (5.0, 1e-6)])
def test_separated_normals_are_the_gaussian_mechanism(separation: float, delta: float) -> None:
    assert epsilon_of_separation(separation, delta) == pytest.approx(
        epsilon(1.0, 1 / separation, 1, delta), rel=0.01
    )


def test_no_separation_gives_epsilon_zero() -> None:
    assert epsilon_of_separation(0.0, 1e-5) == epsilon_of_separation(-3.0, 1e-5) == 0


def test_the_estimate_covers_the_truth() -> None:
    rng = np.random.default_rng(1)
    found = epsilon_estimate(rng.normal(1, 1, 400), rng.normal(0, 1, 400), 1e-3, seed=0)
    assert found.low < epsilon_of_separation(1.0, 1e-3) < found.high
    assert found.low < found.value < found.high


def test_the_area_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(2)
    members, others = rng.integers(0, 9, 80) / 2, rng.integers(0, 8, 70) / 2  # with ties
    truth = np.concatenate([np.ones(80), np.zeros(70)])
    expected = roc_auc_score(truth, np.concatenate([members, others]))
    assert area_under_curve(members, others) == pytest.approx(expected)
    interval = auc_interval(members, others, seed=0)
    assert interval.low < interval.value < interval.high


def test_members_found_at_few_false_alarms() -> None:
    others = np.arange(100.0)
    members = np.concatenate([np.full(30, 200.0), np.full(70, 50.0)])
    found = found_at(members, others, 0.01)  # one false alarm: the threshold is 98
    interval = binomtest(30, 100).proportion_ci(method="exact")
    assert found.value == 0.3
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found_at(members, others, 0.6).value == 1.0
    assert found_at(np.zeros(5), others, 0.01).low == 0


def test_the_limit_of_a_guarantee() -> None:
    assert most_found(0.1, 0.0, 0.0) == pytest.approx(0.1)  # ε = 0: guessing
    assert most_found(0.01, 1.0, 0.0) == pytest.approx(math.e * 0.01)
    assert most_found(0.5, 1.0, 0.0) == pytest.approx(1 - 0.5 / math.e)  # limited by what is missed
    assert most_found(0.01, math.inf, 1e-5) == 1.0
