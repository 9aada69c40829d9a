"""The orderings of a table as contrasts of cells: Σ weight · number must exceed a margin."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedssl.statistics import trend_weights
from fedssl.tables.table import UNTRAINED, Column, Ordering, Row, Side, Table


@dataclass(frozen=True)
class Place:
    """One side of a comparison: a cell (or the untrained encoder there), or a number."""

    row: str = ""
    column: str = ""
    untrained: bool = False
    number: float | None = None
    over: str = ""  # the row that is subtracted from this one, in the same column


@dataclass(frozen=True)
class Comparison:
    """One test of an ordering, at one position in the table.

    A pair has the weights 1 and −1 (reversed where smaller numbers are better), a trend the weights of the
    slope over the rank of x.
    """

    text: str
    claim: str
    where: str
    terms: tuple[tuple[float, Place], ...]
    margin: float
    lower_is_better: bool = False  # smaller numbers are better


@dataclass(frozen=True)
class Group:
    """The comparisons of one ordering at a scale; with `at_least`, they form a single claim."""

    ordering: Ordering
    comparisons: tuple[Comparison, ...]

    @property
    def text(self) -> str:
        return f"at least {self.ordering.at_least} of {len(self.comparisons)}"


def groups(table: Table) -> list[Group]:
    """Return every ordering for which there is something to compare."""
    found = [
        Group(ordering, tuple((_trends if ordering.monotone else _pairs)(ordering, table)))
        for ordering in table.orderings
    ]
    return [group for group in found if len(group.comparisons) >= (group.ordering.at_least or 1)]


def comparisons(table: Table) -> list[Comparison]:
    """Return every comparison of every ordering whose cells exist."""
    return [comparison for group in groups(table) for comparison in group.comparisons]


# --- pairs ----------------------------------------------------------------------------------------


def _pairs(ordering: Ordering, table: Table) -> Iterator[Comparison]:
    rows = {row.name: row for row in table.rows}
    columns = {column.name: column for column in table.columns}
    sides = (*ordering.better, *ordering.worse)
    by_row = any(side in {row.name for row in table.rows} for side in sides)
    places = (ordering.columns or columns) if by_row else (ordering.rows or rows)
    for where, better, worse in itertools.product(places, ordering.better, ordering.worse):
        pair = [
            _place(side, other, where, by_row, ordering.over)
            for side, other in ((better, worse), (worse, better))
        ]
        cells = [place for place in pair if place.number is None]
        if where == ordering.over or not all(_exists(place, rows, columns) for place in cells):
            continue
        lower_is_better = table.measure_of(rows[cells[0].row], columns[cells[0].column]).lower_is_better
        sign = -1.0 if lower_is_better else 1.0
        yield Comparison(
            text=_text(better, worse, ordering, lower_is_better),
            claim=ordering.claim,
            where=where,
            terms=((sign, pair[0]), (-sign, pair[1])),
            margin=ordering.margin,
            lower_is_better=lower_is_better,
        )


def _place(side: Side, other: Side, where: str, by_row: bool, over: str) -> Place:
    if not isinstance(side, str):
        return Place(number=side)
    untrained = side == UNTRAINED
    name = str(other) if untrained else side
    row, column = (name, where) if by_row else (where, name)
    return Place(row=row, column=column, untrained=untrained, over=over)


def _exists(place: Place, rows: Mapping[str, Row], columns: Mapping[str, Column]) -> bool:
    return {place.row, place.over or place.row} <= rows.keys() and place.column in columns


def _text(better: Side, worse: Side, ordering: Ordering, lower_is_better: bool) -> str:
    """Format as `a > b + 2`; if smaller numbers are better, `a < b − 2`; or `a within 0.5 of b`."""
    gain = f" in gain over {ordering.over}" if ordering.over else ""
    if ordering.within is not None:
        return f"{better} within {ordering.within:g} of {worse}{gain}"
    more = ordering.by < 0 if lower_is_better else ordering.by > 0
    margin = f" {'+' if more else '−'} {abs(ordering.by):g}" if ordering.by else ""
    return f"{better} {'<' if lower_is_better else '>'} {worse}{margin}{gain}"


# --- trends ---------------------------------------------------------------------------------------


def _trends(ordering: Ordering, table: Table) -> Iterator[Comparison]:
    """Compare over the columns' x in every row, or else over the rows' x in every column and group."""
    rows = [row for row in table.rows if row.name in (ordering.rows or [row.name])]
    columns = [column for column in table.columns if column.name in (ordering.columns or [column.name])]
    swept = [column for column in columns if column.x is not None]
    if swept:
        for row in rows:
            yield from _trend(ordering, row.name, [(row, column) for column in swept], swept)
        return
    steps = [row for row in rows if row.x is not None]
    for column, name in itertools.product(columns, dict.fromkeys(row.group for row in steps)):
        line = [row for row in steps if row.group == name]
        where = ", ".join(part for part in (name, column.name) if part)
        yield from _trend(ordering, where, [(row, column) for row in line], line)


def _trend(
    ordering: Ordering, where: str, cells: Sequence[tuple[Row, Column]], axis: Sequence[Row | Column]
) -> Iterator[Comparison]:
    xs = [part.x for part in axis if part.x is not None]
    if len(set(xs)) < 2:
        return
    sign = 1.0 if ordering.monotone == "up" else -1.0
    places = [Place(row=row.name, column=column.name) for row, column in cells]
    margin = f" by more than {ordering.by:g} a step" if ordering.by else ""
    yield Comparison(
        text=f"{'rises' if sign > 0 else 'falls'} from {axis[xs.index(min(xs))].name} "
        f"to {axis[xs.index(max(xs))].name}{margin}",
        claim=ordering.claim,
        where=where,
        terms=tuple((sign * weight, place) for weight, place in zip(trend_weights(xs), places, strict=True)),
        margin=ordering.margin,
    )
