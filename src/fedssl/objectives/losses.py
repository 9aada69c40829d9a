"""Helpers that several losses share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def full_precision(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorator that computes a loss in float32 (or better), whatever the network's precision.

    In bfloat16, exponentials and sums over a batch are too coarse for gradients.
    """

    @wraps(loss)
    def wrapped(first: Tensor, *rest: Any) -> Tensor:
        with torch.autocast(first.device.type, enabled=False):
            return loss(_widened(first), *map(_widened, rest))

    return wrapped


def _widened(value: Any) -> Any:
    is_narrow = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_narrow else value


@full_precision
def negative_cosine(p: Tensor, z: Tensor) -> Tensor:
    """Mean of −cos(p, z) over the batch (SimSiam, Eq. 1)."""
    return -F.cosine_similarity(p, z, dim=1).mean()
