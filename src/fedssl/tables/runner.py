"""Runs the cells that are missing; each on its own, so that one that fails does not take the others along."""

from __future__ import annotations

import fcntl
import json
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedssl.config import Config
from fedssl.errors import FedsslError
from fedssl.report.console import duration
from fedssl.tables.cells import Cell, locate
from fedssl.tables.measure import shown, take


@dataclass(frozen=True)
class Outcome:
    """The number of a cell, or why there is none."""

    cell: Cell
    path: Path
    number: float | None = None
    untrained: float | None = None
    seconds: float = 0.0  # of training
    error: str = ""


def run_cells(
    cells: Sequence[Cell], runs: Path, console: Console, told: Callable[[list[Outcome]], object]
) -> list[Outcome]:
    """One outcome a cell, in their order; `told` hears of all that there are after each run."""
    outcomes: dict[str, Outcome] = {}
    failed: dict[tuple[Path, str], str] = {}
    paths = {cell.folder: locate(runs, cell) for cell in cells}
    waiting = list(cells)
    began, worked = time.monotonic(), 0
    while waiting:
        # A run that another command is at is left for later: two commands share the work of one table.
        cell = next((each for each in waiting if not taken(lock_of(paths[each.folder]))), waiting[0])
        waiting.remove(cell)
        path, start = paths[cell.folder], time.monotonic()
        reused, what = (path / "result.json").exists(), (path, cell.measure.model_dump_json())
        if what not in failed:
            try:
                outcomes[cell.name] = run_cell(cell, path)
            except Exception as error:  # whatever it is, the other cells go on
                failed[what] = _in_short(error)
                _keep_traceback(path)
        if what in failed:
            outcomes[cell.name] = Outcome(cell, path, error=failed[what])
        worked += not reused
        missing = _missing({paths[each.folder] for each in waiting})
        left = (time.monotonic() - began) / max(worked, 1) * missing
        took = "reused" if reused else duration(time.monotonic() - start)
        console.print(_line(len(outcomes), len(cells), outcomes[cell.name], took, left), markup=False)
        if not reused:
            told(_in_order(cells, outcomes))
    return _in_order(cells, outcomes)


def run_cell(cell: Cell, path: Path) -> Outcome:
    """Reuse a run that has finished, go on with one that was stopped, else start it; then measure."""
    with alone(lock_of(path)):
        if not (path / "result.json").exists():
            train(cell.config, path)
        reading = take(path, cell.measure)
        (path / "error.txt").unlink(missing_ok=True)
    seconds = json.loads((path / "result.json").read_text(encoding="utf-8"))["seconds"]
    return Outcome(cell, path, reading.number, reading.untrained, seconds)


def train(config: Config, path: Path) -> None:
    from fedssl import api

    if (path / "config.toml").exists():
        api.resume(path, quiet=True)
    else:
        api.run(config, out=path, quiet=True)


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Two commands at once share their runs: the second waits until the first is done with one, or dead."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def taken(lock: Path) -> bool:
    """Whether another command is at it now."""
    if not lock.exists():
        return False
    with open(lock, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def lock_of(path: Path) -> Path:
    return path.parent / ".locks" / path.name


def rounds_done(path: Path) -> int:
    """How far a run has come that was stopped."""
    metrics = path / "metrics.jsonl"
    return len(metrics.read_text(encoding="utf-8").splitlines()) if metrics.exists() else 0


def _in_order(cells: Sequence[Cell], outcomes: dict[str, Outcome]) -> list[Outcome]:
    return [outcomes[cell.name] for cell in cells if cell.name in outcomes]


def _missing(paths: set[Path]) -> int:
    return sum(not (path / "result.json").exists() for path in paths)


def _in_short(error: Exception) -> str:
    text = str(error) if isinstance(error, FedsslError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())


def _keep_traceback(path: Path) -> None:
    if path.is_dir():
        (path / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")


def _line(place: int, total: int, outcome: Outcome, took: str, left: float) -> str:
    number, measure = outcome.number, outcome.cell.measure
    what = f"failed: {outcome.error}" if number is None else shown(number, measure)
    ahead = f"  left {duration(left)}" if place < total else ""
    return f"{place:>{len(str(total))}}/{total}  {outcome.cell.name}: {what}  {took}{ahead}"
