"""A recipe: a table or figure of a paper, as rows and columns of configs (see docs/recipes.md).

Reading recipes needs neither PyTorch nor the config's parts, so that `fedssl list recipes` answers at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from fedssl.errors import ConfigError, did_you_mean
from fedssl.options import Options, explain
from fedssl.papers.files import find, read, recipe_files

Scale = Literal["smoke", "mini", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "mini", "paper")
UNTRAINED = "untrained"  # in an ordering: the number of the same encoder before training
ONLY_COLUMN = "accuracy"  # the column of a recipe that names none


class Measure(Options):
    """What the number of a cell is."""

    kind: Literal[
        "linear",
        "knn",
        "classifier",
        "semi",
        "transfer",
        "generalization",
        "personal",
        "style",
        "detection",
        "segmentation",
        "rounds-to",
        "epochs-to",
        "oscillation",
        "drift",
        "generate",
    ] = "linear"
    target: float | None = Field(
        None, gt=0, lt=1, description="rounds-to, epochs-to: accuracy of the kNN monitor"
    )
    config: dict[str, Any] = Field({}, description="keys for the evaluation alone: data.*, probe.*, …")
    style: str = Field("", description="generalization, personal: of this style alone; none: the mean")
    what: str = Field("", description="generate: what is asked of the generators (fid, labels, probe, …)")
    number: str = Field("", description="generate: which of its numbers (mean, clients.0, …)")

    @property
    def counts(self) -> bool:
        """Whether it counts rounds or epochs."""
        return self.kind in ("rounds-to", "epochs-to")

    @property
    def fewer(self) -> bool:
        """Whether the smaller number is the better one."""
        error = self.plain and (self.what == "fid" or self.number.startswith("mse"))
        return error or self.counts or self.kind in ("oscillation", "drift")

    @property
    def digits(self) -> int:
        """Behind the point: errors on standardised numbers are small."""
        return 1 if self.counts else 4 if self.plain and self.what == "simpson" else 2

    @property
    def plain(self) -> bool:
        """Whether `generate` finds distances and errors there, and not shares that are shown in percent."""
        return self.kind == "generate" and self.what in ("fid", "simpson")


class _Axis(Options):
    """What rows and columns have in common."""

    name: str
    config: dict[str, Any] = Field({}, description="keys at every scale")
    scale: dict[Scale, dict[str, Any]] = Field({}, description="further keys at one scale")
    scales: tuple[Scale, ...] = Field(SCALES, description="the scales that have it")
    measure: dict[str, Any] = Field({}, description="what differs from the recipe's measure")
    x: float | None = Field(None, description="its place on the x axis of a sweep")

    _short_measure = field_validator("measure", mode="before")(lambda value: _measure(value))


class Column(_Axis):
    """One column of the table."""


class Row(_Axis):
    """One row of the table, with the numbers of the paper by column: a mean, or [mean, spread]."""

    paper: dict[str, tuple[float] | tuple[float, float]] = Field({}, description="the paper's numbers")
    group: str = Field("", description="sweep: rows of a group are one line")

    @field_validator("paper", mode="before")
    @classmethod
    def _lists(cls, value: Any) -> Any:
        given = value if isinstance(value, Mapping) else {ONLY_COLUMN: value}
        return {column: number if isinstance(number, list) else [number] for column, number in given.items()}


Side = str | float  # a row, a column, "untrained", or a number


class Ordering(Options):
    """A claim of the paper: what is better than what, and where."""

    better: tuple[Side, ...] = Field(description="rows (or columns); a number; or untrained")
    worse: tuple[Side, ...] = Field(description="each of `better` is compared with each of these")
    relation: Literal[">", ">="] = Field(">", description=">=: a tie is enough")
    by: float = Field(0.0, description="the difference must be at least this, in the table's unit")
    columns: tuple[str, ...] = Field((), description="where rows are compared; none: in every column")
    rows: tuple[str, ...] = Field((), description="where columns are compared; none: in every row")
    over: str = Field("", description="a row: columns are compared by what others gain over it")
    claim: str = Field("", description="the paper's words")

    _one_or_many = field_validator("better", "worse", mode="before")(
        lambda value: value if isinstance(value, list | tuple) else [value]
    )


class Figure(Options):
    """How the numbers are drawn."""

    kind: Literal["sweep", "curve", "landscape", "style"]
    y: str = Field("probe.knn", description="curve: key of metrics.jsonl; clients.KEY: one line a client")
    x_label: str = ""
    y_label: str = ""
    columns: tuple[str, ...] = Field((), description="the columns drawn; none: all")
    rows: tuple[str, ...] = Field((), description="the rows drawn; none: all")


class Recipe(Options):
    """What to run, what the paper found, and what it claims."""

    name: str
    file: Path
    title: str
    paper: str = Field("", description="which paper")
    source: str = Field("", description="which table or figure of it")
    notes: str = Field("", description="what a reader of the numbers should know")
    measure: dict[str, Any] = Field({}, description="what the numbers are; default: the linear probe")
    base: dict[str, Any] = Field({}, description="keys of every cell")
    scale: dict[Scale, dict[str, Any]] = Field({}, description="further keys at one scale")
    scales: tuple[Scale, ...] = Field(SCALES, description="the scales it can run at")
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    orderings: tuple[Ordering, ...] = ()
    figure: Figure | None = None

    def rows_at(self, scale: Scale) -> list[Row]:
        return [row for row in self.rows if scale in row.scales]

    def columns_at(self, scale: Scale) -> list[Column]:
        return [column for column in self.columns if scale in column.scales]

    def measure_of(self, row: Row, column: Column) -> Measure:
        """The recipe's measure, changed by the column, then by the row."""
        return Measure(**{**self.measure, **column.measure, **row.measure})

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)


