"""The base class of partition schemes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedssl.errors import DataError
from fedssl.options import Options
from fedssl.rng import numpy_rng

if TYPE_CHECKING:
    from fedssl.data.images import ImageSet

Indices = NDArray[np.int64]
Features = NDArray[np.float32]
SCHEME = "partition scheme (see `fedssl list partitions`)"


@dataclass(frozen=True)
class Pool:
    """The images that a scheme assigns.

    Attributes:
        count: the number of images.
        labels: the class of each image, if known.
        domains: the domain of each image, if known.
        features: [count, D], for schemes that use the images themselves.
    """

    count: int
    labels: Indices | None
    domains: Indices | None
    features: Features | None = None


class Partition(Options):
    """Base class of partition schemes: override `deal`."""

    by_site: ClassVar[bool] = False  # whether the scheme treats folders as sites, not classes

    scheme: str = Field("iid", description=SCHEME)
    clients: int = Field(5, ge=1, description="number of clients (K)")
    amount: float = Field(
        1.0, gt=0, le=1, description="share of its images that every client keeps; the rest is unused"
    )
    workers: int = Field(
        0,
        ge=0,
        description="number of workers, each of which trains on the images of one of its clients per round, "
        "in turn; 0: every client takes part itself",
    )

    def extract_features(self, images: ImageSet) -> Features | None:
        """Features [N, D] of the images, for schemes that need them."""
        return None

    def split(
        self,
        labels: Indices | None,
        seed: int,
        domains: Indices | None = None,
        count: int | None = None,
        features: Features | None = None,
    ) -> list[Indices]:
        """Assign images to clients.

        Args:
            labels: the class of each image.
            seed: seed of the random draws.
            domains: the domain of each image.
            count: the number of images, if there are neither labels nor domains.
            features: features of each image [N, D].

        Returns:
            Sorted index arrays, one per client; a pure function of the arguments and options.
        """
        pool = _pool(labels, domains, count, features)
        clients = self.clients_for(pool)
        if pool.count < clients:
            raise DataError(
                f"{pool.count} images are too few for {clients} clients: "
                f"use at most partition.clients={pool.count}, or more images"
            )
        parts = self.deal(pool, numpy_rng(seed, "partition"))
        return [np.sort(self._part_of(part, seed, client)) for client, part in enumerate(parts)]

    def _part_of(self, images: Indices, seed: int, client: int) -> Indices:
        """A random `amount` of a client's images, at least one; smaller amounts are nested."""
        if self.amount == 1:
            return images
        order = numpy_rng(seed, "partition", "amount", client).permutation(np.sort(images))
        return order[: max(1, round(self.amount * len(images)))]

    def clients_for(self, pool: Pool) -> int:
        """The number of clients for this pool."""
        return self.clients

    def deal(self, pool: Pool, rng: np.random.Generator) -> list[Indices]:
        """Assign images to clients.

        Args:
            pool: the images.
            rng: for random draws.

        Returns:
            The indices of each client's images, in any order.
        """
        raise TypeError(f"{type(self).__name__} does not define deal")

    def by_class(self, pool: Pool, rng: np.random.Generator) -> list[Indices]:
        """The images of each class that occurs, shuffled; classes in the order of their labels."""
        if pool.labels is None:
            raise DataError(
                f"partition.scheme={self.scheme} needs labels, but this data set has none: "
                "use partition.scheme=iid"
            )
        return group_by_label(rng.permutation(pool.count), pool.labels)


def _pool(
    labels: Indices | None, domains: Indices | None, count: int | None, features: Features | None
) -> Pool:
    sizes = {"labels": labels, "domains": domains}
    known = {name: array.shape for name, array in sizes.items() if array is not None}
    if count is not None:
        known["count"] = (count,)
    if features is not None:
        known["features"] = features.shape[:1]
    if not known:
        raise DataError("partition needs labels, domains or count")
    if len(set(known.values())) > 1 or any(len(shape) != 1 for shape in known.values()):
        shapes = ", ".join(f"{name} {shape}" for name, shape in known.items())
        raise DataError(f"labels, domains and features must have one row per image; the shapes are: {shapes}")
    return Pool(next(iter(known.values()))[0], labels, domains, features)


def group_by_label(images: Indices, labels: Indices) -> list[Indices]:
    """Group images by label, in the order of labels; each group keeps the given order."""
    kinds = labels[images]
    order = np.argsort(kinds, kind="stable")
    starts = np.flatnonzero(np.diff(kinds[order])) + 1
    return np.split(images[order], starts)


def split_evenly(total: int, shares: int) -> Indices:
    """Split `total` into shares that differ by at most one, larger ones first."""
    sizes = np.full(shares, total // shares, dtype=np.int64)
    sizes[: total % shares] += 1
    return sizes


def deal_groups(groups: Sequence[Indices], amounts: NDArray[np.int64]) -> list[Indices]:
    """Give every client the next `amounts[client, group]` images of each group."""
    pieces = [np.split(group, np.cumsum(taken)[:-1]) for group, taken in zip(groups, amounts.T, strict=True)]
    return [np.concatenate(own) for own in zip(*pieces, strict=True)]
