"""The figure of a table: a sweep over a number (bars if there is only one), or curves over rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedssl.statistics import Summary, mean_and_spread
from fedssl.tables.curves import CLIENTS
from fedssl.tables.results import Results
from fedssl.tables.table import Column, Figure, Row

Points = Mapping[float, Sequence[float] | Summary]  # by x, one y per seed, or their mean

LABELS = {
    "probe.knn": "kNN accuracy",
    "probe.feature_std": "spread of features (0: collapsed)",
    "divergence": "divergence",
    "drift": "d_w(global, local)",
    "loss": "loss",
}


def draw(results: Results, file: Path) -> bool:
    """Write the PNG; false if there is nothing to draw yet."""
    figure = results.table.figure
    assert figure is not None
    found = curves(results, figure) if figure.kind == "curve" else sweeps(results, figure)
    if not any(found.values()):
        return False
    plot, axes = _axes()
    xs = sorted({x for points in found.values() for x in points})
    if figure.kind == "curve":
        for number, (name, points) in enumerate(found.items()):
            _line(axes, name, points, number, band=True)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel(figure.x_label or "round")
    elif len(xs) == 1:
        bar_chart(axes, results, figure)
    else:
        _sweep(axes, results, figure, found)
        if _spans_decades(xs):
            axes.set_xscale("log")
            axes.set_xticks(xs, [f"{x:g}" for x in xs])
            axes.set_xticks([], minor=True)
        axes.set_xlabel(figure.x_label)
    counts = results.measure(results.rows[0], results.columns[0]).counts
    y_label = (
        LABELS.get(figure.y, figure.y) if figure.kind == "curve" else "rounds" if counts else "accuracy, %"
    )
    axes.set_ylabel(figure.y_label or y_label)
    seeds = "1 seed" if results.seeds == 1 else f"{results.seeds} seeds, ± standard deviation"
    tuning = ", tuning" * results.tuning
    axes.set_title(f"{caption(results)}{tuning} ({seeds})", fontsize=10)
    if len(found) > 1 or figure.kind == "sweep":
        plot.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    plot.savefig(file, dpi=150)
    return True


def caption(results: Results) -> str:
    """`Table 3, scale mini`."""
    table = results.table
    return f"{table.source or table.name}, scale {table.scale}" if table.scale else table.source or table.name


# --- data -----------------------------------------------------------------------------------------


def sweeps(results: Results, figure: Figure) -> Mapping[str, Points]:
    """Return lines over the rows' x (one per group and column), or over the columns' x (one per row)."""
    found: dict[str, dict[float, Sequence[float] | Summary]] = {}
    for row, column in _drawn(results, figure):
        x, name = _spot(row, column, results)
        if x is not None:
            numbers = results.known(row.name, column.name)
            if numbers is not None:
                found.setdefault(name, {})[x] = numbers
    return found


def papers(results: Results, figure: Figure) -> dict[str, dict[float, float]]:
    """Return the paper's numbers for the same lines."""
    found: dict[str, dict[float, float]] = {name: {} for name in sweeps(results, figure)}
    for row, column in _drawn(results, figure):
        x, name = _spot(row, column, results)
        if x is not None and name in found and column.name in row.paper:
            found[name][x] = row.paper[column.name][0]
    return found


def levels(results: Results, figure: Figure) -> dict[str, float]:
    """Return rows without x in a sweep over rows, which are drawn as horizontal lines."""
    found = {}
    for row, column in _drawn(results, figure):
        numbers = results.known(row.name, column.name)
        if _spot(row, column, results)[0] is None and numbers is not None:
            found[_named(row.name, column, results)] = mean_and_spread(numbers)[0]
    return found


def curves(results: Results, figure: Figure) -> Mapping[str, Points]:
    """Return a line over rounds for each row and column; with `clients.KEY`, for each client."""
    found: dict[str, dict[float, list[float]]] = {}
    per_client = figure.y.startswith(CLIENTS)
    alone = len(list(_drawn(results, figure))) == 1
    for row, column in _drawn(results, figure):
        name = _named(row.name, column, results)
        for outcome in results.at(row.name, column.name):
            if not outcome.error:
                for number, whose, value in outcome.points(figure.y):
                    client = f"client {whose}" if alone else f"{name}, client {whose}"
                    label = client if per_client else name
                    points = found.setdefault(label, defaultdict(list))
                    points[number].append(value)
    return found


