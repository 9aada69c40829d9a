"""Orderings of a recipe: which cells they compare, and how they are tested."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedssl.errors import ConfigError
from fedssl.papers.recipe import load
from fedssl.tables.orderings import comparisons, groups
from tests.tables.test_table import results_of

Write = Callable[..., Path]

TWO_BY_TWO = """
title = "t"
[[column]]
name = "x"
[[column]]
name = "y"
[[row]]
name = "a"
[[row]]
name = "b"
"""

SWEEP = """
title = "t"
[[row]]
name = "r = 1"
x = 1
paper = 10
[[row]]
name = "r = 10"
x = 10
paper = 14
[[row]]
name = "r = 100"
x = 100
paper = 12
[[row]]
name = "baseline"
[[ordering]]
monotone = "DIRECTION"
"""

EQUAL = {(row, column): [1.0, 2.0, 3.0] for row in "ab" for column in "xy"}


def test_orderings_become_pairs_of_cells_that_exist_at_the_scale(write: Write) -> None:
    text = """
title = "t"
[[column]]
name = "x"
[[column]]
name = "y"
scales = ["paper"]
[[row]]
name = "a"
[[row]]
name = "b"
[[row]]
name = "c"
scales = ["paper"]
[[ordering]]
better = "a"
worse = ["b", "c", "untrained", 12.5]
by = 2
[[ordering]]
better = "x"
worse = "y"
within = 0.5
rows = ["b"]
"""
    recipe = load(str(write(text)))
    smoke = comparisons(recipe.at("smoke"))
    assert [pair.text for pair in smoke] == ["a > b + 2", "a > untrained + 2", "a > 12.5 + 2"]
    assert [pair.margin for pair in smoke] == [2, 2, 2]
    _, (weight, untrained) = smoke[1].terms
    assert (weight, untrained.row, untrained.column, untrained.untrained) == (-1, "a", "x", True)
    assert smoke[2].terms[1][1].number == 12.5
    paper = comparisons(recipe.at("paper"))
    assert len(paper) == 2 * 4 + 1
    assert (paper[-1].text, paper[-1].where, paper[-1].margin) == ("x within 0.5 of y", "b", -0.5)
    assert [(place.row, place.column) for _, place in paper[-1].terms] == [("b", "x"), ("b", "y")]


def test_within_is_held_by_a_side_that_is_slightly_worse(write: Write) -> None:
    text = f'{TWO_BY_TWO}[[ordering]]\nbetter = "a"\nworse = "b"\nwithin = 1\n'
    numbers = {
        ("a", "x"): [49.8, 50.9, 51.7],  # worse by 0.2, 0.1, 0.3
        ("a", "y"): [47.0, 48.1, 48.9],  # worse by 3.0, 2.9, 3.1
        ("b", "x"): [50.0, 51.0, 52.0],
        ("b", "y"): [50.0, 51.0, 52.0],
    }
    judged = results_of(load(str(write(text))), numbers).orderings()
    assert [each.verdict.word for each in judged] == ["held", "not held"]


def test_at_least_k_of_n_is_one_claim(write: Write) -> None:
    text = f'{TWO_BY_TWO}[[ordering]]\nclaim = "mostly"\nbetter = "a"\nworse = "b"\nat_least = LEAST\n'
    numbers = {
        ("a", "x"): [60.0, 61.1, 61.9],
        ("a", "y"): [40.0, 41.1, 41.9],
        ("b", "x"): [50.0, 51.0, 52.0],
        ("b", "y"): [50.0, 51.0, 52.0],
    }
    results = results_of(load(str(write(text.replace("LEAST", "1")))), numbers)
    (judged,) = results.orderings()
    assert (judged.text, judged.verdict.word) == ("at least 1 of 2: a > b", "held")
    assert [part.verdict.word for part in judged.parts] == ["held", "not held"]
    assert judged.parts[0].verdict.confidence == pytest.approx(0.975)  # the parts are the family
    assert results.summary() == "1 of 1 held, 0 not held, 0 undecided"
    (both,) = results_of(load(str(write(text.replace("LEAST", "2")))), numbers).orderings()
    assert both.verdict.word == "not held"
    assert groups(load(str(write(text.replace("LEAST", "3")))).at("smoke")) == []


def test_a_trend_is_the_slope_per_step_of_x(write: Write) -> None:
    recipe = load(str(write(SWEEP.replace("DIRECTION", "up"))))
    (comparison,) = comparisons(recipe.at("smoke"))
    assert comparison.text == "rises from r = 1 to r = 100"
    numbers = {
        ("r = 1", "accuracy"): [10.0, 11.0, 12.0],
        ("r = 10", "accuracy"): [0.0, 90.0, 50.0],  # in the middle of three: without weight
        ("r = 100", "accuracy"): [14.0, 15.2, 15.8],  # slopes 2, 2.1, 1.9
        ("baseline", "accuracy"): [None, None, None],
    }
    (rising,) = results_of(recipe, numbers).orderings()
    assert (rising.verdict.word, rising.verdict.mean) == ("held", pytest.approx(2.0))
    assert (rising.paper, rising.contradicted) == (1.0, False)
    (falling,) = results_of(load(str(write(SWEEP.replace("DIRECTION", "down")))), numbers).orderings()
    assert (falling.verdict.word, falling.verdict.mean) == ("not held", pytest.approx(-2.0))
    assert falling.contradicted


def test_a_trend_over_columns_is_judged_in_every_row(write: Write) -> None:
    text = TWO_BY_TWO.replace('name = "x"', 'name = "x"\nx = 5').replace('name = "y"', 'name = "y"\nx = 1')
    recipe = load(str(write(f'{text}[[ordering]]\nmonotone = "up"\nrows = ["b"]\n')))
    found = comparisons(recipe.at("smoke"))
    assert [(each.where, each.text) for each in found] == [("b", "rises from y to x")]
    assert [(weight, place.column) for weight, place in found[0].terms] == [(1.0, "x"), (-1.0, "y")]


@pytest.mark.parametrize(
    ("ordering", "problem"),
    [
        ('better = "a"\n', "set better and worse, or monotone"),
        ('monotone = "up"\n', "monotone needs `x`"),
        ('monotone = "up"\nbetter = "a"\n', "monotone cannot be combined with better"),
        ('better = "a"\nworse = "b"\nwithin = 1\nby = 2\n', "within does not go with by"),
        ('better = "a"\nworse = "b"\nrelation = ">="\n', "relation"),
        ('better = "a"\nworse = "b"\nat_least = 0\n', "at_least"),
    ],
)
def test_incomplete_and_contradictory_orderings_are_errors(write: Write, ordering: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load(str(write(f"{TWO_BY_TWO}[[ordering]]\n{ordering}")))


def test_a_claim_that_the_papers_numbers_contradict(write: Write) -> None:
    text = TWO_BY_TWO.replace('name = "a"', 'name = "a"\npaper = { x = 70, y = 60 }')
    text = text.replace('name = "b"', 'name = "b"\npaper = { x = 71, y = 59 }')
    recipe = load(str(write(f'{text}[[ordering]]\nbetter = "a"\nworse = "b"\n')))
    judged = results_of(recipe, EQUAL).orderings()
    assert [(each.paper, each.contradicted) for each in judged] == [(-1.0, True), (1.0, False)]


def test_a_number_that_is_nan_counts_as_failed(write: Write) -> None:
    recipe = load(str(write(f'{TWO_BY_TWO}[[ordering]]\nbetter = "a"\nworse = "b"\ncolumns = ["x"]\n')))
    (judged,) = results_of(recipe, EQUAL | {("a", "x"): [1.0, float("nan"), 3.0]}).orderings()
    assert (judged.verdict.n, judged.verdict.failed) == (2, ("a · x · seed 1",))
