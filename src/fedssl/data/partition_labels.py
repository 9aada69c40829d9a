"""Partitions of PaDPaF: equal parts with some labels dropped, and one client per attribute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from fedssl.data.partition_base import SCHEME, Features, Indices, Partition, Pool
from fedssl.data.partition_classes import IID
from fedssl.errors import DataError

if TYPE_CHECKING:
    from fedssl.data.images import ImageSet


class LabelDrop(IID):
    """Equal IID parts from which each client drops all images of some labels (PaDPaF, appendix C.2).

    Each client keeps the first labels of a random permutation, so that a label may be kept by one client
    only, or by none. Dropped images are unused.
    """

    scheme: str = Field("label-drop", description=SCHEME)
    clients: int = Field(8, ge=1, description="number of clients (K)")
    keep: float = Field(0.5, gt=0, le=1, description="share of the labels that a client keeps, rounded up")
    balanced: bool = Field(False, description="let (nearly) equally many clients keep each label")

    def deal(self, pool: Pool, rng: np.random.Generator) -> list[Indices]:
        groups = self.by_class(pool, rng)  # raises without labels
        parts = super().deal(pool, rng)
        assert pool.labels is not None
        names = np.array([pool.labels[group[0]] for group in groups])
        each = int(np.ceil(self.keep * len(names)))
        if self.balanced:
            kept = deal_labels(len(names), each, self.clients, rng)
        else:
            kept = [np.sort(rng.permutation(len(names))[:each]) for _ in range(self.clients)]
        left = [part[np.isin(pool.labels[part], names[own])] for part, own in zip(parts, kept, strict=True)]
        empty = [client for client, part in enumerate(left) if not len(part)]
        if empty:
            raise DataError(
                f"client {empty[0]} has no image of the {len(kept[empty[0]])} labels it keeps: "
                "use fewer clients, more images, or a larger partition.keep"
            )
        return left


def deal_labels(labels: int, each: int, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Give each client `each` different labels, cycling through shuffled lists of all labels."""
    deck: list[int] = []
    dealt = []
    for _ in range(clients):
        hand: list[int] = []
        while len(hand) < each:
            if not any(label not in hand for label in deck):
                deck += [int(label) for label in rng.permutation(labels)]
            card = next(label for label in deck if label not in hand)
            deck.remove(card)
            hand.append(card)
        dealt.append(np.sort(np.array(hand)))
    return dealt


class Attributes(Partition):
    """One random attribute per client, with all its images (PaDPaF, appendix C.4).

    Images with several attributes belong to several clients. Without attributes, classes take their place.
    """

    scheme: str = Field("attributes", description=SCHEME)
    clients: int = Field(40, ge=1, description="number of clients (K), at most the number of attributes")

    def extract_features(self, images: ImageSet) -> Features | None:
        return None if images.attributes is None else images.attributes.numpy().astype(np.float32)

    def deal(self, pool: Pool, rng: np.random.Generator) -> list[Indices]:
        if pool.features is not None:
            groups = [np.flatnonzero(has) for has in pool.features.T]
        elif pool.labels is not None:
            groups = self.by_class(pool, rng)
        else:
            raise DataError(
                "partition.scheme=attributes needs attributes (celeba with list_attr_celeba.txt) or classes, "
                "but this data set has neither: use partition.scheme=iid"
            )
        if self.clients > len(groups):
            raise DataError(f"partition.clients={self.clients}, but there are only {len(groups)} attributes")
        chosen = rng.permutation(len(groups))[: self.clients]
        empty = [int(number) for number in chosen if not len(groups[number])]
        if empty:
            raise DataError(f"no image has attribute {empty[0]} (counted from 0): use more images")
        return [groups[number] for number in chosen]