# --- reading ------------------------------------------------------------------------------------

KEYS = ("title", "paper", "source", "notes", "extends", "measure", "base", "scale", "scales")
TABLES = ("column", "row", "ordering", "figure")


def titles() -> dict[str, str]:
    """Every recipe with its title; files without rows are there to be extended."""
    found = {name: read(file) for name, file in recipe_files().items()}
    return {name: _heading(values) for name, values in found.items() if "row" in values}


def load(name: str) -> Recipe:
    """A recipe by name, or from a TOML file of yours."""
    file = find(name, titles)
    values = _extended(file)
    where = file.name
    for key in values:
        if key not in KEYS + TABLES:
            raise ConfigError(f"{where}: unknown key {key!r}: {did_you_mean(key, KEYS + TABLES)}")
    if not values.get("row"):
        raise ConfigError(f"{where}: a recipe needs at least one [[row]]")
    head = {key: value for key, value in values.items() if key in KEYS and key != "extends"}
    head["measure"] = _measure(values.get("measure", {}))
    recipe: Recipe = _build(
        Recipe,
        {
            **head,
            "name": file.stem,
            "file": file,
            "columns": _parts(Column, values.get("column", [{"name": ONLY_COLUMN}]), f"{where}: column"),
            "rows": _parts(Row, values["row"], f"{where}: row"),
            "orderings": _parts(Ordering, values.get("ordering", []), f"{where}: ordering"),
            "figure": _build(Figure, values["figure"], f"{where}: figure") if "figure" in values else None,
        },
        where,
    )
    _check(recipe, where)
    return recipe


