"""Runs tables: what is missing of them, one after the other, with their pages written as cells finish."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fedssl.errors import ConfigError, RunError
from fedssl.storage import write_json, write_text
from fedssl.tables import figure
from fedssl.tables.cells import Cell, cells
from fedssl.tables.dryrun import DryRun
from fedssl.tables.page import as_json, heading, markdown, orderings, table
from fedssl.tables.results import Results
from fedssl.tables.runner import Outcome, run_cells
from fedssl.tables.table import Table

Draw = Callable[[Results, Path], bool]
Show = Callable[[Results], str]


def summary_page(results: Results) -> str:
    """What is printed at the end: numbers, then orderings."""
    return f"{heading(results)}\n\n{table(results)}\n\n{orderings(results)}".rstrip()


@dataclass(frozen=True)
class Campaign:
    """Several tables with the same seeds.

    Attributes:
        tables: what to run.
        seeds: how many seeds.
        first_seed: the first of them; from 1000 on, the results are labelled as tuning.
        overrides: keys of the config that hold for every cell.
        rows, columns: names of those to run, separated by commas; empty: all. Only with a single table.
        out: the folder for pages and runs.
        draw: draws a table's figure into a file; false if there is nothing to draw yet.
        show: what is printed of a table at its end.
    """

    tables: Sequence[Table]
    seeds: int = 3
    first_seed: int = 0
    overrides: Mapping[str, Any] | None = None
    rows: str = ""
    columns: str = ""
    out: Path = Path("runs/tables")
    draw: Draw = figure.draw
    show: Show = summary_page

    def run(self, console: Console) -> list[Results]:
        """Run what is missing, and write OUT/TABLE.md, .json and .png.

        Returns:
            The results of each table.

        Raises:
            RunError: cells failed; the others have run, and the pages name the reasons.
        """
        results = [self._run(empty, planned, console) for empty, planned in self._plan()]
        failed = sum(len(each.failures) for each in results)
        if failed:
            names = ", ".join(each.table.name for each in results if each.failures)
            raise RunError(
                f"{failed} cells failed ({names}); the tables say why, and the same command tries them again"
            )
        return results

    def show_plan(self, console: Console) -> None:
        """What would run, and what it would cost here."""
        listing = DryRun(self.out / "runs", console)
        for empty, planned in self._plan():
            listing.show(empty.table, planned)
        listing.summary()

    def _plan(self) -> list[tuple[Results, list[Cell]]]:
        """Results without outcomes, and their cells. Everything is checked before anything runs."""
        selection = {key: names for key in ("rows", "columns") if (names := getattr(self, key))}
        if selection and len(self.tables) != 1:
            raise ConfigError(f"--{next(iter(selection))} needs a single table")
        overrides, plan = self.overrides or {}, []
        for each in self.tables:
            chosen = each.select(self.rows, self.columns)
            planned = cells(chosen, self.seeds, overrides, self.first_seed)
            plan.append((Results(chosen, self.seeds, overrides, [], self.first_seed, selection), planned))
        return plan

    def _run(self, empty: Results, planned: Sequence[Cell], console: Console) -> Results:
        def written(outcomes: list[Outcome], final: bool = False) -> Results:
            results = replace(empty, outcomes=outcomes)
            self._write(results, final)
            return results

        console.print(f"{empty.table.label}: {len(planned)} cells", markup=False)
        results = written(run_cells(planned, self.out / "runs", console, written), final=True)
        console.print(f"\n{self.show(results)}\n\nwrote {self.out / results.file_name}.md", markup=False)
        return results

    def _write(self, results: Results, final: bool) -> None:
        """After every run, so that a stopped table has what there is; the picture comes at the end."""
        name = results.file_name
        drawn = final and results.table.figure is not None and self.draw(results, self.out / f"{name}.png")
        write_text(self.out / f"{name}.md", markdown(results, f"{name}.png" if drawn else ""))
        write_json(self.out / f"{name}.json", as_json(results))
