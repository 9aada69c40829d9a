"""Images with objects: boxes, classes and, if the data set has them, masks.

Masks are never derived from boxes: data with boxes only are scored on boxes only.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedssl.errors import DataError
from fedssl.rng import numpy_rng

MAX_SIDE = 800  # shorter side of images without detection.size

Pixels = NDArray[np.uint8]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Scene:
    """One image and its objects."""

    image: Tensor  # uint8 [H, W, C]
    boxes: Tensor  # float32 [n, 4]: x0, y0, x1, y1 in pixels
    labels: Tensor  # int64 [n], from 1: 0 is the background
    crowd: Tensor  # bool [n]: ignored by the score
    masks: Tensor | None = None  # bool [n, H, W]


@dataclass(frozen=True)
class Scenes:
    """A set of scenes that are read one at a time."""

    name: str
    classes: tuple[str, ...]  # of labels 1, 2, …
    has_masks: bool
    sizes: tuple[tuple[int, int], ...]  # height and width of every image
    read: Callable[[int], Scene]
    indices: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: int) -> Scene:
        return self.read(self.indices[place])

    def subset(self, places: Sequence[int] | NDArray[np.int64]) -> Scenes:
        return replace(self, indices=tuple(self.indices[place] for place in places))

    def some(self, count: int, *purpose: int | str) -> Scenes:
        """A random subset for a purpose; a smaller subset is contained in a larger one."""
        order = numpy_rng(0, "scenes", *purpose).permutation(len(self))
        return self.subset(np.sort(order[:count]))

    @property
    def side(self) -> int:
        """The median shorter side, at most MAX_SIDE."""
        shorter = [min(self.sizes[index]) for index in self.indices]
        return min(MAX_SIDE, round(statistics.median(shorter)))


def scene(
    image: Pixels,
    boxes: NDArray[Any],
    labels: NDArray[Any],
    masks: Sequence[Mask] | None = None,
    crowd: NDArray[np.bool_] | None = None,
) -> Scene:
    """Convert arrays to a scene; an image without objects has empty ones."""
    height, width = image.shape[:2]
    stacked = None if masks is None else np.array(masks, dtype=bool).reshape(-1, height, width)
    return Scene(
        torch.from_numpy(np.ascontiguousarray(image)),
        torch.from_numpy(np.asarray(boxes, dtype=np.float32).reshape(-1, 4)),
        torch.from_numpy(np.asarray(labels, dtype=np.int64)),
        torch.from_numpy(np.zeros(len(labels), dtype=bool) if crowd is None else crowd),
        None if stacked is None else torch.from_numpy(stacked),
    )


def box_of(mask: Mask) -> tuple[float, float, float, float]:
    """The smallest box around a mask."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)


def read_pixels(file: Path) -> Pixels:
    try:
        with Image.open(file) as image:
            return np.array(image.convert("RGB"))
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error}") from None
