"""A table of runs: rows and columns are layers of config, orderings are claims about them.

Describing tables needs neither PyTorch nor the config's parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from fedssl.errors import ConfigError, did_you_mean
from fedssl.options import Options, explain

UNTRAINED = "untrained"  # in an ordering: the number of the untrained encoder
ONLY_COLUMN = "accuracy"  # the column of a table that defines none


class Measure(Options):
    """What the number of a cell measures."""

    kind: Literal[
        "linear",
        "knn",
        "classifier",
        "semi",
        "transfer",
        "generalization",
        "personal",
        "local",
        "style",
        "detection",
        "segmentation",
        "rounds-to",
        "epochs-to",
        "oscillation",
        "drift",
        "drift-from-mean",
        "angle-weights",
        "angle-gamma",
        "angle-beta",
        "mu-capped",
        "predictor-replaced",
        "generate",
        "backdoor",
    ] = "linear"
    target: float | None = Field(
        None, gt=0, lt=1, description="rounds-to, epochs-to: accuracy of the kNN monitor"
    )
    config: dict[str, Any] = Field({}, description="keys for the evaluation only: data.*, probe.*, …")
    style: str = Field("", description="generalization, personal: of this style only; none: the mean")
    what: str = Field("", description="generate: which use of the generators (fid, labels, probe, …)")
    number: str = Field("", description="generate: which of its numbers (mean, clients.0, …)")

    @property
    def counts(self) -> bool:
        """Whether it counts rounds or epochs."""
        return self.kind in ("rounds-to", "epochs-to")

    @property
    def lower_is_better(self) -> bool:
        """Whether smaller numbers are better."""
        error = self.plain and (self.what == "fid" or self.number.startswith("mse"))
        error = error or (self.what == "reidentify" and self.number != "kept")
        return error or self.counts or self.kind in ("oscillation", "drift", "drift-from-mean", "backdoor")

    @property
    def digits(self) -> int:
        """Number of decimals: errors on standardized numbers are small, and angles are close to 1."""
        fine = self.kind.startswith("angle-") or (self.plain and self.what == "simpson")
        return 1 if self.counts else 4 if fine else 2

    @property
    def plain(self) -> bool:
        """Whether the number of `generate` is a distance or an error, not a share shown in percent."""
        return self.kind == "generate" and self.what in ("fid", "simpson")


def as_measure(value: Any) -> Any:
    """Parse a measure; `"knn"` is short for `{ kind = "knn" }`."""
    return {"kind": value} if isinstance(value, str) else value


class Axis(Options):
    """The common fields of rows and columns."""

    name: str
    config: dict[str, Any] = Field({}, description="keys of all its cells")
    measure: dict[str, Any] = Field({}, description="what differs from the table's measure")
    x: float | None = Field(None, description="its position on the x axis of a sweep")

    _short_measure = field_validator("measure", mode="before")(as_measure)


class Column(Axis):
    """One column of the table."""


class Row(Axis):
    """One row of the table, with published numbers by column: a mean, or [mean, spread]."""

    paper: dict[str, tuple[float] | tuple[float, float]] = Field({}, description="the paper's numbers")
    group: str = Field("", description="sweep: rows of a group form one line")

    @field_validator("paper", mode="before")
    @classmethod
    def _lists(cls, value: Any) -> Any:
        given = value if isinstance(value, Mapping) else {ONLY_COLUMN: value}
        return {
            column: number if isinstance(number, list | tuple) else [number]
            for column, number in given.items()
        }


Side = str | float  # a row, a column, "untrained", or a number


class Ordering(Options):
    """A claim: what is better than what, or what increases with x, and where."""

    better: tuple[Side, ...] = Field((), description="rows (or columns); a number; or untrained")
    worse: tuple[Side, ...] = Field((), description="each of `better` is compared with each of these")
    by: float = Field(0.0, description="better by more than this, in the table's unit")
    within: float | None = Field(None, gt=0, description="not worse by more than this (non-inferiority)")
    at_least: int | None = Field(None, ge=1, description="this many of the comparisons must hold")
    monotone: Literal["up", "down"] | None = Field(None, description="numbers increase or decrease with x")
    columns: tuple[str, ...] = Field((), description="where rows are compared; default: in every column")
    rows: tuple[str, ...] = Field((), description="where columns are compared; default: in every row")
    over: str = Field("", description="a row: columns are compared by the gains of other rows over it")
    claim: str = Field("", description="the claim in words")

    _one_or_many = field_validator("better", "worse", mode="before")(
        lambda value: value if isinstance(value, list | tuple) else [value]
    )

    @property
    def margin(self) -> float:
        """What the difference must exceed."""
        return self.by if self.within is None else -self.within


class Figure(Options):
    """How the numbers are drawn."""

    kind: Literal["sweep", "curve", "landscape", "style"]
    y: str = Field("probe.knn", description="curve: key of metrics.jsonl; clients.KEY: one line per client")
    x_label: str = ""
    y_label: str = ""
    columns: tuple[str, ...] = Field((), description="the columns to draw; default: all")
    rows: tuple[str, ...] = Field((), description="the rows to draw; default: all")


class Table(Options):
    """What to run and measure, and the claims about it.

    Names of rows and columns in orderings and figures have to fit: `check` says what does not.
    """

    name: str = Field(description="name of its files, also used in messages")
    origin: str = Field(description="the file it comes from, for messages")
    title: str
    source: str = Field("", description="which table or figure of a paper")
    paper: str = Field("", description="which paper, if there are published numbers")
    notes: str = Field("", description="notes for readers of the numbers")
    scale: str = Field("", description="name of its scale, if there are several")
    command: str = Field("", description="command that runs it, without seeds and overrides")
    measure: dict[str, Any] = Field({}, description="what the numbers measure; default: the linear probe")
    base: dict[str, Any] = Field({}, description="keys of all cells")
    columns: tuple[Column, ...] = (Column(name=ONLY_COLUMN),)
    rows: tuple[Row, ...]
    orderings: tuple[Ordering, ...] = ()
    figure: Figure | None = None

    @property
    def label(self) -> str:
        """`fedema-table3, scale mini`."""
        return f"{self.name}, scale {self.scale}" if self.scale else self.name

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def measure_of(self, row: Row, column: Column) -> Measure:
        """Return the table's measure, changed by the column, then by the row."""
        return Measure(**layers(self.measure, column.measure, row.measure))

    def select(self, rows: str = "", columns: str = "") -> Table:
        """Select the rows and columns that `a,b` names; empty: all. Names may contain commas."""
        chosen = {
            "rows": _named(rows, self.rows, f"{self.label}: unknown row"),
            "columns": _named(columns, self.columns, f"{self.label}: unknown column"),
        }
        return self.model_copy(update={key: parts for key, parts in chosen.items() if parts})


