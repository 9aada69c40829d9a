"""Runs the missing cells. A cell that fails does not affect the others."""

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
from fedssl.tables.measure import read_number
from fedssl.tables.store import Record


@dataclass(frozen=True)
class Outcome:
    """The number of a cell, or the reason why it has none.

    Attributes:
        cell: the cell.
        path: the run's folder.
        number: the number in the table's unit.
        untrained: the number of the untrained encoder.
        seconds: training time.
        error: why there is no number.
        record: the stored result, if any; then the run's folder may be missing.
    """

    cell: Cell
    path: Path
    number: float | None = None
    untrained: float | None = None
    seconds: float = 0.0
    error: str = ""
    record: Record | None = None

    def points(self, key: str) -> Iterator[tuple[int, int, float]]:
        """Return round, client and value of a curve of the run (see `fedssl.tables.curves`)."""
        if self.record is not None:
            return self.record.points(key)
        return points(read_lines(self.path / "metrics.jsonl"), key)


class FinishedCell(NamedTuple):
    """A processed cell.

    Attributes:
        position: index among the cells.
        outcome: the number, or the reason why it is missing.
        seconds: time taken.
        reused: whether the run had finished before.
    """

    position: int
    outcome: Outcome
    seconds: float
    reused: bool


def run_cells(cells: Sequence[Cell], runs: Path, jobs: int = 1) -> Iterator[FinishedCell]:
    """Yield all cells as they finish.

    Args:
        cells: what to run. Cells with the same config share a run.
        runs: the folder of runs. Commands that use the same folder share the work.
        jobs: cells to run at once, each in a process with one thread; 1: one by one, in this process.
    """
    from fedssl.tables.workers import InProcess, Workers

    paths = [locate(runs, cell) for cell in cells]
    failed: dict[tuple[Path, str], str] = {}
    waiting = list(range(len(cells)))
    began: dict[int, tuple[float, bool]] = {}
    pool = InProcess() if jobs == 1 else Workers(jobs)
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
                    yield FinishedCell(position, Outcome(cell, path, error=known), 0.0, reused)
                else:
                    pool.start(position, cell, path)
            if pool.busy:
                position, outcome = pool.wait()
                if outcome.error:
                    failed[outcome.path, outcome.cell.measure.model_dump_json()] = outcome.error
                start, reused = began[position]
                yield FinishedCell(position, outcome, time.monotonic() - start, reused)


def _next(waiting: Sequence[int], paths: Sequence[Path], busy: Sequence[Path]) -> int | None:
    """Return the first cell that no process works on; otherwise wait for one of ours, else for theirs."""
    ours = [position for position in waiting if paths[position] not in busy]
    free = next((position for position in ours if not is_locked(lock_of(paths[position]))), None)
    return free if free is not None or busy else ours[0]


def try_cell(cell: Cell, path: Path) -> Outcome:
    """Like `run_cell`, but any exception becomes the outcome's error."""
    try:
        return run_cell(cell, path)
    except Exception as error:
        if path.is_dir():
            (path / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
        return Outcome(cell, path, error=_in_short(error))


def run_cell(cell: Cell, path: Path) -> Outcome:
    """Reuse a finished run, resume a stopped one, or start a new one; then measure."""
    with lock_run(lock_of(path)):
        if not (path / "result.json").exists():
            train(cell.config, path)
        outcome = measure(cell, path)
        (path / "error.txt").unlink(missing_ok=True)
    return outcome


def measure(cell: Cell, path: Path) -> Outcome:
    """Return the outcome of a finished run."""
    reading = read_number(path, cell.measure)
    seconds = json.loads((path / "result.json").read_text(encoding="utf-8"))["seconds"]
    return Outcome(cell, path, reading.number, reading.untrained, seconds)


def train(config: Config, path: Path) -> None:
    """Start or resume a run."""
    from fedssl import api

    if (path / "config.toml").exists():
        api.resume(path, quiet=True)
    else:
        api.run(config, out=path, quiet=True)


def single_threaded(cell: Cell) -> Cell:
    """Return the config for one core; threads set in the config are kept."""
    engine = cell.config.engine.with_machine_defaults(1)
    return replace(cell, config=cell.config.model_copy(update={"engine": engine}))


@contextmanager
def lock_run(lock: Path) -> Iterator[None]:
    """Lock a run: a second command waits until the first one is done with it or has died."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_locked(lock: Path) -> bool:
    """Whether another process is using the run."""
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
    """Return the number of completed rounds of a stopped run."""
    metrics = path / "metrics.jsonl"
    return len(metrics.read_text(encoding="utf-8").splitlines()) if metrics.exists() else 0


def _in_short(error: Exception) -> str:
    text = str(error) if isinstance(error, FedsslError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())
