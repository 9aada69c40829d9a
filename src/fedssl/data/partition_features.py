"""Partition by clusters of image features instead of classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from fedssl.data.partition_base import SCHEME, Features, Indices, Pool
from fedssl.data.partition_classes import Skew
from fedssl.data.partition_dirichlet import DirichletBounded
from fedssl.data.views import plain
from fedssl.errors import ConfigError, DataError
from fedssl.normalization import Levels, shortest

if TYPE_CHECKING:
    from fedssl.data.images import ImageSet

BATCH = 256
PIXELS = "pixels"


class FeatureClusters(DirichletBounded):
    """Features of an encoder → PCA → k-means; clusters are used like classes (Dec-SSL, §C.2).

    Clusters are assigned by Dirichlet(α) with bounded sizes, or, with `beta`, in blocks (`skew`). Since
    k-means makes clusters of unequal size, independent draws rarely satisfy the bounds, and the default
    `sampler` is a chain.
    """

    scheme: str = Field("feature-clusters", description=SCHEME)
    features: str = Field(
        PIXELS,
        description="source of features: a run's folder, timm:NAME (with timm's weights), or pixels",
    )
    clusters: int = Field(5, ge=2, description="number of clusters of k-means")
    components: int = Field(30, ge=1, le=1 << 16, description="number of components of PCA")
    beta: float | None = Field(None, ge=0, le=1, description="use skew β instead of Dirichlet(α)")
    sampler: Literal["rejection", "chain"] = Field("chain", description="sampler of the Dirichlet draw")

    @field_validator("features")
    @classmethod
    def _whole_path(cls, value: str) -> str:
        """Make a run's path absolute, so that it does not depend on the working directory."""
        return str(Path(value).resolve()) if Path(value).is_dir() else value

    def extract_features(self, images: ImageSet) -> Features:
        encoder, mean, std = encoder_of(self.features, images)
        return extract(encoder, images, mean, std)

    def deal(self, pool: Pool, rng: np.random.Generator) -> list[Indices]:
        if pool.features is None:
            raise DataError("feature-clusters need features [N, D] of the images: pass `features`")
        if pool.count < self.clusters:
            raise DataError(f"{pool.count} images are too few for partition.clusters={self.clusters}")
        found = cluster_features(pool.features, self.clusters, self.components, int(rng.integers(2**31)))
        pool = replace(pool, labels=found)
        if self.beta is None:
            return super().deal(pool, rng)
        return Skew(clients=self.clients, beta=self.beta).deal(pool, rng)


def cluster_features(features: Features, clusters: int, components: int, seed: int) -> Indices:
    """The k-means cluster of each row in the space of the first principal components.

    Clusters are numbered along the first component, so that neighbors in number are neighbors in space.
    """
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from threadpoolctl import threadpool_limits

    rows = features.reshape(len(features), -1).astype(np.float64)
    few = min(components, *rows.shape)
    with threadpool_limits(1):  # sums must not depend on how many cores there are
        reduced = PCA(few, random_state=seed).fit_transform(rows)
        fitted = KMeans(clusters, n_init=10, random_state=seed).fit(reduced)
    place = np.argsort(np.argsort(fitted.cluster_centers_[:, 0], kind="stable"), kind="stable")
    found: Indices = place[fitted.labels_].astype(np.int64)
    return found


def encoder_of(source: str, images: ImageSet) -> tuple[Callable[[Tensor], Tensor], Levels, Levels]:
    """The encoder of `partition.features`, and the mean and deviation to normalize its inputs by."""
    if source == PIXELS:
        return nn.Flatten(), 0.0, 1.0
    if source.startswith("timm:"):
        import timm

        try:
            pretrained = timm.create_model(
                source.removeprefix("timm:"), pretrained=True, num_classes=0, in_chans=images.channels
            )
        except Exception as error:  # what timm and its hub raise has no common type
            raise ConfigError(f"partition.features={source} cannot be loaded from timm: {error}") from None
        return pretrained.eval(), 0.5, 0.25
    return _of_run(Path(source), images)


def _of_run(folder: Path, images: ImageSet) -> tuple[Callable[[Tensor], Tensor], Levels, Levels]:
    from fedssl.models.describe import rebuild
    from fedssl.storage import read_json
    from fedssl.tensorfile import load_tensors

    if not (folder / "encoder.json").exists():
        raise ConfigError(
            f"partition.features={folder} has no encoder.json: use the folder of a finished run, timm:NAME "
            "or pixels"
        )
    description = read_json(folder / "encoder.json")
    given = description["input"]
    if given["channels"] != images.channels:
        raise ConfigError(
            f"partition.features={folder}: its encoder takes {given['channels']} channels, but "
            f"{images.name} has {images.channels}: set data.channels={given['channels']}"
        )
    encoder = rebuild(description)
    encoder.load_state_dict(load_tensors(folder / "encoder.safetensors")[0])
    return encoder.eval(), shortest(tuple(given["mean"])), shortest(tuple(given["std"]))


@torch.no_grad()
def extract(encoder: Callable[[Tensor], Tensor], images: ImageSet, mean: Levels, std: Levels) -> Features:
    """Features of all images without augmentation, on the CPU."""
    found = [encoder(plain(part, mean, std)).flatten(1) for part in torch.split(images.x, BATCH)]
    return torch.cat(found).float().numpy()
