"""Features of images from a frozen encoder, and checks of them before anything is fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.data.images import ImageSet
from fedssl.data.views import plain
from fedssl.errors import ConfigError, DataError
from fedssl.normalization import Levels

if TYPE_CHECKING:
    from fedssl.progress import Progress

BATCH = 256  # images


def extract(
    encoder: nn.Module,
    images: ImageSet,
    *,
    mean: Levels,
    std: Levels,
    device: torch.device,
    progress: Progress | None = None,
) -> Tensor:
    """Extract features without augmentation; the encoder's training mode is restored.

    Args:
        encoder: the encoder.
        images: its images.
        mean: of their normalization.
        std: of their normalization.
        device: where the encoder is.
        progress: called with the images that are done.

    Returns:
        Features [N, D], float32 on the CPU.
    """
    if not len(images):
        raise DataError(f"no images to extract features from in {images.name or 'this set'}")
    training = {module: module.training for module in encoder.modules()}
    encoder.eval()
    features: Tensor | None = None
    try:
        with torch.inference_mode():
            # The batch size is fixed, since it changes the rounding.
            for start in range(0, len(images), BATCH):
                batch = images.x[start : start + BATCH].to(device)
                output = encoder(plain(batch, mean, std))
                if features is None:
                    features = torch.empty(len(images), *output.shape[1:])
                features[start : start + len(batch)] = output
                if progress is not None:
                    progress(start + len(batch), len(images), "features")
    finally:
        for module, mode in training.items():
            module.training = mode
    assert features is not None
    return features.clone()  # inference tensors cannot be used with autograd


class BeforePooling(nn.Module):
    """An encoder's last feature map, flattened, as in the code of L-DAWA's authors (8,192 numbers)."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        if not hasattr(encoder, "forward_features"):
            raise ConfigError(
                f"probe.features=map: {type(encoder).__name__} has no feature map before pooling; use pooled"
            )
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.encoder.forward_features(images)  # type: ignore[operator]
        return features.flatten(1)


def feature_std(features: Tensor) -> float:
    """The spread of features: about 1 if they fill the sphere, 0 if they have collapsed.

    The standard deviation of each dimension of l2-normalized features, averaged over dimensions and
    times √D (Chen and He, Exploring simple Siamese representation learning, 2021, section 4.1).
    """
    unit = F.normalize(features.double(), dim=1)
    return float(unit.std(dim=0, correction=0).mean() * features.shape[1] ** 0.5)


def check_features(features: Tensor) -> None:
    """Raise a DataError unless features are at least one row of finite numbers."""
    if features.ndim != 2 or not features.numel():
        raise DataError(f"features must have shape [N, D], not {list(features.shape)}")
    # A sum in double precision is finite if all numbers are, and several times faster to check.
    if not bool(features.sum(dtype=torch.float64).isfinite()):
        finite = features.isfinite()
        values, rows = int((~finite).sum()), int((~finite).any(dim=1).sum())
        raise DataError(
            f"{values} of {features.numel()} feature values are NaN or infinite, in {rows} of {len(features)}"
            " images: the encoder has diverged; train with a smaller train.lr, or set train.clip"
        )


def check_labeled(features: Tensor, labels: Tensor, classes: int) -> None:
    """Raise a DataError unless each row of valid features has a label in 0 … classes − 1."""
    check_features(features)
    if labels.shape != (len(features),):
        raise DataError(f"{len(features)} rows of features, but labels of shape {list(labels.shape)}")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise DataError(
            f"labels run from {int(labels.min())} to {int(labels.max())}, but there are {classes} classes"
            f" (0 to {classes - 1})"
        )
