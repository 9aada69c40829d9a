"""Images in memory: one uint8 tensor, or a memory-mapped one that looks the same."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST_CHANNELS = 16


@dataclass(frozen=True)
class ImageSet:
    """`x` uint8 NHWC; `y` and `domain` int64 or None where nothing is known of them."""

    x: Tensor
    y: Tensor | None = None
    classes: tuple[str, ...] = ()
    domain: Tensor | None = None
    domains: tuple[str, ...] = ()
    name: str = ""
    warnings: tuple[str, ...] = field(default=())
    mirrored: bool = True  # whether a mirror image is still of its class: not so for digits
    attributes: Tensor | None = None  # bool [N, A]: what else is true of an image, where that is known

    def __len__(self) -> int:
        return int(self.x.shape[0])

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return int(self.x.shape[1]), int(self.x.shape[2])

    @property
    def channels(self) -> int:
        return int(self.x.shape[3])

    def subset(self, indices: NDArray[np.int64] | Tensor) -> ImageSet:
        """The images at these indices, in that order."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        return replace(
            self,
            x=self.x.index_select(0, index),
            y=None if self.y is None else self.y[index],
            domain=None if self.domain is None else self.domain[index],
            attributes=None if self.attributes is None else self.attributes[index],
        )
