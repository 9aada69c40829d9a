"""`fedssl reproduce`: the tables and figures of the papers, run here and set beside the papers' numbers."""

from __future__ import annotations

from collections.abc import Mapping
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
    dry_run: bool = False,
    out: str | Path = "runs/reproduce",
    overrides: Mapping[str, Any] | None = None,
) -> list[Results]:
    """Run what is missing of a recipe (none: of all), and write OUT/RECIPE-SCALE.md, .json and .png."""
    from rich.console import Console

    from fedssl.papers.cells import cells

    recipes = _chosen(table, scale)
    at: Scale = next(each for each in SCALES if each == scale)
    # Everything is checked before anything runs.
    work = [(recipe, cells(recipe, at, seeds, overrides or {})) for recipe in recipes]
    console = Console(highlight=False, soft_wrap=True)
    if dry_run:
        _list(work, at, Path(out), console)
        return []
    results = [
        _run(recipe, at, planned, seeds, overrides or {}, Path(out), console) for recipe, planned in work
    ]
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


def _run(
    recipe: Recipe,
    scale: Scale,
    planned: list[Cell],
    seeds: int,
    overrides: Mapping[str, Any],
    out: Path,
    console: Console,
) -> Results:
    from fedssl.papers.results import Results
    from fedssl.papers.runner import Outcome, run_cells
    from fedssl.papers.table import heading, orderings, table

    def written(outcomes: list[Outcome], final: bool = False) -> Results:
        results = Results(recipe, scale, seeds, overrides, outcomes)
        _write(results, out, final)
        return results

    console.print(f"{recipe.name}, scale {scale}: {len(planned)} cells", markup=False)
    results = written(run_cells(planned, out / "runs", console, written), final=True)
    page = f"\n{heading(results)}\n\n{table(results)}\n\n{orderings(results)}".rstrip()
    console.print(f"{page}\n\nwritten to {out / recipe.name}-{scale}.md", markup=False)
    return results


def _write(results: Results, out: Path, final: bool) -> None:
    """After every run, so that a table that is stopped has what there is; the picture comes at the end."""
    from fedssl.papers.figure import draw
    from fedssl.papers.table import as_json, markdown
    from fedssl.storage import write_json, write_text

    name = f"{results.recipe.name}-{results.scale}"
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
