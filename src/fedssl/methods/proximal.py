"""The pull towards another model that FedProx and Ditto add to a loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def proximal(own: Sequence[Tensor], anchor: Sequence[Tensor], mu: float) -> Tensor:
    """μ/2·‖w − w_g‖² over parameters taken as one vector."""
    apart = [(weight - fixed).square().sum() for weight, fixed in zip(own, anchor, strict=True)]
    return mu / 2 * torch.stack(apart).sum()
