"""`fedssl reproduce`: runs tables and figures of the papers and compares them with the papers' numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssl.errors import ConfigError, did_you_mean
from fedssl.papers.recipe import SCALES, Recipe, Scale, load, titles

if TYPE_CHECKING:
    from rich.console import Console

    from fedssl.tables.campaign import Campaign
    from fedssl.tables.results import Results
    from fedssl.tables.table import Table

__all__ = ["reproduce"]


def reproduce(
    *tables: str,
    scale: str = "smoke",
    seeds: int | None = None,
    first_seed: int = 0,
    rows: str = "",
    columns: str = "",
    jobs: int = 1,
    stored: bool = False,
    dry_run: bool = False,
    out: str | Path = "runs/reproduce",
    store: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> list[Results]:
    """Run the missing cells of recipes, and write OUT/RECIPE-SCALE.md, .json and .png.

    Args:
        tables: the recipes; empty: all that have the scale, or with `stored`, all with results at it.
        scale: smoke, mini, midi or paper.
        seeds: number of seeds; None: three, or with `stored`, all that are stored.
        first_seed: the first seed; from 1000 on, the results are labeled as tuning.
        rows: names of the rows to run, separated by commas; empty: all.
        columns: names of the columns to run, separated by commas; empty: all.
        jobs: cells to run at once, each in a process with one thread; 1: one by one, in this process.
        stored: take everything from the store, without training.
        dry_run: list what would run, without running it.
        out: the folder for tables and runs.
        store: the folder of stored results. None: docs/results/cells in a checkout.
        overrides: config keys for all cells.

    Returns:
        The results of each recipe.
    """
    at, given = _scale(scale), overrides or {}
    recipes = _chosen(tables, at)

    from rich.console import Console

    from fedssl.papers.archive import open_archive
    from fedssl.papers.panels import draw
    from fedssl.tables.campaign import Campaign

    archive = open_archive(store, recipes, at, first_seed, given, needed=stored)
    chosen = [recipe.at(at) for recipe in recipes]
    count = 3 if seeds is None else seeds
    campaign = Campaign(chosen, count, first_seed, given, rows, columns, Path(out), jobs, archive, draw)
    console = Console(highlight=False, soft_wrap=True)
    if stored and archive is not None:
        if not tables:
            known = archive.store.tables()
            chosen = [table for table in chosen if (table.name, table.scale) in known]
        return [results for table in chosen for results in _show(campaign, table, seeds, console)]
    if dry_run:
        campaign.estimate(console)
        return []
    return campaign.run(console)


def _show(campaign: Campaign, table: Table, seeds: int | None, console: Console) -> list[Results]:
    """Show one table from the store, with all stored seeds unless their number is given."""
    archive = campaign.archive
    first, count = (campaign.first_seed, campaign.seeds)
    if seeds is None and archive is not None:
        first, count = archive.range_of_seeds([table])
    return replace(campaign, tables=[table], first_seed=first, seeds=count).show(console)


def _scale(name: str) -> Scale:
    for scale in SCALES:
        if scale == name:
            return scale
    raise ConfigError(f"unknown scale {name!r}: {did_you_mean(name, SCALES)}")


def _chosen(names: Sequence[str], scale: Scale) -> list[Recipe]:
    if not names:
        return [recipe for recipe in map(load, titles()) if scale in recipe.scales]
    recipes = [load(name) for name in names]
    for recipe in recipes:
        if scale not in recipe.scales:
            raise ConfigError(f"{recipe.name} has no scale {scale}, only {', '.join(recipe.scales)}")
    return recipes
