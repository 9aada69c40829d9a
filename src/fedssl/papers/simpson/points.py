"""Simpson's paradox as a federation (PaDPaF, appendix C.1): points on a plane as images of two gray bars.

Client i of M has x in [M − i, M − i + 1] and y = x + b_i with a bias b_i in [L(i − 1), Li]: each client's
line rises, while y falls with x over all clients. Both coordinates are standardized. Each is stored as the
mean of a bar of pixels, black for −RANGE and white for RANGE; data.mean=0.5 and data.std=0.2 recover the
standardized number. A client is a domain, so partition.scheme=domain assigns the points to their clients.
Every seed draws its own points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fedssl.data.images import ImageSet
from fedssl.rng import numpy_rng

if TYPE_CHECKING:
    from fedssl.data.options import DataConfig
    from fedssl.progress import Progress

CLIENTS, POINTS, WEIGHT = 8, 50, 1.0
SPREADS = {"simpson": 4.0, "simpson-cluttered": 2.0}  # L
RANGE = 2.5  # standard deviations from gray to black, and to white
PIXELS = 16  # per bar; their mean has 16 times the levels of one pixel


@dataclass(frozen=True)
class Sample:
    """Points of all clients, standardized by the training points.

    Attributes:
        train: training points [N, 2].
        test: as many new points on the same lines.
        owner: the client of each point of either set.
        slope: the slope of every client's line.
        intercepts: of each client's line.
    """

    train: NDArray[np.float64]
    test: NDArray[np.float64]
    owner: NDArray[np.int64]
    slope: float
    intercepts: NDArray[np.float64]


def sample(name: str, seed: int) -> Sample:
    """Draw the points of a seed; `name` is a key of SPREADS."""
    rng = numpy_rng(seed, "data", name)
    client = np.arange(1, CLIENTS + 1)
    bias = SPREADS[name] * (client - 1 + rng.random(CLIENTS))
    owner = np.repeat(np.arange(CLIENTS), POINTS)
    splits = []
    for _ in ("train", "test"):
        x = CLIENTS - client[owner] + rng.random(len(owner))
        splits.append(np.stack((x, WEIGHT * x + bias[owner]), axis=1))
    mean, std = splits[0].mean(0), splits[0].std(0)
    train, test = ((points - mean) / std for points in splits)
    intercepts = (WEIGHT * mean[0] + bias - mean[1]) / std[1]
    return Sample(train, test, owner, float(WEIGHT * std[0] / std[1]), intercepts)


def simpson(config: DataConfig, progress: Progress | None = None, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Simpson's paradox: 8 clients with 50 training and 50 test points each (L = 4)."""
    return _images("simpson", seed)


def simpson_cluttered(
    config: DataConfig, progress: Progress | None = None, seed: int = 0
) -> tuple[ImageSet, ImageSet]:
    """Simpson's paradox with the clients' lines closer to each other (L = 2)."""
    return _images("simpson-cluttered", seed)


def bars(points: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Convert standardized points [N, 2] to images [N, 2, PIXELS, 1]."""
    total = ((points / RANGE + 1) * 127.5 * PIXELS).round().clip(0, 255 * PIXELS).astype(np.int64)
    whole, rest = np.divmod(total[..., None], PIXELS)
    return (whole + (np.arange(PIXELS) < rest)).astype(np.uint8)[..., None]


def _images(name: str, seed: int) -> tuple[ImageSet, ImageSet]:
    drawn = sample(name, seed)
    owner, names = torch.from_numpy(drawn.owner), tuple(f"client {number + 1}" for number in range(CLIENTS))

    def images(points: NDArray[np.float64]) -> ImageSet:
        x = torch.from_numpy(bars(points))
        return ImageSet(x, domain=owner, domains=names, name=name, mirrored=False)

    return images(drawn.train), images(drawn.test)
