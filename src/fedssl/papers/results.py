"""What came out: the numbers of a table by row, column and seed, and how the paper's orderings fared."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedssl.papers.recipe import Comparison, Measure, Place, Recipe, Scale, comparisons
from fedssl.papers.runner import Outcome
from fedssl.papers.verdict import Verdict, judge


@dataclass(frozen=True)
class Judged:
    """A claimed ordering, what the paper has, and what was found."""

    comparison: Comparison
    paper: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Results:
    """The outcomes of a recipe at one scale."""

    recipe: Recipe
    scale: Scale
    seeds: int
    overrides: Mapping[str, Any]
    outcomes: Sequence[Outcome]

    @property
    def rows(self) -> list[str]:
        return [row.name for row in self.recipe.rows_at(self.scale)]

    @property
    def columns(self) -> list[str]:
        return [column.name for column in self.recipe.columns_at(self.scale)]

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.error]

    def at(self, row: str, column: str) -> list[Outcome]:
        """The outcomes of a cell, seed by seed."""
        return [
            outcome for outcome in self.outcomes if (outcome.cell.row, outcome.cell.column) == (row, column)
        ]

    def numbers(self, row: str, column: str) -> dict[int, float]:
        return {o.cell.seed: o.number for o in self.at(row, column) if o.number is not None}

    def untrained(self, row: str, column: str) -> dict[int, float]:
        return {o.cell.seed: o.untrained for o in self.at(row, column) if o.untrained is not None}

    def measure(self, row: str, column: str) -> Measure:
        columns = {each.name: each for each in self.recipe.columns}
        return self.recipe.measure_of(self.recipe.row(row), columns[column])

    def orderings(self) -> list[Judged]:
        return [self._judge(comparison) for comparison in comparisons(self.recipe, self.scale)]

    def _judge(self, comparison: Comparison) -> Judged:
        # The difference is what is better by: fewer rounds, more accuracy.
        sign = -1 if comparison.fewer else 1
        better, worse = self._seeds(comparison.better), self._seeds(comparison.worse)
        differences = [sign * (better[seed] - worse[seed]) for seed in sorted(better.keys() & worse.keys())]
        paper = [self._paper(place) for place in (comparison.better, comparison.worse)]
        gap = None if None in paper else sign * (paper[0] - paper[1])  # type: ignore[operator]
        return Judged(comparison, gap, judge(differences, comparison.relation, comparison.by))

    def _seeds(self, place: Place) -> dict[int, float]:
        if place.number is not None:
            return dict.fromkeys(range(self.seeds), place.number)
        found = (self.untrained if place.untrained else self.numbers)(place.row, place.column)
        if not place.over:
            return found
        under = self.numbers(place.over, place.column)
        return {seed: found[seed] - under[seed] for seed in found.keys() & under.keys()}

    def _paper(self, place: Place) -> float | None:
        if place.number is not None or place.untrained:
            return place.number
        known = self.recipe.row(place.row).paper.get(place.column)
        under = self.recipe.row(place.over).paper.get(place.column) if place.over else (0.0,)
        return known[0] - under[0] if known and under else None


def mean_and_spread(numbers: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (none of a single number, or where one is infinite)."""
    mean = sum(numbers) / len(numbers)
    several = len(numbers) > 1 and math.isfinite(mean)
    return mean, statistics.stdev(numbers) if several else None
