"""Runs cells in this process, or in several worker processes with one thread each.

A worker is `python -m fedssl.tables.worker`: it reads cells as lines of JSON and answers with lines of JSON.
A worker ends when its standard input is closed, so no worker outlives the command that started it.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedssl.tables.cells import Cell
from fedssl.tables.runner import Outcome, try_cell

COMMAND = [sys.executable, "-m", "fedssl.tables.worker"]


class InProcess:
    """Runs one cell at a time in this process."""

    def __init__(self) -> None:
        self._started: tuple[int, Cell, Path] | None = None

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def busy(self) -> list[Path]:
        """The runs in progress."""
        return [] if self._started is None else [self._started[2]]

    @property
    def free(self) -> bool:
        return self._started is None

    def start(self, position: int, cell: Cell, path: Path) -> None:
        self._started = position, cell, path

    def wait(self) -> tuple[int, Outcome]:
        """Return the next outcome."""
        assert self._started is not None
        position, cell, path = self._started
        outcome = try_cell(cell, path)
        self._started = None
        return position, outcome


class Workers:
    """Runs several cells at once, each in its own process with one thread."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._workers: list[_Worker] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()

    @property
    def busy(self) -> list[Path]:
        """The runs in progress."""
        return [worker.task[2] for worker in self._workers if worker.task is not None]

    @property
    def free(self) -> bool:
        return len(self.busy) < self.jobs

    @property
    def processes(self) -> list[subprocess.Popen[str]]:
        """The worker processes that are alive."""
        return [worker.process for worker in self._workers]

    def start(self, position: int, cell: Cell, path: Path) -> None:
        idle = next((worker for worker in self._workers if worker.task is None), None)
        if idle is None:
            idle = _Worker()
            self._workers.append(idle)
        idle.start(position, cell, path)

    def wait(self) -> tuple[int, Outcome]:
        """Return the next outcome. A worker that died is replaced when the next cell needs one."""
        busy = {worker.answers: worker for worker in self._workers if worker.task is not None}
        ready, _, _ = select.select(list(busy), [], [])
        worker = busy[ready[0]]
        answer = worker.answer()
        if worker.process.poll() is not None:
            self._workers.remove(worker)
        return answer


class _Worker:
    """A worker process and its current cell."""

    def __init__(self) -> None:
        # The numbers do not depend on the number of workers: each uses one thread.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.tasks, self.answers = self.process.stdin, self.process.stdout
        self.task: tuple[int, Cell, Path] | None = None

    def start(self, position: int, cell: Cell, path: Path) -> None:
        task: dict[str, Any] = {
            "config": cell.config.to_dict(),
            "measure": cell.measure.model_dump(),
            "path": str(path),
        }
        self.task = position, cell, path
        self.tasks.write(json.dumps(task) + "\n")
        self.tasks.flush()

    def answer(self) -> tuple[int, Outcome]:
        assert self.task is not None
        position, cell, path = self.task
        line = self.answers.readline()
        self.task = None
        if not line:
            code = self.process.wait()
            return position, Outcome(cell, path, error=f"its process ended with code {code}")
        return position, Outcome(cell, path, **json.loads(line))

    def end(self) -> None:
        """End the process immediately; the next command resumes its run from the last checkpoint."""
        self.process.kill()
        self.process.wait()
        self.tasks.close()
        self.answers.close()
