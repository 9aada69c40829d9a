"""Style features of all clients in one figure (FedStyle, Figure 4)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedssl.evaluation.loaded import load_run
from fedssl.evaluation.style_features import StyleFeatures, style_features
from fedssl.rundir import RunDir


def of_run(path: str | Path) -> StyleFeatures:
    """Compute h_s of some images of every client of a finished FedStyle run."""
    return style_features(load_run(RunDir.open(path), {}))


def embed(seen: StyleFeatures, seed: int = 0) -> NDArray[np.float32]:
    """Compute a t-SNE in two dimensions, deterministic in features and seed."""
    from sklearn.manifold import TSNE

    features = seen.features.double().numpy()
    neighbors = min(30.0, (len(features) - 1) / 3)  # t-SNE needs a perplexity below the number of features
    flat = TSNE(perplexity=neighbors, init="pca", random_state=seed, n_jobs=1).fit_transform(features)
    return np.asarray(flat, dtype=np.float32)


@dataclass(frozen=True)
class StyleMap:
    """Style features in two dimensions, with the client and style of each."""

    flat: NDArray[np.float32]
    clients: NDArray[np.int64]
    styles: NDArray[np.int64]
    style_names: tuple[str, ...]


def style_map(seen: StyleFeatures) -> StyleMap:
    """Build the map; images without styles all have the same style."""
    clients = seen.clients.numpy()
    styles = np.zeros_like(clients) if seen.styles is None else seen.styles.numpy()
    return StyleMap(embed(seen), clients, styles, seen.style_names or ("no styles known",))


def save_picture(file: str | Path, path: str | Path, title: str = "") -> None:
    """Draw the figure of one run: features colored by client, and by style."""
    from matplotlib.figure import Figure

    plot = Figure(figsize=(8.6, 4.2), layout="constrained")
    draw(plot.subplots(1, 2), style_map(of_run(path)), title)
    plot.savefig(file, dpi=150)


def draw(axes: Any, seen: StyleMap, title: str = "") -> None:
    """Draw two panels: by client and by style."""
    clients = [f"client {client}" for client in range(int(seen.clients.max()) + 1)]
    _scatter(axes[0], seen.flat, seen.clients, clients)
    _scatter(axes[1], seen.flat, seen.styles, seen.style_names)
    axes[0].set_title(f"{title}, by client" if title else "by client", fontsize=9)
    axes[1].set_title(f"{title}, by style" if title else "by style", fontsize=9)


def _scatter(axes: Any, flat: NDArray[np.float32], groups: NDArray[np.int64], names: Any) -> None:
    from matplotlib import colormaps

    present = np.unique(groups)
    colors = colormaps["tab10" if len(present) <= 10 else "nipy_spectral"]
    for place, group in enumerate(present):
        own = groups == group
        shade = colors(place if len(present) <= 10 else place / len(present))
        axes.scatter(*flat[own].T, s=6, color=shade, label=names[group], linewidths=0)
    if len(present) <= 12:
        axes.legend(fontsize=7, markerscale=2, loc="best")
    axes.set_xticks([])
    axes.set_yticks([])
