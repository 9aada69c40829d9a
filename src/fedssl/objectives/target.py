"""The target network of MoCo and BYOL: a slow copy of encoder and projector that never leaves the client."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedssl.models.model import Model, Part, Role


class Target(nn.Module):
    """Encoder and projector; their tensors are named as the online ones, below `target.`."""

    def __init__(self, encoder: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.projector = projector

    def forward(self, images: Tensor) -> Tensor:
        projection: Tensor = self.projector(self.encoder(images))
        return projection


def target_part(encoder: nn.Module, projector: nn.Module, takes_gradient: bool = False) -> Part:
    """A target network that starts as a copy of the online network."""
    target = Target(copy.deepcopy(encoder), copy.deepcopy(projector))
    target.requires_grad_(takes_gradient)
    return Part(target, Role.PRIVATE, copy_of=("encoder", "projector"))


@torch.no_grad()
def follow(model: Model, momentum: float) -> None:
    """Wᵗ ← m·Wᵗ + (1−m)·W on parameters (FedEMA, Algorithm 1, line 22).

    BatchNorm statistics are excluded: as in BYOL and MoCo, the target runs in training mode and has its own.
    """
    own: list[Tensor] = list(model.part("target").parameters())
    online: list[Tensor] = [*model.part("encoder").parameters(), *model.part("projector").parameters()]
    torch._foreach_lerp_(own, online, 1 - momentum)
