"""Generated blocks of the documentation: `python -m fedssl.papers.pages` fills them from the store.

A block is between `<!-- stored: WHAT -->` and `<!-- end -->`. WHAT is `table RECIPE SCALE`, `scoreboard`,
`summary`, or `questions FILE`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from fedssl.errors import ConfigError
from fedssl.papers.panels import draw
from fedssl.papers.questions import questions
from fedssl.papers.recipe import SCALES, Scale
from fedssl.papers.scoreboard import anchor, scoreboard, summary
from fedssl.papers.stored import Stored, measured
from fedssl.statistics import summarize
from fedssl.storage import write_text
from fedssl.tables.markdown import table, verdicts
from fedssl.tables.page import footnote, stale_lines, units
from fedssl.tables.results import Results

BLOCK = re.compile(r"<!-- stored: (?P<what>[^\n]*?) -->\n.*?<!-- end -->", re.DOTALL)
PICTURES = Path("docs/results/pictures")


class Pages:
    """The pages of a checkout.

    Attributes:
        root: the checkout's folder.
        pictures: where pictures are written, as pages link to them from docs/results.
    """

    def __init__(self, root: Path, pictures: Path | None = None) -> None:
        self.root = root
        self.pictures = root / PICTURES if pictures is None else pictures
        self.stored = Stored(root / "docs" / "results" / "cells")

    def files(self) -> Iterator[Path]:
        """Return the pages that contain generated blocks."""
        for file in (self.root / "README.md", *sorted((self.root / "docs").rglob("*.md"))):
            if "<!-- stored: " in file.read_text(encoding="utf-8"):
                yield file

    def tables(self) -> set[tuple[str, str]]:
        """Names and scales of the tables that are on any page."""
        blocks = (
            found for file in self.files() for found in BLOCK.finditer(file.read_text(encoding="utf-8"))
        )
        words = (found["what"].split() for found in blocks)
        return {(given[1], given[2]) for given in words if given[0] == "table" and len(given) == 3}

    def filled(self, file: Path) -> str:
        """Return the page with its blocks filled from the store."""
        return BLOCK.sub(lambda found: self._block(found["what"], file), file.read_text(encoding="utf-8"))

    def write(self) -> list[Path]:
        """Fill all blocks and draw their pictures.

        Returns:
            The pages that changed.
        """
        changed = []
        for file in self.files():
            text = self.filled(file)
            if text != file.read_text(encoding="utf-8"):
                write_text(file, text)
                changed.append(file)
        return changed

    def _block(self, what: str, file: Path) -> str:
        kind, *words = what.split()
        makers: dict[str, Callable[..., str]] = {
            "table": self._table,
            "scoreboard": lambda: scoreboard(self.stored, self.tables()),
            "summary": lambda: summary(self.stored),
            "questions": lambda name: questions(self.stored, file.parent / name),
        }
        try:
            text = makers[kind](*words)
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{file.name}: no such block: {what} ({error})") from None
        gap = "\n" if kind == "summary" else "\n\n"  # one line stays a part of its paragraph
        return f"<!-- stored: {what} -->{gap}{text}{gap}<!-- end -->"

    def _table(self, name: str, at: str) -> str:
        """Return what is stored of a table: numbers, picture, verdicts, and out-of-date results."""
        results = self.stored.table(name, _scale(at))
        judged = [each for each in results.orderings() if each.verdict.n]
        left = len(results.orderings()) - len(judged)
        counts = f"{summarize([each.verdict for each in judged])}" + f"; {left} not measured" * bool(left)
        stale = stale_lines(results)
        shown = measured(results)
        heading = f"### {anchor(name, at).replace('-at-scale-', ' at scale ')}"
        if not shown.rows:
            return f"{heading}\n\nNot measured yet."
        parts = [
            heading,
            f"{': '.join(filter(None, (results.table.source, results.table.title)))}. {units(shown)}",
            table(shown),
            footnote(results),
            self._picture(results),
            f"**{counts}.** [How verdicts are reached](index.md#how-verdicts-are-reached)." if judged else "",
            verdicts(judged, results.seeds) if judged else "",
            "Out of date, and not used:\n\n" + "\n".join(stale) if stale else "",
        ]
        return "\n\n".join(part for part in parts if part)

    def _picture(self, results: Results) -> str:
        if results.table.figure is None:
            return ""
        self.pictures.mkdir(parents=True, exist_ok=True)
        file = self.pictures / f"{results.file_name}.png"
        return f"![{results.table.title}](pictures/{file.name})" if draw(results, file) else ""


def _scale(name: str) -> Scale:
    for scale in SCALES:
        if scale == name:
            return scale
    raise KeyError(name)


def main() -> None:
    """Fill the blocks of the checkout that contains this file."""
    for file in Pages(Path(__file__).parents[3]).write():
        sys.stdout.write(f"wrote {file}\n")


if __name__ == "__main__":
    main()
