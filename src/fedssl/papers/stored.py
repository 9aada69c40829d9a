"""Tables of the papers from the store, without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from fedssl.papers.archive import PapersArchive
from fedssl.papers.files import recipe_files
from fedssl.papers.recipe import SCALES, Recipe, Scale, load, titles
from fedssl.tables.archive import with_archive
from fedssl.tables.cells import cells
from fedssl.tables.results import Results


class Stored:
    """Reads a folder of stored results; each table is read once."""

    def __init__(self, folder: Path) -> None:
        self.archive = PapersArchive(folder)
        self._known = self.archive.store.tables()
        self._tables: dict[tuple[str, str], Results] = {}

    def scales(self, recipe: Recipe) -> list[Scale]:
        """Return the scales at which a recipe has results, largest first."""
        return [scale for scale in reversed(SCALES) if (recipe.name, scale) in self._known]

    def names(self, scale: str) -> list[str]:
        """Return the recipes with results at a scale, in the order of their numbers."""
        return [name for name in recipe_files() if (name, scale) in self._known]

    def table(self, name: str, scale: Scale) -> Results:
        """Return a table with all stored seeds."""
        if (name, scale) not in self._tables:
            table = recipe(name).at(scale)
            first, seeds = self.archive.range_of_seeds([table])
            planned = cells(table, seeds, {}, first, need_images=False)
            empty = Results(table, seeds, {}, [], first, planned=planned)
            self._tables[name, scale] = with_archive(empty, self.archive)
        return self._tables[name, scale]


@cache
def recipe(name: str) -> Recipe:
    """Return an included recipe; cached."""
    return load(name)


@cache
def recipes_of(papers: tuple[str, ...]) -> Mapping[str, Sequence[Recipe]]:
    """Return the recipes of each paper, in the order of their numbers."""
    return {paper: [recipe(name) for name in titles() if name.partition("-")[0] == paper] for paper in papers}


def measured(results: Results) -> Results:
    """Select the rows and columns that have a number, current or out of date."""
    there = {(outcome.cell.row, outcome.cell.column) for outcome in results.outcomes}
    there |= results.means.keys()
    there |= {(cell.row, cell.column) for cell in results.planned if cell.name in results.stale}
    rows, columns = ({place[axis] for place in there} for axis in (0, 1))
    table = results.table.model_copy(
        update={
            "rows": tuple(row for row in results.table.rows if row.name in rows),
            "columns": tuple(column for column in results.table.columns if column.name in columns),
        }
    )
    return replace(results, table=table)
