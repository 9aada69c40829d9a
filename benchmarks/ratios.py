"""The results of benchmarks: ratios with goals. `make bench` collects them on one page."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ratio:
    """A number measured against a peer or a limit in the same run."""

    what: str
    value: float
    unit: str = "×"
    least: float | None = None  # the goal: at least this,
    most: float | None = None  # or at most that; neither: no goal
    note: str = ""

    @property
    def goal(self) -> str:
        if self.least is not None:
            return f"≥ {self.least:.4g}"
        return "" if self.most is None else f"≤ {self.most:.4g}"

    @property
    def reached(self) -> bool:
        return (self.least is None or self.value >= self.least) and (
            self.most is None or self.value <= self.most
        )

    def row(self) -> str:
        """One line of a Markdown table."""
        mark = "" if not self.goal else "yes" if self.reached else "**no**"
        return f"| {self.what} | {self.value:.3g} {self.unit} | {self.goal} | {mark} | {self.note} |"


HEAD = "| what | measured | goal | reached | |\n|---|---|---|---|---|"


def report(ratios: Iterable[Ratio]) -> None:
    """Print a table; for `make bench`, also write lines of JSON to the file that FEDSSL_RATIOS names."""
    listed = list(ratios)
    print("\n".join([HEAD, *(ratio.row() for ratio in listed)]), flush=True)
    if file := os.environ.get("FEDSSL_RATIOS"):
        with Path(file).open("a", encoding="utf-8") as lines:
            lines.writelines(json.dumps(asdict(ratio)) + "\n" for ratio in listed)
