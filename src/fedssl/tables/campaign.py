"""Runs the missing cells of tables and writes their pages as cells finish."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fedssl.errors import ConfigError, RunError
from fedssl.report.console import duration
from fedssl.storage import write_json, write_text
from fedssl.tables import figure, pictures
from fedssl.tables.archive import Archive, with_archive
from fedssl.tables.cells import Cell, cells, locate
from fedssl.tables.dryrun import DryRun
from fedssl.tables.markdown import orderings, table
from fedssl.tables.measure import format_number
from fedssl.tables.pace import Pace
from fedssl.tables.page import heading, markdown
from fedssl.tables.raw import as_json
from fedssl.tables.results import Results
from fedssl.tables.runner import Outcome, run_cells
from fedssl.tables.table import Table

Draw = Callable[[Results, Path], bool]
Summarize = Callable[[Results], str]


def summary_page(results: Results) -> str:
    """Return what is printed at the end: numbers, then orderings."""
    return f"{heading(results)}\n\n{table(results)}\n\n{orderings(results)}".rstrip()


@dataclass(frozen=True)
class Campaign:
    """Several tables with the same seeds.

    Attributes:
        tables: the tables to run.
        seeds: number of seeds.
        first_seed: the first seed; from 1000 on, the results are labeled as tuning.
        overrides: config keys for all cells.
        rows, columns: names of those to run, separated by commas; empty: all. For a single table only.
        out: the folder for pages and runs.
        jobs: cells to run at once, each in a process with one thread; 1: one by one, in this process.
        archive: existing results, and where new ones are stored; None: only in OUT.
        draw: draws a table's figure into a file; returns false if there is nothing to draw yet.
        summarize: returns what is printed of a table at its end.
    """

    tables: Sequence[Table]
    seeds: int = 3
    first_seed: int = 0
    overrides: Mapping[str, Any] = field(default_factory=dict)
    rows: str = ""
    columns: str = ""
    out: Path = Path("runs/tables")
    jobs: int = 1
    archive: Archive | None = None
    draw: Draw = figure.draw
    summarize: Summarize = summary_page

    def run(self, console: Console) -> list[Results]:
        """Run what is missing, and write OUT/TABLE.md, .json and .png.

        Returns:
            The results of each table.

        Raises:
            RunError: cells failed; the others have run, and the pages name the reasons.
        """
        tables = [_Progress(self, each) for each in self.plan()]
        for each in tables:
            console.print(each.opening(), markup=False)
        self._run_missing(tables, console)
        results = [each.finish(console) for each in tables]
        failed = sum(len(each.failures) for each in results)
        if failed:
            names = ", ".join(each.table.name for each in results if each.failures)
            raise RunError(
                f"{failed} cells failed ({names}); the tables give the reasons; the same command retries them"
            )
        return results

    def show(self, console: Console) -> list[Results]:
        """Write pages and pictures from the archive only."""
        return [_Progress(self, each).finish(console) for each in self.plan(need_images=False)]

    def estimate(self, console: Console) -> None:
        """Print what would run, and the estimated cost."""
        listing = DryRun(self.out / "runs", console)
        for each in self.plan():
            stored = {outcome.cell.name for outcome in each.outcomes if not outcome.error}
            listing.show(each.table, each.planned, stored)
        listing.summary()

    def plan(self, need_images: bool = True) -> list[Results]:
        """Return each table with its cells and their archived results."""
        if self.jobs < 1:
            raise ConfigError(f"--jobs {self.jobs}: at least 1 is needed")
        selection = {key: names for key in ("rows", "columns") if (names := getattr(self, key))}
        if selection and len(self.tables) != 1:
            raise ConfigError(f"--{next(iter(selection))} needs a single table")
        found = []
        for each in self.tables:
            chosen = each.select(self.rows, self.columns)
            planned = cells(chosen, self.seeds, self.overrides, self.first_seed, need_images)
            empty = Results(
                chosen, self.seeds, self.overrides, [], self.first_seed, selection, planned=planned
            )
            found.append(with_archive(empty, self.archive) if self.archive is not None else empty)
        return found

    def _run_missing(self, tables: Sequence[_Progress], console: Console) -> None:
        """Run all tables together, so that no worker idles at the end of a table."""
        runs = self.out / "runs"
        work = [(each, cell) for each in tables for cell in each.missing]
        pace = Pace([(cell, locate(runs, cell)) for _, cell in work])
        for done in run_cells([cell for _, cell in work], runs, self.jobs):
            progress, cell = work[done.position]
            outcome = replace(done.outcome, cell=cell)
            if self.archive is not None:
                self.archive.keep(progress.found.table, outcome)
            pace.done(outcome.path)
            progress.add(outcome)
            console.print(
                progress.line(outcome, "reused" if done.reused else duration(done.seconds), pace.seconds()),
                markup=False,
            )

    def write(self, results: Results, with_picture: bool) -> None:
        """Write the page after every run, so that a stop loses nothing; draw the picture at the end."""
        name = results.file_name
        self.out.mkdir(parents=True, exist_ok=True)
        wanted = with_picture and results.table.figure is not None
        drawn = wanted and self.draw(results, self.out / f"{name}.png")
        of_runs = pictures.section(pictures.of_runs(results, self.out)) if with_picture else ""
        write_text(self.out / f"{name}.md", markdown(results, f"{name}.png" if drawn else "", of_runs))
        write_json(self.out / f"{name}.json", as_json(results))


class _Progress:
    """A table of a campaign and its progress."""

    def __init__(self, campaign: Campaign, found: Results) -> None:
        self.campaign, self.found = campaign, found
        self._outcomes = {outcome.cell.name: outcome for outcome in found.outcomes}

    @property
    def missing(self) -> list[Cell]:
        """Return cells without a number; failed ones are tried again."""
        done = {name for name, outcome in self._outcomes.items() if not outcome.error}
        return [cell for cell in self.found.planned if cell.name not in done]

    def opening(self) -> str:
        """`fedema-table3, scale midi: 18 cells, 6 of them stored, 2 out of date`."""
        total, stored, stale = len(self.found.planned), len(self.found.outcomes), len(self.found.stale)
        known = f", {stored} of them stored" * bool(stored) + f", {stale} out of date" * bool(stale)
        return f"{self.found.table.label}: {total} cells{known}"

    def add(self, outcome: Outcome) -> None:
        self._outcomes[outcome.cell.name] = outcome
        self.campaign.write(self._results(), with_picture=False)

    def line(self, outcome: Outcome, took: str, left: float | None) -> str:
        """` 4/18  FedEMA · CIFAR-10 · seed 1: 41.53  14m02s  left 3h10m`."""
        total, cell = len(self.found.planned), outcome.cell
        what = (
            f"failed: {outcome.error}"
            if outcome.number is None
            else format_number(outcome.number, cell.measure)
        )
        table = f"{self.found.table.name}  " * (len(self.campaign.tables) > 1)
        ahead = f"  left {duration(left)}" if left else ""
        place = f"{len(self._outcomes):>{len(str(total))}}/{total}"
        return f"{place}  {table}{cell.name}: {what}  {took}{ahead}"

    def finish(self, console: Console) -> Results:
        """Write the page with its picture, and print its tables."""
        results, out = self._results(), self.campaign.out
        self.campaign.write(results, with_picture=True)
        page = self.campaign.summarize(results)
        console.print(f"\n{page}\n\nwrote {out / results.file_name}.md", markup=False)
        return results

    def _results(self) -> Results:
        known = [cell for cell in self.found.planned if cell.name in self._outcomes]
        places, names = {(cell.row, cell.column) for cell in known}, {cell.name for cell in known}
        return replace(
            self.found,
            outcomes=[self._outcomes[cell.name] for cell in known],
            means={place: mean for place, mean in self.found.means.items() if place not in places},
            stale={name: stale for name, stale in self.found.stale.items() if name not in names},
        )
