"""Short answers from the store: a question, the numbers of a few cells, and a conclusion."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import Field

from fedssl.options import Options
from fedssl.papers.recipe import Scale
from fedssl.papers.stored import Stored
from fedssl.statistics import mean_and_spread
from fedssl.tables.markdown import grid
from fedssl.tables.results import Results
from fedssl.tables.table import build


class Cells(Options):
    """Cells of one table, by the names under which they are shown: [row, column]."""

    table: str
    scale: Scale
    label: str = Field("", description="text before the numbers")
    cells: dict[str, tuple[str, str]]


class Question(Options):
    """A line of the table."""

    question: str
    numbers: tuple[Cells, ...]
    reading: str

    def row(self, stored: Stored) -> list[str]:
        return [self.question, " · ".join(_shown(stored, part) for part in self.numbers), self.reading]


def questions(stored: Stored, file: Path) -> str:
    """The table of all questions in a file."""
    listed = tomllib.loads(file.read_text(encoding="utf-8"))["question"]
    found = [build(Question, values, f"{file.name}: question {n}") for n, values in enumerate(listed, 1)]
    return grid(["question", "numbers", "reading"], [question.row(stored) for question in found])


def _shown(stored: Stored, part: Cells) -> str:
    """`IID: SimCLR 44.7, supervised 59.8`."""
    results = stored.table(part.table, part.scale)
    texts = [f"{name} {_number(results, *place)}" for name, place in part.cells.items()]
    return f"{part.label}: {', '.join(texts)}" if part.label else ", ".join(texts)


def _number(results: Results, row: str, column: str) -> str:
    """Return a mean, or mark it if it is out of date."""
    known = results.known(row, column)
    if known is not None:
        return f"{mean_and_spread(known)[0]:.1f}"
    measure = results.measure(row, column)
    for cell in results.stale_of(row):
        number = results.stale[cell.name].record.number(measure)
        if cell.column == column and number is not None:
            return f"{number.number:.1f} (out of date)"
    return "not measured"
