"""Simpson's paradox as a federation (PaDPaF, appendix C.1): points on a plane as images of two grey pixels.

Client i of M has x in [M − i, M − i + 1] and y = x + b_i with a bias b_i in [L(i − 1), Li]: each client's
line rises, while over all of them y falls with x. Both coordinates are standardised, then stored as grey
values from −RANGE to RANGE; data.mean=0.5, data.std=0.2 turn these back into standardised numbers. A
client is a domain, so partition.scheme=domain deals the points to their owners.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fedssl.data.images import ImageSet
from fedssl.rng import numpy_rng

if TYPE_CHECKING:
    from fedssl.config import DataConfig
    from fedssl.data.sets import Progress

CLIENTS, POINTS, WEIGHT = 8, 50, 1.0
RANGE = 2.5  # standard deviations from black to grey, and from grey to white


def simpson(config: DataConfig, progress: Progress | None = None) -> tuple[ImageSet, ImageSet]:
    """8 × 50 points and as many to test: rising lines of clients that fall over all (L = 4)."""
    return _points("simpson", spread=4.0)


def simpson_cluttered(config: DataConfig, progress: Progress | None = None) -> tuple[ImageSet, ImageSet]:
    """The same with the clients' lines closer to each other (L = 2)."""
    return _points("simpson-cluttered", spread=2.0)


def _points(name: str, spread: float) -> tuple[ImageSet, ImageSet]:
    rng = numpy_rng(0, "data", name)
    client = np.arange(1, CLIENTS + 1)
    bias = spread * (client - 1 + rng.random(CLIENTS))
    owner = np.repeat(np.arange(CLIENTS), POINTS)
    splits = []
    for _ in ("train", "test"):
        x = CLIENTS - client[owner] + rng.random(len(owner))
        splits.append(np.stack((x, WEIGHT * x + bias[owner]), axis=1))
    mean, std = splits[0].mean(0), splits[0].std(0)
    names = tuple(f"client {number}" for number in client)

    def images(points: np.ndarray) -> ImageSet:  # type: ignore[type-arg]
        grey = (((points - mean) / std / RANGE + 1) * 127.5).round().clip(0, 255).astype(np.uint8)
        pixels = torch.from_numpy(grey.reshape(-1, 1, 2, 1))
        return ImageSet(pixels, domain=torch.from_numpy(owner), domains=names, name=name, mirrored=False)

    return images(splits[0]), images(splits[1])
