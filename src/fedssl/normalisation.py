"""`data.mean` and `data.std`: one number for all channels, or one for each."""

from __future__ import annotations

import torch
from torch import Tensor

from fedssl.errors import ConfigError

Levels = float | tuple[float, ...]


def per_channel(levels: Levels, channels: int) -> list[float]:
    """One number for each channel."""
    values = [levels] * channels if isinstance(levels, int | float) else list(levels)
    if len(values) != channels:
        raise ConfigError(
            f"data.mean and data.std are one number, or one for each of the images' {channels} channels, "
            f"not {len(values)}"
        )
    return values


def shortest(values: tuple[float, ...]) -> Levels:
    """One number where all channels have the same."""
    return values[0] if len(set(values)) == 1 else values


def by_channel(levels: Levels, like: Tensor) -> float | Tensor:
    """What images [B, C, H, W] can be multiplied with or added to."""
    if isinstance(levels, int | float):
        return levels
    return torch.tensor(per_channel(levels, like.shape[1]), device=like.device).view(1, -1, 1, 1)
