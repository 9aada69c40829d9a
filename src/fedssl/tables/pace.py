"""How long a campaign still takes, from how fast it has been so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedssl.config import Config
from fedssl.tables.cells import Cell
from fedssl.tables.cost import images, plan
from fedssl.tables.runner import rounds_done


class Pace:
    """Compares the work that has been done with the work that is left.

    Work is counted in images of training steps, times the method's effort; where images cannot be counted
    without reading them, all runs count the same.
    """

    def __init__(
        self, runs: Sequence[tuple[Cell, Path]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        works = {path: work(cell.config) for cell, path in runs}
        known = [each for each in works.values() if each]
        usual = sum(known) / len(known) if known else 1.0
        self._rounds = {path: cell.config.rounds for cell, path in runs}
        self._work = {path: each or usual for path, each in works.items()}
        self._left = {path: self._left_of(path) for path in self._work}
        self._began_with = sum(self._left.values())
        self._clock, self._began = clock, clock()

    @property
    def runs(self) -> int:
        """How many are not done."""
        return sum(left > 0 for left in self._left.values())

    def done(self, path: Path) -> None:
        """Nothing is left to do of a run: it has finished, or failed."""
        self._left[path] = 0.0

    def seconds(self) -> float | None:
        """Until all runs are done; None before anything is known."""
        self._left = {path: self._left_of(path) if left else 0.0 for path, left in self._left.items()}
        left = sum(self._left.values())
        done = self._began_with - left
        return (self._clock() - self._began) * left / done if done > 0 else None

    def _left_of(self, path: Path) -> float:
        if (path / "result.json").exists():
            return 0.0
        return self._work[path] * max(1 - rounds_done(path) / self._rounds[path], 0.01)


def work(config: Config) -> float:
    """Images that the run's training steps go through, times the effort; 0 if they cannot be counted."""
    found = images(config.data)
    if found is None:
        return 0.0
    steps = plan(config, found.count, found.styles).steps
    return float(steps * config.train.batch_size * config.method.effort)
