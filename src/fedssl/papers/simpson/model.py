"""A linear GAN on points of a plane: Simpson's paradox (PaDPaF, section 5 and appendix C.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.errors import ConfigError
from fedssl.models.encoders import Encoder
from fedssl.models.model import Model, Part, Role
from fedssl.models.options import ModelConfig
from fedssl.objectives.generative.adversarial import Adversarial
from fedssl.objectives.generative.image import describe_trunk
from fedssl.objectives.generative.losses import Kind, Latents
from fedssl.papers.simpson.points import PIXELS

if TYPE_CHECKING:
    from fedssl.config import Config

COORDINATES = 2


class PointTrunk(nn.Module):
    """Encodes a point, with one hidden layer."""

    def __init__(self, hidden: int, features: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(COORDINATES, hidden)
        self.out = nn.Linear(hidden, features)

    def forward(self, images: Tensor) -> Tensor:
        return F.leaky_relu(self.out(F.leaky_relu(self.hidden(as_points(images)), 0.2)), 0.2)


class PointCritic(nn.Linear):
    """A linear score; labels are ignored."""

    def __init__(self, features: int) -> None:
        super().__init__(features, 1)

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        return super().forward(features).squeeze(1)


class Line(nn.Module):
    """z ↦ z·w + b in the plane."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(scale * torch.randn(COORDINATES))
        self.bias = nn.Parameter(torch.zeros(COORDINATES))

    def forward(self, z: Tensor) -> Tensor:
        return z * self.weight + self.bias


class Offset(nn.Module):
    """z ↦ b, a constant."""

    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(COORDINATES), persistent=False)
        self.bias = nn.Parameter(torch.zeros(COORDINATES))

    def forward(self, z: Tensor) -> Tensor:
        return self.bias.expand(len(z), -1)


class LinearGAN(Adversarial):
    """Generates points w^c·z^c + b^c + b^s, with a shared weight and bias and a private bias per client.

    With `private_weight`, the private term w^s·z^s is added, so that a client can have its own direction.

    Discriminators also see points from N(0, I) as fakes, so that their scores are meaningful where a client
    has no points (the data are standardized).
    """

    own_encoder: ClassVar[str] = "content encoder"

    adversarial: Kind = Field("log", description="hinge, or the log-loss of Eq. 9")
    hidden: int = Field(32, ge=1, description="width of the discriminators' hidden layer")
    features: int = Field(16, ge=1, description="length of φ^c")
    style_features: int = Field(16, ge=1, description="length of φ^s")
    private_weight: bool = Field(False, description="give each client a private weight w^s as well")
    background: float = Field(0.5, ge=0, lt=1, description="share of the fakes that are drawn from N(0, I)")

    def encoder(self, config: Config, size: tuple[int, int], channels: int) -> Encoder:
        if (*size, channels) != (COORDINATES, PIXELS, 1):
            raise ConfigError(
                f"objective.name={self.name} needs points of a plane, not images of {size[0]}×"
                f"{size[1]}×{channels}: set data.name=simpson, or objective.name=gan"
            )
        kwargs = {"hidden": self.hidden, "features": self.features}
        trunk = PointTrunk(**kwargs)
        return Encoder(trunk, self.features, describe_trunk(PointTrunk, kwargs, self.features))

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        own = self.style_features
        return Model(
            encoder=Part(encoder),
            critic=Part(PointCritic(features)),
            projector=Part(nn.Linear(features, features)),
            style_encoder=Part(PointTrunk(self.hidden, own), Role.PRIVATE),
            style_critic=Part(PointCritic(own), Role.PRIVATE),
            style_projector=Part(nn.Linear(own, own), Role.PRIVATE),
            generator=Part(Line(0.5)),
            vectorizer=Part(Line(0.1) if self.private_weight else Offset(), Role.PRIVATE),
        )

    def latent_size(self, model: Model) -> int:
        return 1

    def generate(self, model: Model, latents: Latents) -> Tensor:
        points = model.part("generator")(latents.content) + model.part("vectorizer")(latents.style)
        return as_images(points)

    def fakes(self, model: Model, latents: Latents, rng: torch.Generator) -> Tensor:
        drawn = self.generate(model, latents)
        elsewhere = torch.rand(len(drawn), generator=rng) < self.background
        points = torch.randn(len(drawn), COORDINATES, generator=rng)
        mask = elsewhere.to(drawn.device)[:, None, None, None]
        return torch.where(mask, as_images(points.to(drawn.device)), drawn)


def as_points(images: Tensor) -> Tensor:
    """Convert images of two bars to points [B, 2], the means of the bars."""
    return images.mean((1, 3))


def as_images(points: Tensor) -> Tensor:
    """Convert points [B, 2] to images of two bars."""
    return points.view(-1, 1, COORDINATES, 1).expand(-1, 1, COORDINATES, PIXELS)
