"""`fedssl reproduce`: the tables and figures of the papers, run here and set beside the papers' numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssl.errors import ConfigError, did_you_mean
from fedssl.papers.recipe import SCALES, Recipe, Scale, load, titles

if TYPE_CHECKING:
    from fedssl.tables.results import Results

__all__ = ["reproduce"]


def reproduce(
    table: str | None = None,
    *,
    scale: str = "smoke",
    seeds: int = 3,
    first_seed: int = 0,
    rows: str = "",
    columns: str = "",
    dry_run: bool = False,
    out: str | Path = "runs/reproduce",
    overrides: Mapping[str, Any] | None = None,
) -> list[Results]:
    """Run what is missing of a recipe, and write OUT/RECIPE-SCALE.md, .json and .png.

    Args:
        table: the recipe; None: all of them.
        scale: smoke, mini, midi or paper.
        seeds: how many seeds.
        first_seed: the first of them; from 1000 on, the results are labelled as tuning.
        rows: names of the rows to run, separated by commas; empty: all.
        columns: the same for columns.
        dry_run: list what would run, and run nothing.
        out: the folder for tables and runs.
        overrides: keys of the config that hold for every cell.

    Returns:
        The results of each recipe.
    """
    at = _scale(scale)
    tables = [recipe.at(at) for recipe in _chosen(table, at)]

    from rich.console import Console

    from fedssl.papers.panels import draw
    from fedssl.tables.campaign import Campaign

    campaign = Campaign(tables, seeds, first_seed, overrides, rows, columns, Path(out), draw)
    console = Console(highlight=False, soft_wrap=True)
    if dry_run:
        campaign.show_plan(console)
        return []
    return campaign.run(console)


def _scale(name: str) -> Scale:
    for scale in SCALES:
        if scale == name:
            return scale
    raise ConfigError(f"unknown scale {name!r}: {did_you_mean(name, SCALES)}")


def _chosen(name: str | None, scale: Scale) -> list[Recipe]:
    if name is None:
        return [recipe for recipe in map(load, titles()) if scale in recipe.scales]
    recipe = load(name)
    if scale not in recipe.scales:
        raise ConfigError(f"{recipe.name} has no scale {scale}, only {', '.join(recipe.scales)}")
    return [recipe]
