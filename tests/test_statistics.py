"""Tests and intervals against scipy, Holm's correction by hand, and simulated rates of false verdicts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedssl.statistics import (
    Claim,
    Verdict,
    at_least,
    check_claims,
    holm,
    holm_levels,
    mean_and_spread,
    paired_contrast,
    paired_differences,
    sign_flip_test,
    summarize,
    t_interval,
    t_test,
    trend_weights,
)

INFINITE = float("inf")


def judge(differences, margin=0.0) -> Verdict:
    (verdict,) = check_claims([Claim(differences, margin)])
    return verdict


# --- the pieces -----------------------------------------------------------------------------------


def test_mean_and_spread():
    assert mean_and_spread([1.0, 2.0, 3.0]) == (2.0, 1.0)
    assert mean_and_spread([5.0]) == (5.0, None)
    assert mean_and_spread([1.0, INFINITE]) == (INFINITE, None)


def test_differences_are_paired_over_shared_seeds():
    assert paired_differences({0: 5.0, 1: 6.0, 2: 7.0}, {1: 4.0, 2: 9.0, 3: 0.0}) == {1: 2.0, 2: -2.0}
    assert paired_differences({0: INFINITE}, {0: INFINITE}) == {0: 0.0}  # neither reached the target
    assert paired_differences({0: INFINITE}, {0: 3.0}) == {0: INFINITE}
    assert paired_contrast([]) == {}


def test_the_trend_is_the_least_squares_slope_over_ranks():
    numbers = [3.0, 1.0, 4.0, 1.5]
    xs = [0.01, 1000.0, 0.1, 5.0]  # ranks 0, 3, 1, 2
    slope = paired_contrast(
        [(weight, {7: number}) for weight, number in zip(trend_weights(xs), numbers, strict=True)]
    )
    assert slope[7] == pytest.approx(stats.linregress([0, 3, 1, 2], numbers).slope)
    assert trend_weights([1.0, 2.0, 3.0]) == [-0.5, 0.0, 0.5]  # the middle one does not matter
    assert paired_contrast([(0.0, {0: INFINITE}), (1.0, {0: 2.0})]) == {0: 2.0}


@pytest.mark.parametrize("margin", [0.0, 0.7, -1.5])
@pytest.mark.parametrize("n", [2, 3, 6, 9])
def test_t_test_and_interval_are_those_of_scipy(n, margin):
    rng = np.random.default_rng(n)
    better, worse = rng.normal(1, 1, n), rng.normal(0, 1, n)
    differences = list(better - worse)
    assert t_test(differences, margin) == pytest.approx(stats.ttest_rel(better, worse + margin).pvalue)
    interval = stats.ttest_rel(better, worse).confidence_interval(0.99)
    assert t_interval(differences, 0.99) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("margin", [0.0, 0.4])
@pytest.mark.parametrize("n", [5, 6, 8])
def test_sign_flips_are_those_of_scipy(n, margin):
    differences = np.random.default_rng(n).normal(0.6, 1, n)
    exact = stats.permutation_test(
        (differences - margin,), np.mean, permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip_test(differences, margin) == pytest.approx(exact.pvalue)


def test_sign_flips_by_hand():
    # Of 16 patterns of ±1 ±2 ±3 ±4, |sum| ≥ 8 for 10 (+ + + +), 8 (− + + +) and their mirror images.
    assert sign_flip_test([-1.0, 2.0, 3.0, 4.0]) == 4 / 16
    assert sign_flip_test([1.0] * 6) == 2 / 64
    assert sign_flip_test([INFINITE] * 5 + [-1.0]) == sign_flip_test([1.0] * 5 + [-1.0]) == 14 / 64


def test_many_seeds_are_sampled():
    differences = np.random.default_rng(0).normal(0.45, 1, 24)
    sampled = sign_flip_test(differences)
    assert sampled == sign_flip_test(differences)
    # Of 24 values the t-test is close to the permutation test.
    assert sampled == pytest.approx(t_test(differences), abs=0.01)


def test_holm_by_hand():
    # Sorted 0.01 × 4 = 0.04; 0.02 × 3 = 0.06; 0.03 × 2 = 0.06; 0.04 × 1 = 0.04, but never decreasing.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


def test_levels_of_holm_by_hand():
    # 0.01 ≤ 0.05/4 is rejected; 0.02 > 0.05/3 stops the procedure, and all others keep its level.
    assert holm_levels([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.05 / 3, 0.05 / 4, 0.05 / 3, 0.05 / 3])
    assert holm_levels([0.001, 0.002]) == pytest.approx([0.025, 0.05])


# --- verdicts -------------------------------------------------------------------------------------


def test_three_seeds_that_agree_need_not_decide():
    verdict = judge([1.0, 2.0, 3.0])
    assert (verdict.word, verdict.n, verdict.mean, verdict.spread) == ("undecided", 3, 2.0, 1.0)
    assert verdict.p == pytest.approx(0.0742, abs=1e-4)  # t = 2 / (1/√3) = 3.464, 2 degrees of freedom
    # 4.303 is the 97.5 % quantile of t with 2 degrees of freedom.
    assert verdict.detectable == pytest.approx(4.3027 / 3**0.5, abs=1e-4)
    assert (verdict.low, verdict.high) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-4)
    assert verdict.confidence == pytest.approx(0.95)
    assert verdict.p_permutation is None


def test_a_clear_difference_decides_in_both_directions():
    assert judge([2.0, 2.2, 1.8]).word == "held"
    assert judge([-2.0, -2.2, -1.8]).word == "not held"
    assert judge([2.0, 2.2, 1.8], margin=3.0).word == "not held"
    assert judge([2.0, 2.2, 1.8], margin=3.0).mean == pytest.approx(2.0)  # the difference itself is shown


def test_within_a_margin():
    slightly_worse = [-0.2, -0.1, -0.3]
    assert judge(slightly_worse, margin=-1.0).word == "held"
    assert judge(slightly_worse, margin=-0.22).word == "undecided"
    assert judge([-2.0, -2.2, -1.8], margin=-1.0).word == "not held"


def test_one_seed_decides_nothing_and_two_need_a_t_of_12_7():
    one = judge([50.0])
    assert (one.word, one.n, one.mean, one.p, one.low, one.detectable) == (
        "undecided",
        1,
        50.0,
        None,
        None,
        None,
    )
    assert judge([]) == Verdict("undecided", 0)
    # t = mean / (half the distance): 10 and 13.
    assert judge([9.0, 11.0]).word == "undecided"
    assert judge([12.0, 14.0]).word == "held"


def test_the_permutation_test_has_to_agree_where_it_can():
    five = judge([1.0, 1.1, 0.9, 1.2, 1.0])
    assert (five.word, five.p_permutation) == ("held", 2 / 32)  # no pattern of five is rarer
    six = judge([1.0, 1.1, 0.9, 1.2, 1.0, 1.1])
    assert (six.word, six.p_permutation) == ("held", 2 / 64)
    # One seed of six at the margin: flipping it changes nothing, so that 4 of 64 patterns are as extreme.
    tied = judge([1.0, 1.1, 0.9, 1.2, 1.0, 0.0])
    assert tied.p is not None
    assert tied.p < 0.05
    assert (tied.word, tied.p_permutation) == ("undecided", 4 / 64)


def test_equal_differences_are_left_to_the_permutation_test():
    three = judge([2.0, 2.0, 2.0])
    assert (three.word, three.p, three.low, three.detectable) == ("undecided", None, None, None)
    six = judge([2.0] * 6)
    assert (six.word, six.p, six.p_corrected) == ("held", None, 2 / 64)
    assert judge([60.1 - 50.1, 60.2 - 50.2, 60.3 - 50.3]).p is None  # equal but for rounding
    assert judge([0.0] * 6).word == "undecided"


def test_a_target_that_only_one_side_reached():
    assert judge([INFINITE] * 3).word == "undecided"
    assert judge([INFINITE] * 6).word == "held"
    assert judge([-INFINITE] * 5 + [-3.0]).word == "not held"
    mixed = judge([INFINITE] * 3 + [-INFINITE] * 3)
    assert mixed.word == "undecided"
    assert math.isnan(mixed.mean)


def test_a_family_needs_more_than_a_single_claim():
    clear = Claim([2.0, 2.3, 1.7])
    alone = check_claims([clear])[0]
    assert alone.word == "held"
    assert alone.p == pytest.approx(0.0074, abs=1e-4)
    among = check_claims([clear, *[Claim([1.0, -1.0, 0.3])] * 10])[0]
    assert (among.word, among.p) == ("undecided", alone.p)
    assert among.p_corrected == pytest.approx(11 * alone.p)
    assert among.confidence == pytest.approx(1 - 0.05 / 11)
    # A claim without numbers yet counts too: the verdict must not change when they arrive.
    assert check_claims([clear, *[Claim([])] * 10])[0] == among


@pytest.mark.parametrize("n", [3, 6])
def test_the_interval_excludes_the_margin_exactly_if_the_corrected_p_says_so(n):
    rng = np.random.default_rng(5)
    excluded = 0
    for _ in range(200):
        claims = [Claim(rng.normal(effect, 0.5, n), margin=0.3) for effect in (0, 0.3, 2, 3, 6)]
        for verdict in check_claims(claims):
            outside = not verdict.low <= 0.3 <= verdict.high
            assert outside == (verdict.p_corrected <= 0.05)
            excluded += outside
    assert 200 < excluded < 800


def test_at_least_k_of_n():
    held, lost, open_ = (Verdict(word, n) for word, n in (("held", 3), ("not held", 2), ("undecided", 3)))
    assert at_least([held, held, lost], 2).word == "held"
    assert at_least([held, lost, lost], 2).word == "not held"
    assert at_least([held, open_, lost], 2).word == "undecided"
    assert at_least([held, open_, lost], 2).n == 2
    failed = Verdict("held", 2, failed=("a · seed 1",))
    assert at_least([failed, failed, held], 2).failed == ("a · seed 1",)


def test_failed_runs_are_named():
    (verdict,) = check_claims([Claim([1.0, 2.0], failed=("BYOL · iid · seed 2",))])
    assert (verdict.n, verdict.failed) == (2, ("BYOL · iid · seed 2",))


def test_one_line_sums_it_up():
    words = ["held"] * 7 + ["not held"] + ["undecided"] * 3
    assert summarize([Verdict(word, 3) for word in words]) == "7 of 11 held, 1 not held, 3 undecided"


# --- false verdicts under the null ----------------------------------------------------------------

REPEATS = 2000
# Three standard errors of a rate of 5 % (2.5 %), since a single t-test is exact: its rate is 5 %, not less.
SLACK = {rate: 3 * math.sqrt(rate * (1 - rate) / REPEATS) for rate in (0.05, 0.025)}


def false_verdicts(families) -> dict[str, float]:
    """The share of families with at least one verdict of each kind, and of any kind."""
    words = [{verdict.word for verdict in check_claims(family)} for family in families]
    rates = {word: sum(word in found for found in words) / len(words) for word in ("held", "not held")}
    return rates | {"any": sum(found != {"undecided"} for found in words) / len(words)}


@pytest.mark.parametrize("n", [3, 6])
@pytest.mark.parametrize("size", [1, 5, 11])
def test_no_more_than_5_percent_of_tables_have_a_false_verdict(n, size):
    rng = np.random.default_rng(1000 * n + size)
    draws = rng.normal(0.4, 1.3, (REPEATS, size, n))  # the margin is true: neither verdict is right
    rates = false_verdicts([[Claim(list(row), margin=0.4) for row in family] for family in draws])
    assert rates["any"] <= 0.05 + SLACK[0.05]
    assert max(rates["held"], rates["not held"]) <= 0.025 + SLACK[0.025]
    assert rates["any"] > 0.01  # the simulation can tell: some verdicts are false


def test_claims_that_share_a_baseline_have_no_more_false_verdicts():
    rng = np.random.default_rng(7)
    rows, baseline = rng.normal(0, 1, (REPEATS, 5, 3)), rng.normal(0, 1, (REPEATS, 1, 3))
    rates = false_verdicts([[Claim(list(row)) for row in family] for family in rows - baseline])
    assert rates["any"] <= 0.05 + SLACK[0.05]


@pytest.mark.parametrize("n", [2, 3, 4, 6])
def test_counts_that_are_often_equal_have_no_more_false_verdicts(n):
    rng = np.random.default_rng(n)
    draws = rng.integers(-1, 2, (REPEATS, 1, n)).astype(float)
    rates = false_verdicts([[Claim(list(row)) for row in family] for family in draws])
    assert rates["any"] <= 0.05 + SLACK[0.05]


def test_trends_have_no_more_false_verdicts():
    rng = np.random.default_rng(3)
    weights = trend_weights([1, 10, 100, 1000])
    draws = rng.normal(50, 2, (REPEATS, 4, 3))
    families = [[Claim(list(np.asarray(weights) @ numbers))] for numbers in draws]
    assert false_verdicts(families)["any"] <= 0.05 + SLACK[0.05]


def test_at_least_k_of_n_has_no_more_false_verdicts():
    rng = np.random.default_rng(4)
    false = 0
    for _ in range(REPEATS):
        effects = (5.0, 0.0, 0.0)  # one of three is true, so that "at least 2" is false
        parts = check_claims([Claim(list(rng.normal(effect, 1, 6))) for effect in effects])
        false += at_least(parts, 2).word == "held"
    assert false / REPEATS <= 0.05 + SLACK[0.05]
