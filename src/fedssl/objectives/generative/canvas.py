"""The shape of generated images, and the conversion of generator outputs to pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedssl.data.options import DataConfig
from fedssl.errors import ConfigError


@dataclass(frozen=True)
class Canvas:
    """The shape of the images, and the normalized values of black and white (data.mean, data.std)."""

    side: int
    channels: int
    black: float
    white: float

    @staticmethod
    def of(data: DataConfig, size: tuple[int, int], channels: int, what: str) -> Canvas:
        if size[0] != size[1]:
            raise ConfigError(f"{what} needs square images, not {size[0]}×{size[1]}: set data.size")
        mean, std = data.mean, data.std
        if isinstance(mean, tuple) or isinstance(std, tuple):
            raise ConfigError(
                f"{what} needs one number for data.mean and one for data.std, not one per channel"
            )
        return Canvas(size[0], channels, (0 - mean) / std, (1 - mean) / std)

    def normalize(self, drawn: Tensor) -> Tensor:
        """Map values in [−1, 1] to the scale of normalized images."""
        half = (self.white - self.black) / 2
        return drawn * half + (self.black + half)

    def pixels(self, images: Tensor) -> Tensor:
        """Convert normalized images [B, C, H, W] to uint8 [B, H, W, C] on the CPU."""
        unit = (images.detach().float() - self.black) / (self.white - self.black)
        return unit.mul(255).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous().cpu()
