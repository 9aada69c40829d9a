"""Why self-supervision is robust to heterogeneity: the linear model of Dec-SSL (§3.2, §4.2 and §E).

There are K sources in d dimensions. Source k has many samples of two classes that differ along e_k and
vary along all other e_i, and a few samples of every other odd class. Local and global self-supervised
features have a closed form, the top eigenvectors of the data's second moments; supervised ones are those
of the two-layer linear network of least norm. The representability of a direction, r_i = ‖Π_S e_i‖², is
uniform over e_1 … e_K for the former and peaks at e_k for the latter.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedssl.errors import ConfigError
from fedssl.papers.analysis.max_margin import Array, Labels, max_margin
from fedssl.rng import numpy_rng

DIMENSIONS = (100, 200, 400, 800)
SOURCES = 3  # K = Θ(d^{1/20}) hardly grows: K doubles when d grows by a factor of a million
RANK = 1e-9  # singular values below this share of the largest are rounding errors


def source_data(source: int, sources: int, d: int, rng: np.random.Generator) -> tuple[Array, Labels]:
    """The samples of one source (counted from 0) and their classes (§E.1).

    Class 2k: e_k − Σ_{i≠k} q_i τ e_i + μξ; class 2k+1: the same with −e_k; d samples of each. Class
    2i for i ≠ k: e_i + μξ, at least one sample, all rare classes together below d^{1/5}. q_i is 0
    or 1, ξ Gaussian, τ = d^{1/5}, μ = d^{−1/5}.
    """
    tau, mu = d**0.2, d**-0.2
    rare = max(1, int(d**0.2 / sources))
    x, y = [], []
    for sign, label in ((1.0, 2 * source), (-1.0, 2 * source + 1)):
        signal = -tau * rng.integers(0, 2, (d, sources))
        signal[:, source] = sign
        x.append(_noisy(signal, d, mu, rng))
        y.append(np.full(d, label))
    for other in range(sources):
        if other != source:
            x.append(_noisy(np.eye(sources)[np.full(rare, other)], d, mu, rng))
            y.append(np.full(rare, 2 * other))
    return np.concatenate(x), np.concatenate(y)


def _noisy(signal: Array, d: int, mu: float, rng: np.random.Generator) -> Array:
    x: Array = mu * rng.standard_normal((len(signal), d))
    x[:, : signal.shape[1]] += signal
    return x


def ssl_features(moments: Array, m: int) -> Array:
    """Return the rows that minimize ‖X − wᵀw‖²_F (Eq. E.5): the top m eigenvectors of X, scaled by √λ."""
    values, vectors = np.linalg.eigh(moments)
    features: Array = (vectors[:, -m:] * np.sqrt(np.maximum(values[-m:], 0.0))).T
    return features


def sl_features(x: Array, y: Labels, classes: int) -> Array:
    """Return the rows u of the network v·u of least ‖uᵀu‖²_F + ‖vᵀv‖²_F with margin 1 (§E.2).

    For a given product W = UΣVᵀ the sum is smallest, 2‖W‖²_F, at u = Σ^{½}Vᵀ. So W is the classifier of
    least norm (Eq. E.19).
    """
    _, sizes, directions = np.linalg.svd(max_margin(x, y, classes).weights, full_matrices=False)
    kept = sizes > RANK * sizes[0]
    features: Array = np.sqrt(sizes[kept])[:, None] * directions[kept]
    return features


def representability(features: Array) -> Array:
    """Return r_i = ‖Π_S e_i‖², where S is the span of the rows (Definition 3.1)."""
    _, sizes, directions = np.linalg.svd(features, full_matrices=False)
    r: Array = np.square(directions[sizes > RANK * sizes[0]]).sum(axis=0)
    return r


@dataclass(frozen=True)
class Study:
    """Representability of e_1 … e_K at one d, for each source's own features and for the global features."""

    d: int
    sources: int
    local_ssl: Array  # [source, direction]
    global_ssl: Array  # [direction]
    local_sl: Array  # [source, direction]
    sl_correlation: Array  # [source, direction]: Σ_i ⟨u_i, e_j⟩² of Proposition 4.1

    @property
    def ssl_missing(self) -> float:
        """max 1 − r_i over sources and i ≠ k: O(d^{−4/5}) by Theorem 3.2."""
        return float(1.0 - self.local_ssl[self._elsewhere].min())

    @property
    def global_missing(self) -> float:
        """max 1 − r_i of the global features over all i: O(d^{−4/5}) by Theorem 3.2."""
        return float(1.0 - self.global_ssl.min())

    @property
    def sl_elsewhere(self) -> float:
        """max r_i of supervised features over sources and i ≠ k."""
        return float(self.local_sl[self._elsewhere].max())

    @property
    def sl_peak(self) -> float:
        """min r_k of supervised features over sources k."""
        return float(self.local_sl.diagonal().min())

    @property
    def _elsewhere(self) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        return ~np.eye(self.sources, dtype=bool)


