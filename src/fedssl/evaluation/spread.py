"""Detection of collapsed features, without labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fedssl.data.federation import Federation
from fedssl.data.images import ImageSet
from fedssl.data.options import DataConfig
from fedssl.evaluation.features import extract, feature_std

IMAGES = 256  # enough for a standard deviation
COLLAPSED = 0.01  # below this, features hardly differ between images


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
        """Compute `feature_std` like the kNN monitor, on fewer images."""
        features = extract(encoder, self.images, mean=self.data.mean, std=self.data.std, device=self.device)
        return {"feature_std": feature_std(features)}


def warn_of_collapse(feature_std: float, round: int) -> str:
    """A warning if features have collapsed, else an empty string."""
    if feature_std >= COLLAPSED:
        return ""
    return (
        f"warning: round {round}: features have collapsed (their spread is {feature_std:.4f}, healthy "
        "features have about 1): try a smaller train.lr, or another objective"
    )
