"""Base class of generative models of images: the encoders, and a generator of content and style."""

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
    """Generates images from z^c and z^s; `encoder` is the shared network of content features."""

    trunk: ClassVar[type[Trunk]] = Trunk
    conditional: ClassVar[bool] = False
    views: ClassVar[str] = "plain"
    num_views: ClassVar[int] = 1
    own_encoder: ClassVar[str] = "content encoder"

    features: int = Field(
        64, ge=8, le=8192, description="length of φ^c, and channels of the smallest feature maps"
    )
    style_features: int = Field(0, ge=0, le=8192, description="length of φ^s; 0: same as `features`")
    latent: int = Field(128, ge=1, le=1 << 16, description="length of z^c and of z^s")
    growth: Literal[1, 2] = Field(1, description="2: channels halve whenever the side doubles")
    blocks: int = Field(
        2, ge=0, le=64, description="residual blocks of an encoder after the downsampling ones"
    )
    patch: Literal[1, 2, 4] = Field(1, description="side of the pixel blocks that are folded into channels")
    channel_noise: float = Field(
        0.02, ge=0, description="standard deviation of the noise in the generator during training; 0: none"
    )

    def encoder(self, config: Config, size: tuple[int, int], channels: int) -> Encoder:
        canvas = Canvas.of(config.data, size, channels, f"objective.name={self.name}")
        trunk, kwargs = self._trunk(canvas, self.features)
        trunk.canvas = canvas
        return Encoder(trunk, self.features, describe_trunk(self.trunk, kwargs, self.features))

    def style_encoder(self, canvas: Canvas) -> tuple[nn.Module, int]:
        """Build a private encoder; returns it and the length of its features."""
        features = self.style_features or self.features
        return self._trunk(canvas, features)[0], features

    def generator_parts(self, canvas: Canvas, classes: int = 0) -> dict[str, Part]:
        """Build the shared generator and the private parts that apply the style."""
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
        modulation = Modulation(generator.norm_widths, self.latent, self.conditions_on_labels)
        return {
            "generator": Part(generator),
            "modulation": Part(modulation, Role.PRIVATE),
            "vectorizer": Part(Vectorizer(self.latent), Role.PRIVATE),
        }

    @property
    def conditions_on_labels(self) -> bool:
        """Whether half of the channels are conditioned on the label instead of the style."""
        return False

    def latent_size(self, model: Model) -> int:
        """The length of z^c, and of z^s."""
        return self.latent

    def generate(self, model: Model, latents: Latents, rng: torch.Generator | None = None) -> Tensor:
        """Generate images, normalized like those that encoders see; with `rng`, with training noise."""
        style = model.part("vectorizer")(latents.style)
        by_label = model.part("label_modulation")(latents.labels) if self.conditions_on_labels else []
        modulation = cast(Modulation, model.part("modulation"))
        normalize = conditional_norm(modulation.norms, modulation(style), by_label)
        drawn = model.part("generator")(latents.content, normalize, latents.labels, rng)
        if model.has("lens"):
            drawn = model.part("lens")(drawn, style)
        return canvas_of(model).normalize(drawn)

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
    """The canvas of a model's generator, given the model or its encoder."""
    trunk = model.part("encoder") if isinstance(model, Model) else model
    return cast(Trunk, trunk).canvas


def describe_trunk(factory: type[nn.Module], kwargs: dict[str, Any], features: int) -> dict[str, Any]:
    """Describe an encoder that timm does not have, as `fedssl.models.describe.describe` does for timm's."""
    return {
        "format": 1,
        "library": "fedssl",
        "factory": f"{factory.__module__}.{factory.__qualname__}",
        "kwargs": kwargs,
        "changes": [],
        "features": features,
    }
