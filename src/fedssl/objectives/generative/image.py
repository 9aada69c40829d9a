"""What the generative models of images share: the encoders' shape, and a generator of content and style."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from fedssl.models.encoders import Encoder
from fedssl.models.model import Model, Part, Role
from fedssl.objectives.generative.canvas import Canvas
from fedssl.objectives.generative.losses import Latents
from fedssl.objectives.generative.networks import Generator, Modulation, Trunk, Vectorizer, conditional_norm
from fedssl.objectives.objective import Objective

if TYPE_CHECKING:
    from fedssl.config import Config


class ImageModel(Objective):
    """Draws images from z^c and z^s; `encoder` is its shared network of content features."""

    trunk: ClassVar[type[Trunk]] = Trunk
    conditional: ClassVar[bool] = False
    views: ClassVar[str] = "plain"
    num_views: ClassVar[int] = 1
    own_encoder: ClassVar[str] = "content encoder"

    features: int = Field(64, ge=8, description="length of φ^c, and channels of the smallest maps")
    style_features: int = Field(0, ge=0, description="length of φ^s; 0: as `features`")
    latent: int = Field(128, ge=1, description="length of z^c and of z^s")
    growth: Literal[1, 2] = Field(1, description="2: channels halve whenever the side doubles")
    blocks: int = Field(2, ge=0, description="residual blocks of an encoder after those that halve")
    patch: Literal[1, 2, 4] = Field(1, description="side of the pixel blocks that networks see as channels")
    channel_noise: float = Field(
        0.02, ge=0, description="deviation of the noise in the generator while it trains; 0: none"
    )

    def encoder(self, config: Config, size: tuple[int, int], channels: int) -> Encoder:
        canvas = Canvas.of(config.data, size, channels, f"objective.name={self.name}")
        trunk, kwargs = self._trunk(canvas, self.features)
        trunk.canvas = canvas
        return Encoder(trunk, self.features, describe_own(self.trunk, kwargs, self.features))

    def style_encoder(self, canvas: Canvas) -> tuple[nn.Module, int]:
        """A fresh private encoder, and the length of its features."""
        features = self.style_features or self.features
        return self._trunk(canvas, features)[0], features

    def drawing_parts(self, canvas: Canvas, classes: int = 0) -> dict[str, Part]:
        """The shared generator, and the private parts through which the style speaks."""
        generator = Generator(
            canvas.side,
            canvas.channels,
            self.features,
            self.latent,
            self.growth,
            self.patch,
            classes,
            self.channel_noise,
        )
        modulation = Modulation(generator.normalised, self.latent, self.shares_normalisation)
        return {
            "generator": Part(generator),
            "modulation": Part(modulation, Role.PRIVATE),
            "vectorizer": Part(Vectorizer(self.latent), Role.PRIVATE),
        }

    @property
    def shares_normalisation(self) -> bool:
        """Whether half of the channels that the style could condition are conditioned on the label."""
        return False

    def latent_size(self, model: Model) -> int:
        """The length of z^c, and of z^s."""
        return self.latent

    def generate(self, model: Model, latents: Latents, rng: torch.Generator | None = None) -> Tensor:
        """Images, normalised like those that encoders see; with `rng`, with the noise of training."""
        style = model.part("vectorizer")(latents.style)
        by_label = model.part("label_modulation")(latents.labels) if self.shares_normalisation else []
        modulation = cast(Modulation, model.part("modulation"))
        normalise = conditional_norm(modulation.norms, modulation(style), by_label)
        drawn = model.part("generator")(latents.content, normalise, latents.labels, rng)
        if model.has("lens"):
            drawn = model.part("lens")(drawn, style)
        return canvas_of(model).normalised(drawn)

    def _trunk(self, canvas: Canvas, features: int) -> tuple[Trunk, dict[str, Any]]:
        kwargs = {
            "side": canvas.side,
            "channels": canvas.channels,
            "features": features,
            "growth": self.growth,
            "blocks": self.blocks,
            "patch": self.patch,
        }
        return self.trunk(**kwargs), kwargs


def canvas_of(model: Model | nn.Module) -> Canvas:
    """What the generator of this model (or beside this encoder) draws on."""
    trunk = model.part("encoder") if isinstance(model, Model) else model
    return cast(Trunk, trunk).canvas


def describe_own(factory: type[nn.Module], kwargs: dict[str, Any], features: int) -> dict[str, Any]:
    """Like `fedssl.models.describe.describe`, for encoders that timm has nothing like."""
    return {
        "format": 1,
        "library": "fedssl",
        "factory": f"{factory.__module__}.{factory.__qualname__}",
        "kwargs": kwargs,
        "changes": [],
        "features": features,
    }
