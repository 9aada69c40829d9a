"""A recipe: a table or figure of a paper, as rows and columns of configs (see docs/recipes.md).

Reading recipes needs neither PyTorch nor the config's parts, so that `fedssl list recipes` answers at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from fedssl.errors import ConfigError, did_you_mean
from fedssl.options import Options, explain
from fedssl.papers.files import find, read, recipe_files

Scale = Literal["smoke", "mini", "midi", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "mini", "midi", "paper")
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
    """A claim of the paper: what is better than what, or what rises with x, and where."""

    better: tuple[Side, ...] = Field((), description="rows (or columns); a number; or untrained")
    worse: tuple[Side, ...] = Field((), description="each of `better` is compared with each of these")
    by: float = Field(0.0, description="better by more than this, in the table's unit")
    within: float | None = Field(None, gt=0, description="not worse by more than this (non-inferiority)")
    at_least: int | None = Field(None, ge=1, description="this many of the comparisons have to hold")
    monotone: Literal["up", "down"] | None = Field(None, description="numbers rise or fall with x")
    columns: tuple[str, ...] = Field((), description="where rows are compared; none: in every column")
    rows: tuple[str, ...] = Field((), description="where columns are compared; none: in every row")
    over: str = Field("", description="a row: columns are compared by what others gain over it")
    claim: str = Field("", description="the paper's words")

    _one_or_many = field_validator("better", "worse", mode="before")(
        lambda value: value if isinstance(value, list | tuple) else [value]
    )

    @property
    def margin(self) -> float:
        """What the difference has to exceed."""
        return self.by if self.within is None else -self.within


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

    def select(self, scale: Scale, rows: str = "", columns: str = "") -> Recipe:
        """Only the rows and columns that `a,b` names; empty: all of them. Names may contain commas."""
        chosen = {
            "rows": _named(rows, self.rows_at(scale), f"{self.name}, scale {scale}: unknown row"),
            "columns": _named(columns, self.columns_at(scale), f"{self.name}, scale {scale}: unknown column"),
        }
        return self.model_copy(update={key: parts for key, parts in chosen.items() if parts})


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
        _check_relation(ordering, at)
        _known(ordering.columns, columns, f"{at}: unknown column")
        _known(ordering.rows, rows, f"{at}: unknown row")
        if ordering.monotone:
            if all(part.x is None for part in (*recipe.rows, *recipe.columns)):
                raise ConfigError(f"{at}: monotone needs `x` in the rows or in the columns")
            continue
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


def _check_relation(ordering: Ordering, at: str) -> None:
    if ordering.monotone and (ordering.better or ordering.worse or ordering.over):
        raise ConfigError(f"{at}: monotone takes no better, worse or over")
    if not ordering.monotone and not (ordering.better and ordering.worse):
        raise ConfigError(f"{at}: give better and worse, or monotone")
    if ordering.within is not None and (ordering.by or ordering.monotone):
        raise ConfigError(f"{at}: within does not go with {'monotone' if ordering.monotone else 'by'}")


def _named(text: str, parts: Sequence[_Axis], problem: str) -> tuple[_Axis, ...]:
    """The parts that a list with commas names, in the recipe's order."""
    names = [part.name for part in parts]
    pieces = text.split(",") if text else []
    found = []
    while pieces:
        # The longest name first: `K = 5, 10 %` is one column, not two.
        lengths = [n for n in range(len(pieces), 0, -1) if ",".join(pieces[:n]).strip() in names]
        if not lengths:
            raise ConfigError(f"{problem} {pieces[0].strip()!r}: {did_you_mean(pieces[0].strip(), names)}")
        found.append(",".join(pieces[: lengths[0]]).strip())
        pieces = pieces[lengths[0] :]
    return tuple(part for part in parts if part.name in found)


def _known(names: Iterable[Any], known: Iterable[str], problem: str) -> None:
    right = list(known)
    for name in names:
        if name not in right:
            raise ConfigError(f"{problem} {name!r}: {did_you_mean(str(name), right)}")
