"""Images as one uint8 tensor, in memory or memory-mapped."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST_CHANNELS = 16


@dataclass(frozen=True)
class ImageSet:
    """A set of images.

    Attributes:
        x: pixels, uint8 [N, H, W, C].
        y: the class of each image, int64 [N]; None if unknown.
        classes: the names of the classes.
        domain: the domain (site, style) of each image, int64 [N]; None if unknown.
        domains: the names of the domains.
        name: of the data set.
        warnings: to show to the user.
        mirrored: whether mirroring an image preserves its class, which is not so for digits.
        attributes: further binary labels, bool [N, A]; None if unknown.
    """

    x: Tensor
    y: Tensor | None = None
    classes: tuple[str, ...] = ()
    domain: Tensor | None = None
    domains: tuple[str, ...] = ()
    name: str = ""
    warnings: tuple[str, ...] = field(default=())
    mirrored: bool = True
    attributes: Tensor | None = None

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
