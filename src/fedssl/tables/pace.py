"""Estimates the remaining time of a campaign from its progress so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedssl.config import Config
from fedssl.tables.cells import Cell
from fedssl.tables.cost import images, plan
from fedssl.tables.runner import rounds_done


class Pace:
    """Compares the completed work with the remaining work.

    Work is counted in images processed by training steps, times the method's effort; if images cannot be
    counted without reading them, all runs count the same.
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
        """Number of unfinished runs."""
        return sum(left > 0 for left in self._left.values())

    def done(self, path: Path) -> None:
        """Mark a run as finished or failed."""
        self._left[path] = 0.0

    def seconds(self) -> float | None:
        """Return the remaining seconds; None if nothing is known yet."""
        self._left = {path: self._left_of(path) if left else 0.0 for path, left in self._left.items()}
        left = sum(self._left.values())
        done = self._began_with - left
        return (self._clock() - self._began) * left / done if done > 0 else None

    def _left_of(self, path: Path) -> float:
        if (path / "result.json").exists():
            return 0.0
        return self._work[path] * max(1 - rounds_done(path) / self._rounds[path], 0.01)


def work(config: Config) -> float:
    """Return the images that the run's training steps process, times the effort; 0 if unknown."""
    found = images(config.data)
    if found is None:
        return 0.0
    steps = plan(config, found.count, found.styles).steps
    return float(steps * config.train.batch_size * config.method.effort)
