"""An encoder with a part that is tuned on the task."""

from __future__ import annotations

from torch import Tensor, nn


class Tuned(nn.Module):
    """A frozen part, followed by a part that a personal probe trains together with its classifier."""

    def __init__(self, frozen: nn.Module, tuned: nn.Module) -> None:
        super().__init__()
        self.frozen, self.tuned = frozen, tuned

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.tuned(self.frozen(images))
        return features
