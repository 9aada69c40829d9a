"""Runs the cells that are missing; each on its own, so that one that fails does not take the others along."""

from __future__ import annotations

import fcntl
import json
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from fedssl.config import Config
from fedssl.errors import FedsslError
from fedssl.storage import read_lines
from fedssl.tables.cells import Cell, locate
from fedssl.tables.curves import points
from fedssl.tables.measure import take
from fedssl.tables.store import Record


@dataclass(frozen=True)
class Outcome:
    """The number of a cell, or the reason why it has no number.

    Attributes:
        cell: the cell.
        path: the folder of its run.
        number: in the table's unit.
        untrained: the same of the encoder before training.
        seconds: of training.
        error: why there is no number.
        record: what the store has of it; then there need not be a folder.
    """

    cell: Cell
    path: Path
    number: float | None = None
    untrained: float | None = None
    seconds: float = 0.0
    error: str = ""
    record: Record | None = None

    def points(self, key: str) -> Iterator[tuple[int, int, float]]:
        """Round, client and value of a curve of the run (see `fedssl.tables.curves`)."""
        if self.record is not None:
            return self.record.points(key)
        return points(read_lines(self.path / "metrics.jsonl"), key)


class Done(NamedTuple):
    """A cell that has been worked at.

    Attributes:
        position: among the cells.
        outcome: its number, or the reason why it has no number.
        seconds: how long it took.
        reused: whether its run had finished before.
    """

    position: int
    outcome: Outcome
    seconds: float
    reused: bool


def run_cells(cells: Sequence[Cell], runs: Path, jobs: int = 1) -> Iterator[Done]:
    """All cells, as they are done.

    Args:
        cells: what to run. Cells with the same config share a run.
        runs: the folder of runs. Commands that work on the same folder share the work.
        jobs: cells to run at once, each in a process with one thread; 1: one by one, in this process.
    """
    from fedssl.tables.workers import Here, Workers

    paths = [locate(runs, cell) for cell in cells]
    failed: dict[tuple[Path, str], str] = {}
    waiting = list(range(len(cells)))
    began: dict[int, tuple[float, bool]] = {}
    pool = Here() if jobs == 1 else Workers(jobs)
    with pool:
        while waiting or pool.busy:
            while waiting and pool.free:
                position = _next(waiting, paths, pool.busy)
                if position is None:
                    break
                waiting.remove(position)
                cell, path = cells[position], paths[position]
                reused = (path / "result.json").exists()
                began[position] = time.monotonic(), reused
                known = failed.get((path, cell.measure.model_dump_json()))
                if known is not None:
                    yield Done(position, Outcome(cell, path, error=known), 0.0, reused)
                else:
                    pool.start(position, cell, path)
            if pool.busy:
                position, outcome = pool.wait()
                if outcome.error:
                    failed[outcome.path, outcome.cell.measure.model_dump_json()] = outcome.error
                start, reused = began[position]
                yield Done(position, outcome, time.monotonic() - start, reused)


def _next(waiting: Sequence[int], paths: Sequence[Path], busy: Sequence[Path]) -> int | None:
    """The first cell whose run nobody is at. If others are at all of them: wait for ours, else for theirs."""
    ours = [position for position in waiting if paths[position] not in busy]
    free = next((position for position in ours if not taken(lock_of(paths[position]))), None)
    return free if free is not None or busy else ours[0]


def try_cell(cell: Cell, path: Path) -> Outcome:
    """`run_cell`; whatever goes wrong is the outcome's error."""
    try:
        return run_cell(cell, path)
    except Exception as error:
        if path.is_dir():
            (path / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
        return Outcome(cell, path, error=_in_short(error))


def run_cell(cell: Cell, path: Path) -> Outcome:
    """Reuse a run that has finished, go on with one that was stopped, else start it; then measure."""
    with alone(lock_of(path)):
        if not (path / "result.json").exists():
            train(cell.config, path)
        outcome = measure(cell, path)
        (path / "error.txt").unlink(missing_ok=True)
    return outcome


def measure(cell: Cell, path: Path) -> Outcome:
    """The outcome of a run that has finished."""
    reading = take(path, cell.measure)
    seconds = json.loads((path / "result.json").read_text(encoding="utf-8"))["seconds"]
    return Outcome(cell, path, reading.number, reading.untrained, seconds)


def train(config: Config, path: Path) -> None:
    """Start a run, or go on with it."""
    from fedssl import api

    if (path / "config.toml").exists():
        api.resume(path, quiet=True)
    else:
        api.run(config, out=path, quiet=True)


def single_threaded(cell: Cell) -> Cell:
    """The cell on a machine with one core; threads that its config names are left."""
    engine = cell.config.engine.with_machine_defaults(1)
    return replace(cell, config=cell.config.model_copy(update={"engine": engine}))


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Two commands at once share their runs: the second waits until the first is done with one, or dead."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def taken(lock: Path) -> bool:
    """Whether another process is at it now."""
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


def _in_short(error: Exception) -> str:
    text = str(error) if isinstance(error, FedsslError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())
