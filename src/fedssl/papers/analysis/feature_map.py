"""Features of the global model and of two local models in one 2-D map (Dec-SSL, Figure 9)."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedssl.data.images import ImageSet
from fedssl.data.partition_picture import PALETTE
from fedssl.errors import DataError, RunError
from fedssl.evaluation.drift import LocalModels, local_models
from fedssl.evaluation.features import extract
from fedssl.extras import installed
from fedssl.rng import derive, numpy_rng
from fedssl.state import State, restore

COMPONENTS = 20  # after PCA (§B.3)

Points = NDArray[np.float64]


@dataclass(frozen=True)
class FeatureMap:
    """Points of the same images for each of several models, all in one plane."""

    models: list[str]
    points: Points  # [models, images, 2]
    labels: NDArray[np.int64]  # labels of the images; all 0 if unknown
    classes: Sequence[str]
    how: str  # UMAP or t-SNE


def feature_map(run: str | Path, clients: Sequence[int] = (0, 2), images: int = 500) -> FeatureMap:
    """Map the features of the same test images (or training images without a test split) for every model."""
    found = local_models(run)
    for client in clients:
        if client not in found.local:
            raise RunError(
                f"client {client} did not take part in round {found.round}: choose from {sorted(found.local)}"
            )
    federation, seed = found.finished.federation, found.finished.trained.seed
    pool = federation.test or federation.train
    shown = pool.subset(np.sort(numpy_rng(seed, "map").permutation(len(pool))[:images]))
    states = [found.merged[clients[0]], *(found.local[client] for client in clients)]
    points, how = joint([_features(found, state, shown) for state in states], derive(seed, "map") % 2**32)
    return FeatureMap(
        models=["global", *(f"client {client}" for client in clients)],
        points=points,
        labels=np.zeros(len(shown), dtype=np.int64) if shown.y is None else shown.y.numpy(),
        classes=shown.classes,
        how=how,
    )


def _features(found: LocalModels, state: State, images: ImageSet) -> Points:
    runner, data = found.finished.models.runner, found.finished.trained.data
    restore(runner.model, runner.initial)
    restore(runner.model, {name: value for name, value in state.items() if name.startswith("encoder.")})
    encoder = runner.model.part("encoder")
    taken = extract(encoder, images, mean=data.mean, std=data.std, device=runner.device)
    return taken.double().numpy()


def joint(features: Sequence[Points], seed: int) -> tuple[Points, str]:
    """Project all features together by PCA (20), then UMAP if installed, else t-SNE: [models, images, 2]."""
    from sklearn.decomposition import PCA

    rows = np.concatenate(features)
    if len(rows) < 4:
        raise DataError(f"{len(rows)} points are too few for a map: use more images")
    few = PCA(min(COMPONENTS, *rows.shape), random_state=seed).fit_transform(rows)
    if installed("umap"):
        umap = importlib.import_module("umap")
        how, near = "UMAP", min(15, len(rows) - 1)
        flat = umap.UMAP(n_neighbors=near, random_state=seed).fit_transform(few)
    else:
        from sklearn.manifold import TSNE

        how, perplexity = "t-SNE", min(30.0, (len(rows) - 1) / 3)
        flat = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(few)
    return np.asarray(flat, dtype=np.float64).reshape(len(features), -1, 2), how


def save_picture(file: str | Path, seen: FeatureMap) -> None:
    """Draw one panel per model on the same axes, colored by class, with the other models in gray."""
    from matplotlib.figure import Figure

    plot = Figure(figsize=(3.4 * len(seen.models), 3.9), layout="constrained")
    panels = plot.subplots(1, len(seen.models), squeeze=False, sharex=True, sharey=True)[0]
    kinds = np.unique(seen.labels)
    for axes, name, points in zip(panels, seen.models, seen.points, strict=True):
        axes.scatter(*seen.points.reshape(-1, 2).T, s=3, color="0.9", linewidths=0)
        for kind in kinds:
            label = seen.classes[kind] if kind < len(seen.classes) else str(kind)
            color = PALETTE[kind % len(PALETTE)]
            axes.scatter(*points[seen.labels == kind].T, s=6, color=color, label=label, linewidths=0)
        axes.set(title=name, xticks=[], yticks=[])
    if 1 < len(kinds) <= len(PALETTE):
        handles, labels = panels[0].get_legend_handles_labels()
        plot.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=7, markerscale=2)
    plot.suptitle(f"features of the same images in one plane ({seen.how})", fontsize=10)
    plot.savefig(file, dpi=150)
