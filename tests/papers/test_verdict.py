from __future__ import annotations

import pytest
from scipy import stats

from fedssl.papers.verdict import judge


def test_three_seeds_that_agree_decide() -> None:
    verdict = judge([1.0, 2.0, 3.0])
    assert (verdict.word, verdict.mean, verdict.spread) == ("held", 2.0, 1.0)
    assert verdict.p == pytest.approx(0.0742, abs=1e-4)  # t = 2 / (1/√3) = 3.464, 2 degrees of freedom
    assert judge([-1.0, -2.0, -3.0]).word == "not held"


def test_three_seeds_that_do_not_agree_leave_it_open() -> None:
    assert judge([1.0, 2.0, -0.1]).word == "undecided"
    assert judge([-1.0, -2.0, 0.1]).word == "undecided"


def test_one_dissenter_of_four_keeps_it_open_but_not_of_five() -> None:
    # With one sign against, t is at most 3 for four differences (p = 0.058), and 4 for five (p = 0.016).
    assert judge([1, 1, 1, -1e-6]).word == "undecided"
    five = judge([1, 1, 1, 1, -1e-6])
    assert five.word == "held"
    assert five.p == pytest.approx(stats.ttest_rel([2, 2, 2, 2, 2], [1, 1, 1, 1, 2 + 1e-6]).pvalue)
    assert judge([-1, -1, -1, -1, 1e-6]).word == "not held"


def test_one_seed_decides_nothing() -> None:
    verdict = judge([5.0])
    assert (verdict.word, verdict.mean, verdict.spread, verdict.p) == (
        "undecided (one seed)",
        5.0,
        None,
        None,
    )
    assert judge([]).word == "no numbers"


def test_ties_are_enough_for_at_least_and_not_for_more() -> None:
    assert judge([0.0, 0.0], ">=").word == "held"
    assert judge([0.0, 0.0], ">").word == "not held"
    assert judge([0.0, 1.0], ">=").word == "held"
    assert judge([0.0, 1.0], ">").word == "undecided"
    assert judge([0.0, -1.0], ">=").word == "undecided"


def test_a_margin_has_to_be_exceeded() -> None:
    assert judge([1.0, 2.0, 3.0], by=0.5).word == "held"
    assert judge([1.0, 2.0, 3.0], by=1.5).word == "undecided"
    assert judge([1.0, 2.0, 3.0], by=4).word == "not held"
    assert judge([-1.0, -0.5], by=-2).word == "held"
    assert judge([1.0, 2.0, 3.0], by=4).mean == 2.0  # what is shown is the difference itself


def test_a_target_that_only_one_side_reached_counts() -> None:
    infinite = float("inf")
    verdict = judge([infinite, infinite])
    assert (verdict.word, verdict.spread, verdict.p) == ("held", None, None)
    assert judge([float("nan"), float("nan")], ">=").word == "held"  # neither side reached it: a tie
    assert judge([infinite, -infinite]).word == "undecided"
