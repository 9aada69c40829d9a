"""`--dry-run`: lists what would run, and the estimated cost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from rich.console import Console

from fedssl.report.console import duration
from fedssl.tables.cells import Cell, locate
from fedssl.tables.cost import Stopwatch, evaluation_steps, images, plan
from fedssl.tables.markdown import grid
from fedssl.tables.runner import rounds_done
from fedssl.tables.table import Table

HEAD = ["row", "column", "seeds", "rounds×epochs×clients", "steps per run", "state", "time here"]


class DryRun:
    """The cells of several tables; runs shared by several tables count once."""

    def __init__(self, runs: Path, console: Console) -> None:
        self.runs, self.console = runs, console
        self.stopwatch = Stopwatch()
        self.paths: dict[str, Path] = {}
        self.counted: set[str] = set()
        self.stored: Collection[str] = ()
        self.seconds, self.missing, self.unknown = 0.0, 0, 0

    def show(self, table: Table, cells: Sequence[Cell], stored: Collection[str] = ()) -> None:
        """Print a line for each cell of the table, with all its seeds.

        Args:
            table: the table.
            cells: its cells.
            stored: names of the cells with stored results.
        """
        self.stored = stored
        self.paths = {cell.folder: locate(self.runs, cell) for cell in cells}
        title = f"{table.source}: {table.title}" if table.source else table.title
        self.console.print(f"\n{table.label}: {title}", markup=False)
        places = dict.fromkeys((cell.row, cell.column) for cell in cells)
        body = [self._line([cell for cell in cells if (cell.row, cell.column) == place]) for place in places]
        self.console.print(grid(HEAD, body), markup=False)

    def summary(self) -> None:
        unknown = f", and {self.unknown} runs whose images could not be counted" if self.unknown else ""
        text = (
            f"\n{self.missing} runs to do: about {self.seconds / 3600:.1f} hours of training here{unknown}. "
            "The estimate is based on a few steps on random images and excludes probes and start-up. "
            "Runs that several tables share count once."
        )
        self.console.print(text, markup=False)

    def _line(self, seeds: Sequence[Cell]) -> list[str]:
        """Return row, column, seeds, size of a run, and its remaining work."""
        config = seeds[0].config
        size = images(config.data)
        planned = plan(config, size.count, size.styles) if size else None
        left = sum(self._left(cell) for cell in seeds)
        cost = "–"
        if size and planned:
            asked = sum(self._needs_evaluation(cell) for cell in seeds)
            steps = left * planned.steps * config.method.effort / config.engine.workers
            steps += asked * evaluation_steps(config, seeds[0].measure, size.count, size.styles)
            if steps:
                seconds = steps * self.stopwatch.seconds(config, size.shape)
                self.seconds += seconds
                cost = duration(seconds)
        elif left:
            self.unknown += len(seeds)
            cost = "?"
        states = [self._state(cell) for cell in seeds]
        return [
            seeds[0].row,
            seeds[0].column,
            str(len(seeds)),
            f"{config.rounds}×{config.train.epochs:g}×{planned.clients if planned else '?'}",
            f"{planned.steps:,}" if planned else "?",
            ", ".join(f"{states.count(word)} {word}" for word in dict.fromkeys(states)),
            cost,
        ]

    def _left(self, cell: Cell) -> float:
        """Return the remaining share of a run that no earlier line includes."""
        if cell.folder in self.counted or self._state(cell) in ("stored", "done"):
            return 0.0
        self.counted.add(cell.folder)
        self.missing += 1
        return 1 - min(rounds_done(self.paths[cell.folder]) / cell.config.rounds, 1.0)

    def _needs_evaluation(self, cell: Cell) -> bool:
        """Whether the cell's number has to be computed and no earlier line includes it."""
        measure = cell.measure.model_copy(update={"number": ""})  # several numbers are computed together
        asked = f"{cell.folder} {measure.model_dump_json()}"
        if asked in self.counted or self._state(cell) in ("stored", "done"):
            return False
        self.counted.add(asked)
        return True

    def _state(self, cell: Cell) -> str:
        if cell.name in self.stored:
            return "stored"
        path = self.paths[cell.folder]
        if (path / "result.json").exists():
            return "done"
        return "partial" if (path / "config.toml").exists() else "missing"
