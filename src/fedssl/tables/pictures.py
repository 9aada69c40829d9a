"""Pictures that runs made for the cells of a table (`generate`)."""

from __future__ import annotations

import os
from pathlib import Path

from fedssl.config import flatten
from fedssl.storage import read_lines
from fedssl.tables.results import Results


def of_runs(results: Results, out: Path) -> dict[str, str]:
    """Return the pictures of the first seed: captions by path relative to the folder `out`."""
    found: dict[str, str] = {}
    for outcome in results.outcomes:
        measure, cell = outcome.cell.measure, outcome.cell
        if measure.kind != "generate" or cell.seed != results.first_seed:
            continue
        asked = (measure.what, dict(flatten(measure.config)))
        for line in read_lines(outcome.path / "generated.jsonl"):
            picture = Path(line["found"].get("picture", ""))
            if (line["what"], line["options"]) == asked and picture.is_file():
                name = f"{cell.row}, {measure.what}: run {outcome.path.name}"
                found[Path(os.path.relpath(picture, out)).as_posix()] = name
    return found


def section(pictures: dict[str, str]) -> str:
    """Format each picture under the name of its run."""
    if not pictures:
        return ""
    shown = "\n\n".join(f"![{name}]({file})\n\n*{name}*" for file, name in pictures.items())
    return f"## Pictures of runs\n\n{shown}"