def study(d: int, sources: int = SOURCES, seed: int = 0) -> Study:
    """Draw the data of all sources, solve all three problems, and measure along e_1 … e_K."""
    if sources < 2 or d < 10 * sources:
        raise ConfigError(
            f"{sources} sources in {d} dimensions: at least 2 sources and 10 times as many dimensions "
            "are needed"
        )
    data = [source_data(k, sources, d, numpy_rng(seed, "theory", d, k)) for k in range(sources)]
    moments = [x.T @ x / len(x) for x, _ in data]
    classes = m = 2 * sources
    supervised = [sl_features(x, y, classes) for x, y in data]
    return Study(
        d=d,
        sources=sources,
        local_ssl=_along(sources, [ssl_features(own, m) for own in moments]),
        # All sources have the same number of samples, so the global moments are the mean (Eq. E.14).
        global_ssl=_along(sources, [ssl_features(np.mean(moments, axis=0), m)])[0],
        local_sl=_along(sources, supervised),
        sl_correlation=np.stack([np.square(u).sum(axis=0)[:sources] for u in supervised]),
    )


def _along(sources: int, features: Sequence[Array]) -> Array:
    return np.stack([representability(rows)[:sources] for rows in features])


def table(studies: Sequence[Study]) -> str:
    """Format the numbers of the theorem and of the proposition, one line per d."""
    names = ("d", "d^-4/5", "1−r local SSL", "1−r global SSL", "SL: r_k", "SL: other r_i")
    head = "  ".join(f"{name:>{width}}" for name, width in zip(names, (6, 7, 14, 14, 8, 13), strict=True))
    lines = [
        f"{each.d:>6}  {each.d**-0.8:>7.4f}  {each.ssl_missing:>14.4f}  {each.global_missing:>14.4f}  "
        f"{each.sl_peak:>8.3f}  {each.sl_elsewhere:>13.3f}"
        for each in sorted(studies, key=lambda each: each.d)
    ]
    return "\n".join([head, *lines])


# --- plotting ---------------------------------------------------------------------------------------

COLORS = {"local SSL": "#44aa99", "global SSL": "#117733", "local SL": "#cc6677"}


def save_picture(path: str | os.PathLike[str], studies: Sequence[Study]) -> None:
    """Plot bars of r at the largest d, one panel per source, and the gaps as functions of d."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    largest = max(studies, key=lambda each: each.d)
    panels = largest.sources + 1
    figure = Figure(figsize=(2.4 * panels + 3.4, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels, width_ratios=[1.0] * largest.sources + [1.5])
    places = np.arange(largest.sources)
    for source, panel in enumerate(axes[:-1]):
        heights = (largest.local_ssl[source], largest.global_ssl, largest.local_sl[source])
        for offset, (name, values) in enumerate(zip(COLORS, heights, strict=True)):
            panel.bar(places + 0.27 * (offset - 1), values, width=0.25, color=COLORS[name], label=name)
        panel.set_title(f"source {source + 1}", loc="left", fontsize=10)
        panel.set_xticks(places, [f"$e_{place + 1}$" for place in places])
        panel.set_ylim(0, 1.05)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(f"representability $r_i$ (d = {largest.d})")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    _draw_scaling(axes[-1], sorted(studies, key=lambda each: each.d))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, format="png")


def _draw_scaling(panel: Any, studies: Sequence[Study]) -> None:
    from matplotlib.ticker import NullFormatter, NullLocator

    d = np.array([each.d for each in studies], dtype=float)
    lines = {
        "local SL: max $r_i$, i ≠ k": ([each.sl_elsewhere for each in studies], "local SL"),
        "local SSL: max 1 − $r_i$, i ≠ k": ([each.ssl_missing for each in studies], "local SSL"),
        "global SSL: max 1 − $r_i$": ([each.global_missing for each in studies], "global SSL"),
    }
    for label, (values, color) in lines.items():
        panel.loglog(d, values, marker="o", markersize=4, color=COLORS[color], label=label)
    panel.loglog(d, d**-0.8, color="gray", linestyle=":", label="$d^{-4/5}$ (Theorem 3.2)")
    panel.set_title("gaps as d grows", loc="left", fontsize=10)
    panel.set_xlabel("d")
    panel.set_xticks(d, [f"{each.d}" for each in studies])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    panel.spines[["top", "right"]].set_visible(False)