def _extended(file: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The file's values over those of the file it extends."""
    values = read(file)
    if "extends" not in values:
        return values
    under = find(str(values["extends"]), recipe_files, beside=file.parent)
    if under in (file, *above):
        raise ConfigError(f"{file.name}: extends {under.name}, which extends it in turn")
    return _over(_extended(under, (file, *above)), values)


def _over(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = _over(below, value) if both else value  # type: ignore[arg-type]
    return merged


def _heading(values: Mapping[str, Any]) -> str:
    source = values.get("source")
    return f"{source}: {values.get('title', '')}" if source else str(values.get("title", ""))


def _measure(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


def _build(part: type[Options], values: Mapping[str, Any], where: str) -> Any:
    try:
        return part(**values)
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error, part, '')}") from None


def _parts(part: type[Options], listed: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(listed, list):
        raise ConfigError(f"{where}: write [[{where.rsplit(' ', 1)[-1]}]], with two brackets")
    return tuple(
        _build(part, values, f"{where} {values.get('name', number)!r}")
        for number, values in enumerate(listed, start=1)
    )


# --- names that must fit each other ---------------------------------------------------------------


def _check(recipe: Recipe, where: str) -> None:
    rows, columns = [row.name for row in recipe.rows], [column.name for column in recipe.columns]
    for kind, names in (("row", rows), ("column", columns)):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or UNTRAINED in names:
            raise ConfigError(
                f"{where}: two {kind}s {twice[0]!r}" if twice else f"{where}: {UNTRAINED!r} is taken"
            )
    for row in recipe.rows:
        _known(row.paper, columns, f"{where}: row {row.name!r}: paper: unknown column")
        for column in recipe.columns:
            at = f"{where}: row {row.name!r}, column {column.name!r}: measure"
            measure: Measure = _build(Measure, {**recipe.measure, **column.measure, **row.measure}, at)
            if measure.counts and measure.target is None:
                raise ConfigError(f"{at}: {measure.kind} needs a target, such as 0.7")
            if measure.kind == "generate" and not (measure.what and measure.number):
                raise ConfigError(f'{at}: generate needs a what and a number, such as "fid" and "mean"')
    for number, ordering in enumerate(recipe.orderings, start=1):
        at = f"{where}: ordering {ordering.claim or number!r}"
        _known(ordering.columns, columns, f"{at}: unknown column")
        _known(ordering.rows, rows, f"{at}: unknown row")
        sides = [side for side in (*ordering.better, *ordering.worse) if isinstance(side, str)]
        by_column = any(side in columns for side in sides) and not any(side in rows for side in sides)
        axis = columns if by_column else rows
        _known(sides, [*axis, UNTRAINED], f"{at}: unknown {'row' if axis is rows else 'column'}")
        if ordering.over:
            _known([ordering.over], rows, f"{at}: over: unknown row")
            if not by_column or UNTRAINED in sides:
                raise ConfigError(f"{at}: over compares the gains of columns, so name columns")
        if all(side == UNTRAINED for side in sides):
            raise ConfigError(f"{at}: name at least one row or column")
    if recipe.figure is not None:
        _known(recipe.figure.columns, columns, f"{where}: figure: unknown column")
        _known(recipe.figure.rows, rows, f"{where}: figure: unknown row")
        if recipe.figure.kind == "sweep" and all(part.x is None for part in (*recipe.rows, *recipe.columns)):
            raise ConfigError(f"{where}: figure: a sweep needs `x` in its rows or in its columns")


def _known(names: Iterable[Any], known: Iterable[str], problem: str) -> None:
    right = list(known)
    for name in names:
        if name not in right:
            raise ConfigError(f"{problem} {name!r}: {did_you_mean(str(name), right)}")


# --- orderings, pair by pair ----------------------------------------------------------------------


class Place(Options):
    """One side of a comparison: a cell (or the untrained encoder there), or a number."""

    row: str = ""
    column: str = ""
    untrained: bool = False
    number: float | None = None
    over: str = ""  # the row whose number, in the same column, is taken off


class Comparison(Options):
    """One pair of an ordering, in one place."""

    text: str
    claim: str
    where: str
    better: Place
    worse: Place
    relation: Literal[">", ">="]
    by: float
    fewer: bool  # the smaller number is the better one


def comparisons(recipe: Recipe, scale: Scale) -> Iterator[Comparison]:
    """Every pair of every ordering whose cells exist at this scale."""
    rows = {row.name: row for row in recipe.rows_at(scale)}
    columns = {column.name: column for column in recipe.columns_at(scale)}
    for ordering in recipe.orderings:
        sides = (*ordering.better, *ordering.worse)
        by_row = any(side in {row.name for row in recipe.rows} for side in sides)
        places = (ordering.columns or columns) if by_row else (ordering.rows or rows)
        for where, better, worse in itertools.product(places, ordering.better, ordering.worse):
            pair = tuple(
                _place(side, other, where, by_row, ordering.over)
                for side, other in ((better, worse), (worse, better))
            )
            cells = [place for place in pair if place.number is None]
            if where != ordering.over and all(
                {place.row, place.over or place.row} <= rows.keys() and place.column in columns
                for place in cells
            ):
                fewer = recipe.measure_of(rows[cells[0].row], columns[cells[0].column]).fewer
                yield Comparison(
                    text=_text(better, worse, ordering, fewer),
                    claim=ordering.claim,
                    where=where,
                    better=pair[0],
                    worse=pair[1],
                    relation=ordering.relation,
                    by=ordering.by,
                    fewer=fewer,
                )


def _place(side: Side, other: Side, where: str, by_row: bool, over: str) -> Place:
    if not isinstance(side, str):
        return Place(number=side)
    untrained = side == UNTRAINED
    name = str(other) if untrained else side
    row, column = (name, where) if by_row else (where, name)
    return Place(row=row, column=column, untrained=untrained, over=over)


def _text(better: Side, worse: Side, ordering: Ordering, fewer: bool) -> str:
    """`a > b`; of rounds, fewer are better: `a < b`."""
    signs = {">": "<", ">=": "≤"} if fewer else {">": ">", ">=": "≥"}
    more = ordering.by < 0 if fewer else ordering.by > 0
    margin = f" {'+' if more else '−'} {abs(ordering.by):g}" if ordering.by else ""
    gain = f" in gain over {ordering.over}" if ordering.over else ""
    return f"{better} {signs[ordering.relation]} {worse}{margin}{gain}"
