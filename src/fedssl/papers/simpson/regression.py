"""Federated linear regression with a shared weight and private biases (PaDPaF, Figures 3 and 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.models.encoders import Encoder
from fedssl.models.model import Model, Part, Role
from fedssl.models.options import ModelConfig
from fedssl.objectives.generative.image import describe_trunk
from fedssl.objectives.generative.losses import Latents
from fedssl.objectives.objective import Objective
from fedssl.papers.simpson.model import COORDINATES, as_images, as_points
from fedssl.papers.simpson.points import PIXELS

if TYPE_CHECKING:
    from fedssl.config import Config


class Slope(nn.Module):
    """x ↦ w·x for points (x, y)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        return (self.weight * as_points(images)[:, 0])[:, None]


class Intercept(nn.Module):
    """x ↦ x + b."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class LinearRegression(Objective):
    """ŷ = w·x + b by least squares, with a shared w and, by default, a private b."""

    views: ClassVar[str] = "plain"
    num_views: ClassVar[int] = 1
    own_encoder: ClassVar[str] = "slope"

    private_bias: bool = Field(True, description="give each client its own bias; false: one line for all")

    def encoder(self, config: Config, size: tuple[int, int], channels: int) -> Encoder:
        if (*size, channels) != (COORDINATES, PIXELS, 1):
            raise ConfigError(
                f"objective.name={self.name} needs points of a plane, not images of {size[0]}×"
                f"{size[1]}×{channels}: set data.name=simpson"
            )
        return Encoder(Slope(), 1, describe_trunk(Slope, {}, 1))

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        role = Role.PRIVATE if self.private_bias else Role.SHARED
        return Model(encoder=Part(encoder), intercept=Part(Intercept(), role))

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        predicted: Tensor = model.part("intercept")(model.part("encoder")(views[0]))[:, 0]
        return (predicted - as_points(views[0])[:, 1]).square().mean()

    def latent_size(self, model: Model) -> int:
        """The length of x."""
        return 1

    def classes(self, model: Model) -> int:
        """The model is unconditional."""
        return 0

    def generate(self, model: Model, latents: Latents) -> Tensor:
        """Generate points on the client's line; x is the content latent."""
        x = latents.content
        points = torch.cat((x, x), 1)
        y = model.part("intercept")(model.part("encoder")(as_images(points)))
        return as_images(torch.cat((x, y), 1))
