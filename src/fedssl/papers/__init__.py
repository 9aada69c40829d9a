"""`fedssl reproduce`: the tables and figures of the papers, run here and set beside the papers' numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssl.errors import ConfigError, RunError, did_you_mean
from fedssl.papers.recipe import SCALES, Recipe, Scale, load, titles

if TYPE_CHECKING:
    from rich.console import Console

    from fedssl.papers.cells import Cell
    from fedssl.papers.results import Results

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
    from rich.console import Console

    from fedssl.papers.cells import cells
    from fedssl.papers.results import Results

    recipes = _chosen(table, scale)
    at: Scale = next(each for each in SCALES if each == scale)
    selection = {key: names for key, names in (("rows", rows), ("columns", columns)) if names}
    if selection and table is None:
        raise ConfigError(f"--{next(iter(selection))} needs a table: fedssl reproduce TABLE …")
    # Everything is checked before anything runs.
    chosen = [recipe.select(at, **selection) for recipe in recipes]
    work = [(recipe, cells(recipe, at, seeds, overrides or {}, first_seed)) for recipe in chosen]
    console = Console(highlight=False, soft_wrap=True)
    if dry_run:
        _list(work, at, Path(out), console)
        return []
    results = []
    for recipe, planned in work:
        empty = Results(recipe, at, seeds, overrides or {}, [], first_seed, selection)
        results.append(_run(empty, planned, Path(out), console))
    failed = sum(len(each.failures) for each in results)
    if failed:
        names = ", ".join(each.recipe.name for each in results if each.failures)
        raise RunError(
            f"{failed} cells failed ({names}); the tables say why, and the same command tries them again"
        )
    return results


def _chosen(table: str | None, scale: str) -> list[Recipe]:
    if scale not in SCALES:
        raise ConfigError(f"unknown scale {scale!r}: {did_you_mean(scale, SCALES)}")
    if table is None:
        return [recipe for recipe in map(load, titles()) if scale in recipe.scales]
    recipe = load(table)
    if scale not in recipe.scales:
        raise ConfigError(f"{recipe.name} has no scale {scale}, only {', '.join(recipe.scales)}")
    return [recipe]


def _run(empty: Results, planned: list[Cell], out: Path, console: Console) -> Results:
    from fedssl.papers.runner import Outcome, run_cells
    from fedssl.papers.table import heading, orderings, table

    def written(outcomes: list[Outcome], final: bool = False) -> Results:
        results = replace(empty, outcomes=outcomes)
        _write(results, out, final)
        return results

    console.print(f"{empty.recipe.name}, scale {empty.scale}: {len(planned)} cells", markup=False)
    results = written(run_cells(planned, out / "runs", console, written), final=True)
    page = f"\n{heading(results)}\n\n{table(results)}\n\n{orderings(results)}".rstrip()
    console.print(f"{page}\n\nwrote {out / results.file_name}.md", markup=False)
    return results


def _write(results: Results, out: Path, final: bool) -> None:
    """After every run, so that a table that is stopped has what there is; the picture comes at the end."""
    from fedssl.papers.figure import draw
    from fedssl.papers.table import as_json, markdown
    from fedssl.storage import write_json, write_text

    name = results.file_name
    drawn = final and results.recipe.figure is not None and draw(results, out / f"{name}.png")
    text = markdown(results, f"{name}.png" if drawn else "")
    write_text(out / f"{name}.md", text)
    write_json(out / f"{name}.json", as_json(results))


def _list(work: list[tuple[Recipe, list[Cell]]], scale: Scale, out: Path, console: Console) -> None:
    from fedssl.papers.dryrun import DryRun

    listing = DryRun(out / "runs", console)
    for recipe, planned in work:
        listing.show(recipe, scale, planned)
    listing.summary()
