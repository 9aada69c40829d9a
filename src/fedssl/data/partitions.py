"""Partition schemes, and the distance of a partition from IID.

A partition is a pure function of labels, options and seed. It gives every client a sorted array of
indices; arrays are disjoint and never empty, except where a scheme's documentation says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedssl.data.partition_base import Indices, Partition, Pool
from fedssl.data.partition_classes import IID, Classes, OneClass, Skew
from fedssl.data.partition_dirichlet import Dirichlet, DirichletBounded, DirichletEqual
from fedssl.data.partition_domain import Domain
from fedssl.data.parts import Parts
from fedssl.errors import DataError

__all__ = [
    "IID",
    "Classes",
    "Dirichlet",
    "DirichletBounded",
    "DirichletEqual",
    "Domain",
    "OneClass",
    "Partition",
    "Pool",
    "Skew",
    "earth_movers_distance",
]


def earth_movers_distance(labels: Indices, parts: Sequence[Indices]) -> float:
    """Mean earth mover's distance of clients' label distributions from the overall one, weighted by size.

    Dec-SSL (Figure 17) gives no formula. Between unordered classes all moves have equal cost, so the distance
    is the total variation ½·Σ|p−q|, from 0 (IID) to below 1. (Zhao et al. 2018 omit the ½, so their numbers
    are twice as large.)

    Args:
        labels: the class of each image.
        parts: the images of each client.
    """
    kinds, codes = np.unique(labels, return_inverse=True)
    counts = Parts.of(parts).counts(codes, len(kinds))
    if counts.sum() == 0:
        raise DataError("the earth mover's distance of a partition without images is undefined")
    sizes = counts.sum(1, keepdims=True)
    overall = np.bincount(codes) / len(codes)
    # Σ_k (n_k/n) · ½·Σ_c |n_kc/n_k − q_c|, with n_k canceled, so that empty clients count for nothing.
    return float(0.5 * np.abs(counts - sizes * overall).sum() / sizes.sum())
