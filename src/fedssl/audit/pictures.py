"""The pictures of an audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_SHOWN = 8  # views in a row
# Two groups and a line, distinguishable for color-blind readers.
ONE, OTHER, LINE = "#332288", "#cc6677", "#999999"
ROWS = {
    "truth": "what the client\ntrained on",
    "upload": "rebuilt from the\nupload in clear",
    "sum": "rebuilt from a sum\n(secure aggregation)",
    "noise": "rebuilt from the\nupload with noise",
}


def draw_canaries(found: dict[str, Any], file: Path) -> None:
    """The scores of canaries that took part, and of others."""
    figure, axes = _figure(6.4, 3.2)
    inside, outside = np.array(found["inside"]), np.array(found["outside"])
    edges = np.linspace(min(inside.min(), outside.min()), max(inside.max(), outside.max()), 25)
    axes.hist(outside, edges, color=OTHER, alpha=0.75, label="did not take part")
    axes.hist(inside, edges, color=ONE, alpha=0.75, label="took part")
    axes.set_xlabel("how far the final model points in the canary's direction (cosine)")
    axes.set_ylabel("canaries")
    axes.legend(frameon=False)
    figure.savefig(file, dpi=120)


def draw_membership(found: dict[str, Any], file: Path) -> None:
    """Members found against false alarms."""
    figure, axes = _figure(4.2, 4.0)
    curve = np.array(found["curve"])
    axes.plot([0, 1], [0, 1], color=LINE, linestyle=":", label="guessing")
    axes.plot(curve[:, 0], curve[:, 1], color=ONE, label="this attack")
    axes.set_xlabel("other images taken for training images")
    axes.set_ylabel("training images found")
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(file, dpi=120)


def draw_inversion(pixels: dict[str, NDArray[np.uint8]], file: Path) -> None:
    """The true views above what each observer rebuilds."""
    columns = min(MOST_SHOWN, len(pixels["truth"]))
    figure, axes = _figure(1.6 + 1.1 * columns, 1.15 * len(pixels), len(pixels), columns + 1)
    for row, (name, images) in zip(axes, pixels.items(), strict=True):
        row[0].text(1, 0.5, ROWS[name], ha="right", va="center", fontsize=9)
        for place, axis in enumerate(row):
            axis.axis("off")
            if place:
                image = images[place - 1]
                axis.imshow(
                    image[..., 0] if image.shape[-1] < 3 else image[..., :3], cmap="gray", vmin=0, vmax=255
                )
    figure.savefig(file, dpi=120)


def _figure(width: float, height: float, rows: int = 1, columns: int = 1) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns)
