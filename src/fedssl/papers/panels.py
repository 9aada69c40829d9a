"""Pictures of recipes; some are a panel for each row and column, not lines in one diagram."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from fedssl.errors import RunError
from fedssl.papers.analysis.landscape import Landscape, landscape
from fedssl.tables import figure
from fedssl.tables.figure import caption
from fedssl.tables.results import Results


def draw(results: Results, file: Path) -> bool:
    """The picture that the recipe asks for; false if there is nothing to draw yet."""
    assert results.table.figure is not None
    kinds = {"landscape": draw_landscapes, "style": draw_styles}
    return kinds.get(results.table.figure.kind, figure.draw)(results, file)


def draw_landscapes(results: Results, file: Path) -> bool:
    """The way of the global model over the loss, for the first seed of every cell."""
    from matplotlib.figure import Figure

    found = {name: _seen(outcome.path) for name, outcome in _first_seed(results).items() if not outcome.error}
    if not found:
        return False
    columns = min(2, len(found))
    rows = -(-len(found) // columns)
    plot = Figure(figsize=(4.6 * columns, 3.9 * rows), layout="constrained")
    for axes, (name, seen) in zip(
        plot.subplots(rows, columns, squeeze=False).flat, found.items(), strict=False
    ):
        _panel(plot, axes, name, seen)
    plot.suptitle(f"{caption(results)} (seed {results.first_seed})", fontsize=10)
    plot.savefig(file, dpi=150)
    return True


def draw_styles(results: Results, file: Path) -> bool:
    """Style features of all clients, by client and by style, for the first seed of every cell."""
    from matplotlib.figure import Figure

    from fedssl.papers.analysis.style import draw as draw_style
    from fedssl.papers.analysis.style import embed, of_run

    paths = {name: outcome.path for name, outcome in _first_seed(results).items() if not outcome.error}
    if not paths:
        return False
    plot = Figure(figsize=(7.6, 3.6 * len(paths)), layout="constrained")
    for axes, (name, path) in zip(plot.subplots(len(paths), 2, squeeze=False), paths.items(), strict=True):
        seen = of_run(path)
        draw_style(axes, seen, embed(seen), name)
    plot.suptitle(f"{caption(results)} (seed {results.first_seed})", fontsize=10)
    plot.savefig(file, dpi=150)
    return True


def _seen(path: Path) -> Landscape | str:
    """A run that an earlier command made without keeping its checkpoints says so in its panel."""
    try:
        return landscape(path)
    except RunError as error:
        return str(error)


def _first_seed(results: Results) -> dict[str, Any]:
    many = len(results.columns) > 1
    return {
        f"{row}, {column}" if many else row: outcomes[0]
        for row in results.rows
        for column in results.columns
        if (outcomes := results.at(row, column))
    }


def _panel(plot: Any, axes: Any, name: str, seen: Landscape | str) -> None:
    if isinstance(seen, str):
        axes.set_title(name, fontsize=8)
        axes.text(0.5, 0.5, textwrap.fill(seen, 50), ha="center", va="center", fontsize=7)
        axes.set_axis_off()
        return
    # Far from the path the loss may be huge: levels follow its quantiles, not its range.
    levels = np.unique(np.quantile(seen.losses, np.linspace(0, 1, 16)))
    if len(levels) > 1:
        filled = axes.contourf(seen.xs, seen.ys, seen.losses, levels=levels, cmap="viridis")
        plot.colorbar(filled, ax=axes, format="%.2f")
    axes.plot(*seen.plane.path.T, color="white", lw=1.2, marker="o", ms=3)
    axes.plot(*seen.plane.path[0], marker="s", color="tab:orange", ms=7, label=f"round {seen.rounds[0]}")
    axes.plot(*seen.plane.path[-1], marker="*", color="tab:red", ms=12, label=f"round {seen.rounds[-1]}")
    axes.set_title(f"{name} ({100 * seen.plane.explained:.0f} % of the way is in this plane)", fontsize=8)
    axes.legend(fontsize=7, loc="best")
    axes.tick_params(labelsize=7)
