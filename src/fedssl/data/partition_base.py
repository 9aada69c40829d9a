"""What every partition scheme shares: its options, the checks, and how amounts become index arrays."""

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
SCHEME = "how images are dealt to clients (see `fedssl list partitions`)"


@dataclass(frozen=True)
class Pool:
    """What a scheme may look at: how many images there are, and the class and domain of each if known."""

    count: int
    labels: Indices | None
    domains: Indices | None
    features: Features | None = None  # [count, D], for schemes that go by the images themselves


class Partition(Options):
    """Deals the images of one data set to clients. A scheme of your own overrides `deal`."""

    by_site: ClassVar[bool] = False  # whether folders of images are sites to it, not classes

    scheme: str = Field("iid", description=SCHEME)
    clients: int = Field(5, ge=1, description="number of clients (K)")
    amount: float = Field(
        1.0, gt=0, le=1, description="share of its images that every client has; the rest is left out"
    )
    workers: int = Field(
        0,
        ge=0,
        description="fewer workers than clients take part, each for its own clients in turn, one a round; "
        "0: every client is its own",
    )

    def look(self, images: ImageSet) -> Features | None:
        """Features [N, D] of the images that the scheme goes by; most go by labels and need none."""
        return None

    def split(
        self,
        labels: Indices | None,
        seed: int,
        domains: Indices | None = None,
        count: int | None = None,
        features: Features | None = None,
    ) -> list[Indices]:
        """Sorted index arrays, one a client: a pure function of labels, domains, features, options and seed.

        `count` says how many images there are where there are neither labels nor domains.
        """
        pool = _pool(labels, domains, count, features)
        clients = self.clients_for(pool)
        if pool.count < clients:
            raise DataError(
                f"{pool.count} images cannot be dealt to {clients} clients: "
                f"use at most partition.clients={pool.count}, or more images"
            )
        parts = self.deal(pool, numpy_rng(seed, "partition"))
        return [np.sort(self._part_of(part, seed, client)) for client, part in enumerate(parts)]

    def _part_of(self, images: Indices, seed: int, client: int) -> Indices:
        """A random `amount` of a client's images, at least one: a smaller amount is part of a larger one."""
        if self.amount == 1:
            return images
        order = numpy_rng(seed, "partition", "amount", client).permutation(np.sort(images))
        return order[: max(1, round(self.amount * len(images)))]

    def clients_for(self, pool: Pool) -> int:
        """How many clients this pool is dealt to."""
        return self.clients

    def deal(self, pool: Pool, rng: np.random.Generator) -> list[Indices]:
        """The images of each client, in any order."""
        raise TypeError(f"{type(self).__name__} does not say how it deals images")

    def by_class(self, pool: Pool, rng: np.random.Generator) -> list[Indices]:
        """The images of each class that occurs, shuffled; classes in the order of their labels."""
        if pool.labels is None:
            raise DataError(
                f"partition.scheme={self.scheme} needs labels, and this data set has none: "
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
        raise DataError("labels, domains or count must say how many images there are")
    if len(set(known.values())) > 1 or any(len(shape) != 1 for shape in known.values()):
        told = ", ".join(f"{name} {shape}" for name, shape in known.items())
        raise DataError(f"one label and one domain an image are needed, but the shapes are: {told}")
    return Pool(next(iter(known.values()))[0], labels, domains, features)


def group_by_label(images: Indices, labels: Indices) -> list[Indices]:
    """`images` by label, each group in the order given; groups in the order of their labels."""
    kinds = labels[images]
    order = np.argsort(kinds, kind="stable")
    starts = np.flatnonzero(np.diff(kinds[order])) + 1
    return np.split(images[order], starts)


def split_evenly(total: int, shares: int) -> Indices:
    """`total` in whole shares that differ by at most one, larger ones first."""
    sizes = np.full(shares, total // shares, dtype=np.int64)
    sizes[: total % shares] += 1
    return sizes


def deal_groups(groups: Sequence[Indices], amounts: NDArray[np.int64]) -> list[Indices]:
    """Every client's images, if it takes `amounts[client, group]` off each group in turn."""
    pieces = [np.split(group, np.cumsum(taken)[:-1]) for group, taken in zip(groups, amounts.T, strict=True)]
    return [np.concatenate(own) for own in zip(*pieces, strict=True)]
