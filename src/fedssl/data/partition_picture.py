"""Bar charts of a partition, on a terminal and as a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from fedssl.data.partitions import earth_movers_distance
from fedssl.data.parts import Parts

Indices = NDArray[np.int64]

# Ten colors that color-blind readers can tell apart (Paul Tol's "muted" set, and gray).
PALETTE = (
    "#332288",
    "#88ccee",
    "#117733",
    "#ddcc77",
    "#cc6677",
    "#882255",
    "#44aa99",
    "#999933",
    "#aa4499",
    "#bbbbbb",
)
# Neighbors in a bar also differ in shade, for terminals without color.
SHADES = "█▓"
SHOWN = 12  # on a terminal
DRAWN = 10_000  # in a picture, which has fewer pixels


def text_bars(
    parts: Sequence[Indices], labels: Indices | None, classes: Sequence[str], width: int = 32
) -> list[Text]:
    """One line per client: id, size, a bar of its classes (as long as its size), main classes."""
    counts, names = _table(parts, labels, classes)
    sizes = counts.sum(1)
    id_width, size_width = len(str(len(parts) - 1)), len(f"{sizes.max(initial=0):,}")
    lines = []
    for client, own in enumerate(counts[:SHOWN]):
        line = Text(
            f"{client:>{id_width}}  {sizes[client]:>{size_width},}  ", no_wrap=True, overflow="ellipsis"
        )
        cells = _cells(own, round(width * sizes[client] / sizes.max()) if sizes[client] else 0)
        for position, kind in enumerate(np.flatnonzero(cells)):
            line.append(SHADES[position % 2] * int(cells[kind]), style=PALETTE[kind % len(PALETTE)])
        if labels is not None:
            line.append(" " * (width - cells.sum()) + "  " + _main_classes(own, names), style="dim")
        lines.append(line)
    if len(parts) > SHOWN:
        lines.append(Text(f"… and {len(parts) - SHOWN} more"))
    return lines


def save_picture(
    path: str | os.PathLike[str], parts: Sequence[Indices], labels: Indices | None, classes: Sequence[str]
) -> None:
    """Save a PNG of one stacked bar per client, with its number of images of each class."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    title = _title(parts, labels)
    if len(parts) > DRAWN:
        parts, title = parts[:DRAWN], f"{title}; the first {DRAWN:,}"
    counts, names = _table(parts, labels, classes)
    figure = Figure(figsize=(float(np.clip(3.5 + 0.45 * len(parts), 6, 12)), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw_bars(axes, counts)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set(xlabel="client", ylabel="images")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=20, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.spines[["top", "right"]].set_visible(False)
    if labels is not None:
        _draw_key(figure, axes, names)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, format="png")


def _table(
    parts: Sequence[Indices], labels: Indices | None, classes: Sequence[str]
) -> tuple[NDArray[np.int64], list[str]]:
    """Numbers of images [client, class] and class names; without labels, one class without a name."""
    if labels is None:
        return Parts.of(parts).sizes[:, None], [""]
    if labels.size and not 0 <= labels.min() <= labels.max() < len(classes):  # names for none, or not for all
        kinds, labels = np.unique(labels, return_inverse=True)
        classes = [str(kind) for kind in kinds]
    return Parts.of(parts).counts(labels, len(classes)), list(classes)


def _cells(counts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Divide `length` cells (at least one) in proportion to counts, by largest remainder."""
    if counts.sum() == 0:
        return np.zeros_like(counts)
    exact = counts / counts.sum() * max(length, 1)
    cells: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    largest = np.argsort(cells - exact, kind="stable")
    cells[largest[: max(length, 1) - int(cells.sum())]] += 1
    return cells


def _main_classes(counts: NDArray[np.int64], names: Sequence[str], most: int = 3) -> str:
    """'cat 62%, dog 30%, frog 5%, +2 more'."""
    order = [kind for kind in np.argsort(-counts, kind="stable") if counts[kind]]
    shares = counts / max(counts.sum(), 1)
    named = [
        f"{names[kind]} {f'{shares[kind]:.0%}' if shares[kind] >= 0.01 else '<1%'}" for kind in order[:most]
    ]
    return ", ".join(named + ([f"+{len(order) - most} more"] if len(order) > most else []))


def _title(parts: Sequence[Indices], labels: Indices | None) -> str:
    images = int(Parts.of(parts).sizes.sum())
    title = f"{images:,} images on {len(parts)} client{'s' if len(parts) != 1 else ''}"
    if labels is None or not images:
        return title
    return f"{title}, earth mover's distance from IID {earth_movers_distance(labels, parts):.2f}"


def _colors(classes: int) -> list[Any]:
    """The palette for few classes, a sequential map for many; both suit color-blind readers."""
    import matplotlib

    if classes <= len(PALETTE):
        return list(PALETTE[:classes])
    return [matplotlib.colormaps["cividis"](step) for step in np.linspace(0, 1, classes)]


def _draw_bars(axes: Any, counts: NDArray[np.int64]) -> None:
    """All rectangles as one collection, which draws far faster than thousands of separate ones."""
    from matplotlib.collections import PolyCollection

    clients, classes = counts.shape
    tops = np.cumsum(counts, axis=1)
    client, kind = np.nonzero(counts)
    half = 0.4 if clients <= 200 else 0.5  # gaps narrower than a pixel would only blur
    low, high = (tops - counts)[client, kind], tops[client, kind]
    left, right = client - half, client + half
    corners = np.stack([left, low, left, high, right, high, right, low], axis=1).reshape(-1, 4, 2)
    colors = _colors(classes)
    fine = (
        {"edgecolors": "white", "linewidths": 0.5} if clients <= 50 and classes <= 50 else {"linewidths": 0}
    )
    axes.add_collection(PolyCollection(list(corners), facecolors=[colors[k] for k in kind], **fine))
    axes.set_xlim(-0.6, clients - 0.4)
    axes.set_ylim(0, max(int(tops.max(initial=0)), 1) * 1.05)


def _draw_key(figure: Any, axes: Any, names: Sequence[str]) -> None:
    """A legend for a few classes, a color scale for many."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.patches import Patch

    colors = _colors(len(names))
    if len(names) <= len(PALETTE):
        # Upside down, so that the legend has the order of the bars.
        handles = [Patch(color=color, label=name) for color, name in zip(colors, names, strict=True)]
        axes.legend(
            handles=handles[::-1], title="class", loc="upper left", bbox_to_anchor=(1, 1), frameon=False
        )
        return
    scale = ScalarMappable(Normalize(-0.5, len(names) - 0.5), ListedColormap(colors))
    bar = figure.colorbar(scale, ax=axes, label="class", pad=0.01)
    ticks = np.unique(np.linspace(0, len(names) - 1, 6).round().astype(int))
    bar.set_ticks(ticks, labels=[names[tick] for tick in ticks])
