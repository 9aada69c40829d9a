"""`data.mean` and `data.std`: one number for all channels, or one per channel."""

from __future__ import annotations

import torch
from torch import Tensor

from fedssl.errors import ConfigError

Levels = float | tuple[float, ...]


def per_channel(levels: Levels, channels: int) -> list[float]:
    """Expand to one number per channel."""
    values = [levels] * channels if isinstance(levels, int | float) else list(levels)
    if len(values) != channels:
        raise ConfigError(
            f"data.mean and data.std must be one number, or one for each of the images' {channels} channels, "
            f"not {len(values)}"
        )
    return values


def shortest(values: tuple[float, ...]) -> Levels:
    """Reduce to one number if all channels have the same."""
    return values[0] if len(set(values)) == 1 else values


def by_channel(levels: Levels, like: Tensor) -> float | Tensor:
    """Shape the numbers so that they broadcast to images [B, C, H, W]."""
    if isinstance(levels, int | float):
        return levels
    return torch.tensor(per_channel(levels, like.shape[1]), device=like.device).view(1, -1, 1, 1)
