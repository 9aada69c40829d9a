"""The parts of a report that need the images: a map of features, and nearest neighbors."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedssl.data.images import ImageSet
from fedssl.errors import ConfigError, FedsslError
from fedssl.evaluation.features import check_features, extract
from fedssl.evaluation.loaded import LoadedRun, load_run
from fedssl.extras import installed
from fedssl.report.html.pictures import Pixels, sprite, thumbnail
from fedssl.rng import derive, numpy_rng
from fedssl.rundir import RunDir
from fedssl.threads import with_threads

if TYPE_CHECKING:
    from fedssl.progress import Progress

Projection = Literal["tsne", "umap", "pca"]
Indices = NDArray[np.int64]

MAP = 1000  # number of images on the map
GALLERY = 2000  # images among which neighbors are searched; the first of them are those on the map
MEMORY = 1 << 27  # bytes of pixels; with large images, fewer are used
STRIPS = 8
NEIGHBORS = 8
COMPONENTS = 30
ON_MAP, IN_STRIP = 24, 64  # sides of thumbnails


def check(projection: str) -> None:
    """Raise a ConfigError if a projection is not available."""
    if projection == "umap" and not installed("umap"):
        raise ConfigError("--map umap needs the extra `umap`: pip install 'fedssl[umap]', or --map tsne")


def silent(done: int, total: int, what: str) -> None:
    """A progress callback that shows nothing."""


def look(path: Path, projection: Projection, progress: Progress = silent) -> dict[str, Any]:
    """Return the feature map and nearest neighbors of a run, or the reason why they are missing."""
    try:
        directory = RunDir.open(path)
        if not directory.config().engine.sees_clients:
            return _missing("The images are at the sites, so there is no feature map.")
        with with_threads(0):
            return _look(directory, projection, progress)
    except FedsslError as error:
        return _missing(f"The images or the encoder of this run cannot be loaded: {error}")
    except (OSError, RuntimeError, ValueError) as error:  # an unavailable disk, an encoder that fails
        return _missing(f"The encoder failed: {type(error).__name__}: {error}")


def _missing(why: str) -> dict[str, Any]:
    return {"why_not": why, "missing": True}


def _look(directory: RunDir, projection: Projection, progress: Progress) -> dict[str, Any]:
    progress(0, 4, "loading images")
    run = load_run(directory, {})
    encoder = run.models.exported(run.server, run.memory_rounds)
    data, device = run.trained.data, run.device

    def features(images: ImageSet) -> Tensor:
        found = extract(encoder.module, images, mean=data.mean, std=data.std, device=device)
        check_features(found)
        return found

    progress(1, 4, "features")
    images, owners = gallery(run)
    known = features(images)
    progress(2, 4, "feature map")
    xy = project(known[:MAP], projection, run.trained.seed)
    progress(3, 4, "nearest neighbors")
    drawn = {
        "whose": encoder.owner,
        "map": _map(images, owners, xy, projection, sum(map(len, run.federation.parts))),
        "strips": _strips(run, images, owners, known, features),
    }
    progress(4, 4, "nearest neighbors")
    return drawn


def gallery(run: LoadedRun) -> tuple[ImageSet, Indices]:
    """Return client images with shifts applied, in random order, and their clients."""
    federation, config = run.federation, run.trained
    sizes = [len(part) for part in federation.parts]
    pixels = federation.train.size[0] * federation.train.size[1] * federation.train.channels
    count = min(GALLERY, sum(sizes), max(STRIPS, MEMORY // pixels))
    chosen = numpy_rng(config.seed, "report", "gallery").permutation(sum(sizes))[:count]
    owners = np.repeat(np.arange(len(sizes)), sizes)[chosen]
    positions = chosen - np.concatenate([[0], np.cumsum(sizes)[:-1]])[owners]
    index = np.array([federation.parts[k][i] for k, i in zip(owners, positions, strict=True)], dtype=np.int64)
    images = federation.train.subset(index)
    for client in np.unique(owners):
        own = np.flatnonzero(owners == client)
        seen, _ = federation.images_of(int(client), config).batch(torch.from_numpy(positions[own]))
        images.x[torch.from_numpy(own)] = seen
    return images, owners


def project(features: Tensor, projection: Projection, seed: int) -> NDArray[np.float64]:
    """Project features into the plane, scaled to 0 … 1, from the principal components of their directions."""
    unit = F.normalize(features.double(), dim=1).numpy()
    if len(unit) < 3:
        return np.linspace(0, 1, len(unit))[:, None].repeat(2, axis=1)
    left, sizes, _ = np.linalg.svd(unit - unit.mean(axis=0), full_matrices=False)
    if sizes[0] < 1e-9:  # collapsed: all images are at one point
        return np.full((len(unit), 2), 0.5)
    components = (left * sizes)[:, :COMPONENTS]
    state = derive(seed, "report", "map") % 2**32
    if projection == "pca" or len(unit) < 10:
        points = np.pad(components, ((0, 0), (0, 1)))[:, :2]
    elif projection == "umap":
        umap = importlib.import_module("umap")
        near = min(15, len(unit) - 1)
        points = umap.UMAP(n_neighbors=near, random_state=state, n_jobs=1).fit_transform(components)
    else:
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(unit) - 1) / 3)
        points = TSNE(perplexity=perplexity, init="pca", random_state=state).fit_transform(components)
    points = np.asarray(points, dtype=np.float64)
    # Use one scale for both axes, because distances matter.
    extent: NDArray[np.float64] = np.ptp(points, axis=0)
    placed: NDArray[np.float64] = 0.5 + (points - points.min(axis=0) - extent / 2) / (extent.max() or 1.0)
    return placed


def _map(
    images: ImageSet, owners: Indices, xy: NDArray[np.float64], projection: Projection, total: int
) -> dict[str, Any]:
    number = len(xy)
    kinds: dict[str, Any] = {}
    if images.y is not None:
        kinds["class"] = {"of": images.y[:number].tolist(), "names": list(images.classes)}
    if len(np.unique(owners)) > 1:
        names = [f"client {client}" for client in range(int(owners.max()) + 1)]
        kinds["client"] = {"of": owners[:number].tolist(), "names": names}
    if images.domain is not None:
        kinds["style"] = {"of": images.domain[:number].tolist(), "names": list(images.domains)}
    how = {"tsne": "t-SNE", "umap": "UMAP", "pca": "principal components"}[projection]
    return {
        "how": how if projection == "pca" else f"{how} of up to {COMPONENTS} principal components",
        "x": [round(float(x), 4) for x in xy[:, 0]],
        "y": [round(float(y), 4) for y in xy[:, 1]],
        "kinds": kinds,
        "of": total,
        "sprite": sprite(_pixels(images.x[:number]), ON_MAP),
    }


def _strips(
    run: LoadedRun, images: ImageSet, owners: Indices, known: Tensor, features: Callable[[ImageSet], Tensor]
) -> list[dict[str, Any]]:
    """Return a few test images (or client images, without a test split), each with its nearest neighbors."""
    test = run.federation.test
    asked = queries(test if test is not None else images, run.trained.seed)
    found = features(test.subset(asked)) if test is not None else known[torch.from_numpy(asked)]
    shown = test if test is not None else images
    similar = F.normalize(found.double(), dim=1) @ F.normalize(known.double(), dim=1).T
    if test is None:
        similar[torch.arange(len(asked)), torch.from_numpy(asked)] = -torch.inf  # exclude the image itself
    order = similar.argsort(dim=1, descending=True, stable=True)[:, : min(NEIGHBORS, len(known) - 1)]
    return [
        {
            "query": {"class": _class(shown, int(query)), "uri": _thumbnail(shown, int(query))},
            "nearest": [
                {
                    "class": _class(images, near),
                    "client": int(owners[near]),
                    "cosine": round(float(similar[row, near]), 4),
                    "uri": _thumbnail(images, near),
                }
                for near in order[row].tolist()
            ],
        }
        for row, query in enumerate(asked)
    ]


def queries(images: ImageSet, seed: int) -> Indices:
    """Choose random images; if there are classes, spread evenly over them."""
    order = numpy_rng(seed, "report", "queries").permutation(len(images))
    if images.y is None:
        return order[:STRIPS].astype(np.int64)
    labels = images.y.numpy()[order]
    kinds = np.unique(labels)
    chosen = kinds[np.unique(np.linspace(0, len(kinds) - 1, min(STRIPS, len(kinds))).round().astype(int))]
    return np.array([order[np.argmax(labels == kind)] for kind in chosen], dtype=np.int64)


def _class(images: ImageSet, number: int) -> str | None:
    return None if images.y is None else str(images.classes[int(images.y[number])])


def _thumbnail(images: ImageSet, number: int) -> str:
    return thumbnail(images.x[number].numpy(), IN_STRIP)


def _pixels(x: Tensor) -> list[Pixels]:
    return [image.numpy() for image in x]
