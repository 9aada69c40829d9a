"""Pictures of recipes that have a panel per row and column instead of lines in one diagram.

The content of a panel is plain data, computed from a run or read from the store.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from fedssl.errors import RunError
from fedssl.tables import figure
from fedssl.tables.figure import caption
from fedssl.tables.results import Results

Data = dict[str, Any]


def draw(results: Results, file: Path) -> bool:
    """Draw the recipe's picture; returns false if there is nothing to draw yet."""
    assert results.table.figure is not None
    kinds = {"landscape": draw_landscapes, "style": draw_styles}
    return kinds.get(results.table.figure.kind, figure.draw)(results, file)


def panel_data(kind: str, path: Path) -> dict[str, Data]:
    """Return the data of a run's panel by kind; empty if its picture has no panels."""
    makers = {"landscape": _landscape, "style": _style}
    return {kind: makers[kind](path)} if kind in makers else {}


def draw_landscapes(results: Results, file: Path) -> bool:
    """Draw the path of the global model over the loss, for the first seed of every cell."""
    from matplotlib.figure import Figure

    found = panels_of(results, "landscape")
    if not found:
        return False
    columns = min(2, len(found))
    rows = -(-len(found) // columns)
    plot = Figure(figsize=(4.6 * columns, 3.9 * rows), layout="constrained")
    for axes, (name, seen) in zip(
        plot.subplots(rows, columns, squeeze=False).flat, found.items(), strict=False
    ):
        _draw_landscape(plot, axes, name, seen)
    plot.suptitle(f"{caption(results)} (seed {results.first_seed})", fontsize=10)
    plot.savefig(file, dpi=150)
    return True


def draw_styles(results: Results, file: Path) -> bool:
    """Draw style features of all clients by client and by style, for the first seed of every cell."""
    from matplotlib.figure import Figure

    from fedssl.papers.analysis.style import StyleMap
    from fedssl.papers.analysis.style import draw as draw_style

    found = {name: seen for name, seen in panels_of(results, "style").items() if isinstance(seen, dict)}
    if not found:
        return False
    plot = Figure(figsize=(7.6, 3.6 * len(found)), layout="constrained")
    for axes, (name, seen) in zip(plot.subplots(len(found), 2, squeeze=False), found.items(), strict=True):
        flat, clients, styles = (np.asarray(seen[key]) for key in ("flat", "clients", "styles"))
        draw_style(axes, StyleMap(flat, clients, styles, tuple(seen["style_names"])), name)
    plot.suptitle(f"{caption(results)} (seed {results.first_seed})", fontsize=10)
    plot.savefig(file, dpi=150)
    return True


# --- data -----------------------------------------------------------------------------------------


def _landscape(path: Path) -> Data:
    from fedssl.papers.analysis.landscape import landscape

    seen = landscape(path)
    return {
        "rounds": [seen.rounds[0], seen.rounds[-1]],
        "path": _short(seen.plane.path),
        "explained": round(seen.plane.explained, 4),
        "xs": _short(seen.xs),
        "ys": _short(seen.ys),
        "losses": _short(seen.losses),
    }


def _style(path: Path) -> Data:
    from fedssl.papers.analysis.style import of_run, style_map

    seen = style_map(of_run(path))
    return {
        "flat": _short(seen.flat),
        "clients": seen.clients.tolist(),
        "styles": seen.styles.tolist(),
        "style_names": list(seen.style_names),
    }


def _short(numbers: Any) -> Any:
    """Round nested lists of numbers to four significant digits, more than a picture can show."""
    if np.ndim(numbers):
        return [_short(number) for number in numbers]
    return float(f"{float(numbers):.4g}")


def panels_of(results: Results, kind: str) -> dict[str, Data | str]:
    """Return the data of the first seed by row and column; a message if a run lacks them."""
    drawn = results.table.figure
    rows = (drawn and drawn.rows) or results.rows
    columns = (drawn and drawn.columns) or results.columns
    many = len(columns) > 1
    found: dict[str, Data | str] = {}
    for row in rows:
        for column in columns:
            outcome = next(iter(results.at(row, column)), None)
            if outcome is not None and not outcome.error:
                name = f"{row}, {column}" if many else row
                if outcome.record is not None:
                    found[name] = outcome.record.panels.get(kind, "stored without the data of its picture")
                else:
                    found[name] = _of_run(kind, outcome.path)
    return found


def _of_run(kind: str, path: Path) -> Data | str:
    try:
        return panel_data(kind, path)[kind]
    except RunError as error:  # an earlier command may have run it without keeping its checkpoints
        return str(error)


# --- drawing --------------------------------------------------------------------------------------


def _draw_landscape(plot: Any, axes: Any, name: str, seen: Data | str) -> None:
    if isinstance(seen, str):
        axes.set_title(name, fontsize=8)
        axes.text(0.5, 0.5, textwrap.fill(seen, 50), ha="center", va="center", fontsize=7)
        axes.set_axis_off()
        return
    # Far from the path the loss may be huge, so levels follow its quantiles, not its range.
    losses, path = np.asarray(seen["losses"]), np.asarray(seen["path"])
    levels = np.unique(np.quantile(losses, np.linspace(0, 1, 16)))
    if len(levels) > 1:
        filled = axes.contourf(seen["xs"], seen["ys"], losses, levels=levels, cmap="viridis")
        plot.colorbar(filled, ax=axes, format="%.2f")
    first, last = seen["rounds"]
    axes.plot(*path.T, color="white", lw=1.2, marker="o", ms=3)
    axes.plot(*path[0], marker="s", color="tab:orange", ms=7, label=f"round {first}")
    axes.plot(*path[-1], marker="*", color="tab:red", ms=12, label=f"round {last}")
    axes.set_title(f"{name} ({100 * seen['explained']:.0f} % of the variance in this plane)", fontsize=8)
    axes.legend(fontsize=7, loc="best")
    axes.tick_params(labelsize=7)
