"""The proximal term of FedProx and Ditto."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor


def proximal(own: Sequence[Tensor], anchor: Sequence[Tensor], mu: float) -> Tensor:
    """μ/2·‖w − w_g‖² over all parameters; the anchor takes no gradient."""
    if len(own) != len(anchor):
        raise ValueError(f"{len(own)} parameters and {len(anchor)} anchors: the numbers must be equal")
    return cast(Tensor, _Proximal.apply(mu, anchor, *own))


class _Proximal(torch.autograd.Function):
    """Process all parameters in one call, which is faster for many small tensors."""

    @staticmethod
    def forward(ctx: Any, mu: float, anchor: Sequence[Tensor], *own: Tensor) -> Tensor:
        ctx.mu, ctx.apart = mu, torch._foreach_sub(list(own), list(anchor))
        return mu / 2 * torch.stack(torch._foreach_norm(ctx.apart)).square().sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *torch._foreach_mul(ctx.apart, ctx.mu * gradients[0])
