"""Tables as files: CSV, LaTeX, Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedssl.errors import ConfigError
from fedssl.storage import write_text

SUFFIXES = (".csv", ".tex", ".md")
TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "–": "--",
    "·": r"$\cdot$",
    "<": r"$<$",
    ">": r"$>$",
}


@dataclass(frozen=True)
class Sheet:
    """A table of texts, with records of plain values.

    Attributes:
        title: the title.
        head: names of the columns; the first column has the names of the rows.
        body: the text of each cell, row by row.
        records: the numbers behind the texts; one mapping per line of a CSV file.
    """

    title: str
    head: Sequence[str]
    body: Sequence[Sequence[str]]
    records: Sequence[Mapping[str, Any]] = ()


def is_sheet(file: str | Path) -> bool:
    """Whether a file name asks for a table rather than a page."""
    return Path(file).suffix in SUFFIXES


def write_sheets(sheets: Sequence[Sheet], file: str | Path) -> None:
    """Write tables in the format given by the file's suffix."""
    path = Path(file)
    writers = {".csv": as_csv, ".tex": as_latex, ".md": as_markdown}
    if path.suffix not in writers:
        raise ConfigError(f"-o {file}: the file must end in {', '.join((*SUFFIXES, '.html'))}")
    write_text(path, writers[path.suffix](sheets))


def as_csv(sheets: Sequence[Sheet]) -> str:
    """Write the records of all tables, under the union of their columns."""
    records = [record for sheet in sheets for record in sheet.records]
    names = list(dict.fromkeys(name for record in records for name in record))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def as_markdown(sheets: Sequence[Sheet]) -> str:
    return "\n\n".join(f"**{sheet.title}**\n\n{grid(sheet)}" for sheet in sheets) + "\n"


def grid(sheet: Sheet) -> str:
    """Format a Markdown table with aligned columns, so that it is readable as plain text."""
    lines = [[cell.replace("|", "\\|") for cell in line] for line in (sheet.head, *sheet.body)]
    widths = [max(3, *(len(line[place]) for line in lines)) for place in range(len(sheet.head))]
    texts = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([texts[0], rule, *texts[1:]])


def as_latex(sheets: Sequence[Sheet]) -> str:
    """Format tables with the rules of the package booktabs."""
    return "\n".join(_latex(sheet) for sheet in sheets)


def _latex(sheet: Sheet) -> str:
    rows = [" & ".join(map(escape, line)) + r" \\" for line in sheet.body]
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        rf"  \caption{{{escape(sheet.title)}}}",
        rf"  \begin{{tabular}}{{l{'r' * (len(sheet.head) - 1)}}}",
        r"    \toprule",
        "    " + " & ".join(map(escape, sheet.head)) + r" \\",
        r"    \midrule",
        *(f"    {row}" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Escape LaTeX's special characters."""
    return "".join(TEX.get(letter, letter) for letter in text)
