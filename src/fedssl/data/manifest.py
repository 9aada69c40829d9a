"""Images listed in a CSV or Parquet file, one per row.

Columns: `path`, relative to the table's folder, and optionally `site`, `label` and `split` (`train` or
`test`; rows of other splits are ignored). `data.columns` maps other names: `path=file,label=finding`.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedssl.data.cache import Listing
from fedssl.data.files import Table, listings
from fedssl.errors import ConfigError, DataError, did_you_mean

if TYPE_CHECKING:
    from fedssl.data.options import DataConfig
    from fedssl.progress import Progress

COLUMNS = ("path", "site", "label", "split")
SPLITS = ("train", "test")

Rows = Mapping[str, Sequence[str]]  # columns by name


def load(config: DataConfig, progress: Progress | None = None) -> tuple[Listing, Listing | None]:
    """List the images of the table `data.root`, to be decoded later."""
    file = Path(config.root).expanduser()
    if not config.root or not file.is_file():
        raise DataError(f"no file {config.root!r}: set data.root to a table of images, .csv or .parquet")
    rows = read_table(file)
    names = _chosen(config.columns, rows, file)
    kept, notes = _kept(rows, names, file)

    def column(what: str) -> list[str] | None:
        return [rows[names[what]][row] for row in kept] if what in names else None

    paths, split = column("path"), column("split")
    assert paths is not None
    table = Table(
        [file.parent / path for path in paths],
        labels=column("label"),
        sites=column("site"),
        test=None if split is None else [value == "test" for value in split],
    )
    return listings(table, file.parent, config, notes, progress)


def read_table(file: Path) -> dict[str, list[str]]:
    """Read the columns of a CSV or Parquet file as text; missing values are empty."""
    try:
        if file.suffix == ".parquet":
            import pyarrow.parquet

            found = pyarrow.parquet.read_table(file).to_pydict()
            return {
                name: ["" if value is None else str(value) for value in values]
                for name, values in found.items()
            }
        with open(file, newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened)
            names, rows = reader.fieldnames or (), list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{file} cannot be read as a table: {error}") from error
    return {name: [row[name] or "" for row in rows] for name in names}


def need_columns(rows: Rows, names: Sequence[str], file: Path) -> None:
    """Raise a DataError if a column is missing."""
    for name in names:
        if name not in rows:
            raise DataError(f"{file} has no column {name!r}: {did_you_mean(name, rows)}")


def _chosen(columns: str, rows: Rows, file: Path) -> dict[str, str]:
    """The names of the columns by their meaning."""
    names = {what: what for what in COLUMNS if what in rows}
    for pair in filter(None, columns.split(",")):
        what, equals, name = (part.strip() for part in pair.partition("="))
        if not equals or what not in COLUMNS:
            raise ConfigError(f"data.columns={columns!r}: write WHAT=COLUMN,…; WHAT is {', '.join(COLUMNS)}")
        need_columns(rows, [name], file)
        names[what] = name
    if "path" not in names:
        raise DataError(f"{file} has no column 'path', only {', '.join(rows)}; data.columns names another")
    return names


def _kept(rows: Rows, names: Mapping[str, str], file: Path) -> tuple[list[int], list[str]]:
    """The rows that are used, and notes about the others."""
    paths = rows[names["path"]]
    split = rows[names["split"]] if "split" in names else ["train"] * len(paths)
    kept = [row for row in range(len(paths)) if split[row] in SPLITS]
    if not any(split[row] == "train" for row in kept):
        raise DataError(f"{file} lists no images to train on")
    others = Counter(value for value in split if value not in SPLITS)
    notes = [f"{count} rows of split {value!r} are left out" for value, count in sorted(others.items())]
    for what in ("site", "label"):
        empty = sum(not rows[names[what]][row] for row in kept) if what in names else 0
        if empty:
            notes.append(f"{empty} rows have no {what}; they form a separate {what}")
    return kept, notes