def build(part: type[Options], values: Mapping[str, Any], where: str) -> Any:
    """A part of a table from a file; errors name the place."""
    try:
        return part(**values)
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error, part, '')}") from None


def _named(text: str, parts: Sequence[Axis], problem: str) -> tuple[Axis, ...]:
    """Return the parts named in a comma-separated list, in the table's order."""
    names = [part.name for part in parts]
    pieces = text.split(",") if text else []
    found = []
    while pieces:
        # Match the longest name first: `K = 5, 10 %` is one column, not two.
        lengths = [n for n in range(len(pieces), 0, -1) if ",".join(pieces[:n]).strip() in names]
        if not lengths:
            raise ConfigError(f"{problem} {pieces[0].strip()!r}: {did_you_mean(pieces[0].strip(), names)}")
        found.append(",".join(pieces[: lengths[0]]).strip())
        pieces = pieces[lengths[0] :]
    return tuple(part for part in parts if part.name in found)


# --- consistency of names ------------------------------------------------------------------------


def check(
    rows: Sequence[Row],
    columns: Sequence[Column],
    measure: Mapping[str, Any],
    orderings: Sequence[Ordering],
    figure: Figure | None,
    where: str,
) -> None:
    """Check that names are unique and known and measures complete; `where` starts the error message."""
    row_names, column_names = [row.name for row in rows], [column.name for column in columns]
    for kind, names in (("row", row_names), ("column", column_names)):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or UNTRAINED in names:
            raise ConfigError(
                f"{where}: two {kind}s {twice[0]!r}" if twice else f"{where}: {UNTRAINED!r} is taken"
            )
    for row in rows:
        _known(row.paper, column_names, f"{where}: row {row.name!r}: paper: unknown column")
        for column in columns:
            at = f"{where}: row {row.name!r}, column {column.name!r}: measure"
            _check_measure(build(Measure, layers(measure, column.measure, row.measure), at), at)
    has_x = any(part.x is not None for part in (*rows, *columns))
    for number, ordering in enumerate(orderings, start=1):
        at = f"{where}: ordering {ordering.claim or number!r}"
        _check_ordering(ordering, row_names, column_names, has_x, at)
    if figure is not None:
        _known(figure.columns, column_names, f"{where}: figure: unknown column")
        _known(figure.rows, row_names, f"{where}: figure: unknown row")
        if figure.kind == "sweep" and not has_x:
            raise ConfigError(f"{where}: figure: a sweep needs `x` in its rows or columns")