def _drawn(results: Results, figure: Figure) -> Iterator[tuple[Row, Column]]:
    for row in results.table.rows:
        for column in results.table.columns:
            if row.name in (figure.rows or results.rows) and column.name in (
                figure.columns or results.columns
            ):
                yield row, column


def _spot(row: Row, column: Column, results: Results) -> tuple[float | None, str]:
    if column.x is not None:
        return column.x, row.name
    return row.x, _named(row.group or "this run", column, results)


def _named(name: str, column: Column, results: Results) -> str:
    assert results.table.figure is not None
    drawn = results.table.figure.columns or results.columns
    return f"{name}, {column.name}" if len(drawn) > 1 else name


# --- drawing --------------------------------------------------------------------------------------


def _spans_decades(xs: Sequence[float]) -> bool:
    """Whether a logarithmic axis is clearer."""
    return min(xs) > 0 and max(xs) >= 50 * min(xs)


def _axes() -> tuple[Any, Any]:
    import matplotlib.figure

    plot = matplotlib.figure.Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = plot.add_subplot()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return plot, axes


def _sweep(axes: Any, results: Results, figure: Figure, found: Mapping[str, Points]) -> None:
    for number, (name, points) in enumerate(found.items()):
        _line(axes, name, points, number, band=False)
    for number, (name, known) in enumerate(papers(results, figure).items()):
        if known:
            xs, ys = zip(*sorted(known.items()), strict=True)
            axes.plot(xs, ys, ls=":", marker="x", color=f"C{number % 10}", label=f"{name} (paper)")
    for number, (name, level) in enumerate(levels(results, figure).items()):
        axes.axhline(level, ls=("--", "-.", ":")[number % 3], lw=1.2, color="0.3", label=name)


def bar_chart(axes: Any, results: Results, figure: Figure) -> None:
    """Draw a group of bars for each row, one bar per column; crosses are the paper's numbers."""
    drawn = list(_drawn(results, figure))
    rows, columns = (list(dict.fromkeys(part.name for part in parts)) for parts in zip(*drawn, strict=True))
    width = 0.8 / len(columns)
    for row, column in drawn:
        numbers = results.known(row.name, column.name)
        which = columns.index(column.name)
        x = rows.index(row.name) + width * (which - (len(columns) - 1) / 2)
        if numbers is not None:
            known = axes.get_legend_handles_labels()[1]
            style = {"color": f"C{which % 10}", "label": None if column.name in known else column.name}
            mean, spread = mean_and_spread(numbers)
            axes.bar(x, mean, 0.9 * width, yerr=_bars([spread or 0.0]), capsize=3, **style)
        if column.name in row.paper:
            axes.plot(x, row.paper[column.name][0], ls="", marker="x", color="0.2")
    axes.set_xticks(range(len(rows)), rows)


def _line(axes: Any, name: str, points: Points, number: int, band: bool) -> None:
    xs = sorted(points)
    pairs = [mean_and_spread(points[x]) for x in xs]
    means, spreads = [mean for mean, _ in pairs], [spread or 0.0 for _, spread in pairs]
    # Ten colors, then the same ones dashed.
    style = {"color": f"C{number % 10}", "ls": "-" if number < 10 else "--", "label": name}
    if not band:
        axes.errorbar(xs, means, yerr=_bars(spreads), marker="o", capsize=3, **style)
        return
    axes.plot(xs, means, marker="o" if len(xs) < 3 else "", **style)
    if any(spreads):
        low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
        high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
        axes.fill_between(xs, low, high, color=style["color"], alpha=0.15, lw=0)


def _bars(spreads: Sequence[float]) -> Sequence[float] | None:
    return spreads if any(spreads) else None
