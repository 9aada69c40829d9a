"""The store of the papers' results: docs/results/cells in a checkout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedssl.config import EXECUTION
from fedssl.config import load as load_config
from fedssl.errors import ConfigError, RunError
from fedssl.papers.files import recipe_files
from fedssl.papers.panels import panel_data
from fedssl.papers.recipe import Recipe, Scale, load, titles
from fedssl.tables.archive import Archive
from fedssl.tables.cells import TUNING_SEEDS, Cell, digest, portable, values_of
from fedssl.tables.runner import Outcome
from fedssl.tables.store import Place, Store
from fedssl.tables.table import Table

# Overrides that change how a cell is run, but not its result.
HOW = (*(f"{section}." for section in EXECUTION), "data.root", "device")


def open_archive(
    folder: str | Path | None,
    recipes: Sequence[Recipe],
    scale: Scale,
    first_seed: int,
    overrides: Mapping[str, Any],
    needed: bool,
) -> PapersArchive | None:
    """Open the store if it holds results of this kind: unchanged recipes at a real scale, no tuning seeds.

    Args:
        folder: its path; None: docs/results/cells in a checkout.
        recipes: the recipes to run; those of users are only stored if `folder` is given.
        scale: results at scale smoke are not stored, because it only shows that everything runs.
        first_seed: results of tuning seeds are not stored.
        overrides: results with settings that differ from the recipe's are not stored.
        needed: whether to raise an error if there is no store.
    """
    changed = [key for key in overrides if not key.startswith(HOW)]
    why = (
        "results at scale smoke are not stored"
        if scale == "smoke"
        else "results of tuning seeds are not stored"
        if first_seed >= TUNING_SEEDS
        else f"results with {changed[0]} changed are not stored"
        if changed
        else ""
    )
    where = Path(folder) if folder is not None else default_folder()
    foreign = [recipe.name for recipe in recipes if recipe.file != recipe_files().get(recipe.name)]
    if not why and folder is None and foreign:
        why = f"{foreign[0]} is not an included recipe; give a folder for its results with --store"
    if not why and where is None:
        why = "an installed package has no stored results; give their folder with --store"
    if needed and why:
        raise ConfigError(f"--stored: {why}")
    return None if why or where is None else PapersArchive(where)


def default_folder() -> Path | None:
    """Return docs/results/cells in a checkout, None in an installed package."""
    root = Path(__file__).parents[3]
    return root / "docs" / "results" / "cells" if (root / "recipes").is_dir() else None


class PapersArchive(Archive):
    """A store with a file per paper and scale; a result serves all recipes of its paper with its config."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Store(folder))

    def file(self, table: Table) -> str:
        return f"{paper_of(table.name)}-{table.scale}"

    def places(self, table: Table, cell: Cell) -> tuple[Place, ...]:
        own = super().places(table, cell)
        others = _served(paper_of(table.name), table.scale).get(digest(portable(cell.config)), ())
        return tuple(dict.fromkeys((*own, *others)))

    def panels(self, table: Table, outcome: Outcome) -> dict[str, Any]:
        """Return the picture data; pictures show the first seed only."""
        if outcome.cell.seed != 0 or table.figure is None:
            return {}
        try:
            return panel_data(table.figure.kind, outcome.path)
        except RunError:  # the run lacks the data for the picture
            return {}


def paper_of(recipe: str) -> str:
    """Return `fedema` for `fedema-table3`."""
    return recipe.partition("-")[0]


@cache
def _served(paper: str, scale: Scale) -> dict[str, tuple[Place, ...]]:
    """Return all cells of a paper's recipes at a scale, by hash of the config."""
    found: dict[str, tuple[Place, ...]] = {}
    for name in titles():
        recipe = load(name)
        if paper_of(name) == paper and scale in recipe.scales:
            table = recipe.at(scale)
            for row in table.rows:
                for column in table.columns:
                    try:
                        key = digest(portable(load_config(values_of(table, row, column))))
                    except ConfigError:  # needs a package that is not installed
                        continue
                    place = Place(table=name, scale=scale, row=row.name, column=column.name)
                    found[key] = (*found.get(key, ()), place)
    return found
