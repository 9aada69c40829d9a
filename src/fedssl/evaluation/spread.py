"""Whether an encoder has collapsed: a number that needs no labels, for every run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fedssl.data.federation import Federation
from fedssl.data.images import ImageSet
from fedssl.data.options import DataConfig
from fedssl.evaluation.features import extract, feature_std

IMAGES = 256  # are enough for a standard deviation
COLLAPSED = 0.01  # below this, all images have all but the same feature


@dataclass(frozen=True)
class Spread:
    """The spread of features of some images, from the test set if there is one."""

    images: ImageSet
    data: DataConfig
    device: torch.device

    @classmethod
    def over(cls, federation: Federation, data: DataConfig, device: torch.device) -> Spread:
        images = federation.train if federation.test is None else federation.test
        few = np.linspace(0, len(images) - 1, min(IMAGES, len(images))).astype(np.int64)
        return cls(images.subset(few), data, device)

    def measure(self, encoder: nn.Module) -> dict[str, float]:
        """`feature_std` as the kNN monitor has it, of fewer images."""
        features = extract(encoder, self.images, mean=self.data.mean, std=self.data.std, device=self.device)
        return {"feature_std": feature_std(features)}


def warn_of_collapse(feature_std: float, round: int) -> str:
    """What to tell a person (empty: nothing)."""
    if feature_std >= COLLAPSED:
        return ""
    return (
        f"warning: round {round}: features have collapsed (their spread is {feature_std:.4f}, where 1 fills "
        "the sphere): try a smaller train.lr, or another objective"
    )