def layers(*measures: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a later measure into an earlier one, including `config` key by key."""
    merged = {key: value for measure in measures for key, value in measure.items()}
    config = {key: value for measure in measures for key, value in measure.get("config", {}).items()}
    return {**merged, "config": config} if config else merged


def _check_measure(measure: Measure, at: str) -> None:
    if measure.counts and measure.target is None:
        raise ConfigError(f"{at}: {measure.kind} needs a target, such as 0.7")
    if measure.kind == "generate" and not (measure.what and measure.number):
        raise ConfigError(f'{at}: generate needs `what` and `number`, such as "fid" and "mean"')


def _check_ordering(
    ordering: Ordering, rows: Sequence[str], columns: Sequence[str], has_x: bool, at: str
) -> None:
    _check_relation(ordering, at)
    _known(ordering.columns, columns, f"{at}: unknown column")
    _known(ordering.rows, rows, f"{at}: unknown row")
    if ordering.monotone:
        if not has_x:
            raise ConfigError(f"{at}: monotone needs `x` in the rows or columns")
        return
    sides = [side for side in (*ordering.better, *ordering.worse) if isinstance(side, str)]
    by_column = any(side in columns for side in sides) and not any(side in rows for side in sides)
    axis = columns if by_column else rows
    _known(sides, [*axis, UNTRAINED], f"{at}: unknown {'row' if axis is rows else 'column'}")
    if ordering.over:
        _known([ordering.over], rows, f"{at}: over: unknown row")
        if not by_column or UNTRAINED in sides:
            raise ConfigError(f"{at}: over compares the gains of columns: set columns instead of rows")
    if all(side == UNTRAINED for side in sides):
        raise ConfigError(f"{at}: set at least one row or column")


def _check_relation(ordering: Ordering, at: str) -> None:
    if ordering.monotone and (ordering.better or ordering.worse or ordering.over):
        raise ConfigError(f"{at}: monotone cannot be combined with better, worse or over")
    if not ordering.monotone and not (ordering.better and ordering.worse):
        raise ConfigError(f"{at}: set better and worse, or monotone")
    if ordering.within is not None and (ordering.by or ordering.monotone):
        raise ConfigError(f"{at}: within does not go with {'monotone' if ordering.monotone else 'by'}")


def _known(names: Iterable[Any], known: Iterable[str], problem: str) -> None:
    right = list(known)
    for name in names:
        if name not in right:
            raise ConfigError(f"{problem} {name!r}: {did_you_mean(str(name), right)}")
