"""A few runs that exercise everything in the recipes.

The recipes have some 500 different runs at scale smoke, most of which differ in a number only. `cover`
chooses runs such that each value of each key, each measurement, and each pair among objective, method and
rule is there at least once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import combinations

from fedssl.config import flatten
from fedssl.papers.recipe import load, titles
from fedssl.tables.cells import Cell, cells


def all_cells() -> list[Cell]:
    """Every cell of every recipe at scale smoke."""
    recipes = [recipe for recipe in map(load, titles()) if "smoke" in recipe.scales]
    return [cell for recipe in recipes for cell in cells(recipe.at("smoke"), 1, {})]


def features(cell: Cell) -> Iterator[Hashable]:
    """The features that a run of the cell exercises. Numbers are classified as 0, 1, a fraction, or more."""
    for key, value in flatten(cell.config.to_dict()):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        kind = "more" if number and value > 1 else "fraction" if number and 0 < value < 1 else str(value)
        yield key, kind
    config, measure = cell.config, cell.measure
    yield from combinations((config.objective.name, config.method.name, config.aggregation.name), 2)
    options = tuple(sorted(measure.config))
    yield measure.kind, measure.what, measure.number.split(".")[0], options, bool(measure.style)


def cover(all_cells: Iterable[Cell]) -> list[list[Cell]]:
    """Runs, each with its cells, which together have all features: greedily, the richest first."""
    runs: dict[str, list[Cell]] = {}
    for cell in all_cells:
        runs.setdefault(cell.folder, []).append(cell)
    rich = {folder: {feature for cell in run for feature in features(cell)} for folder, run in runs.items()}
    chosen, missing = [], set().union(*rich.values())
    while missing:
        folder = max(rich, key=lambda folder: len(rich[folder] & missing))
        missing -= rich.pop(folder)
        chosen.append(runs[folder])
    return chosen
