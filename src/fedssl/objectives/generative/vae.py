"""The same split on a β-VAE (PaDPaF, appendix C.2.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedssl.models.model import Model, Part, Role
from fedssl.models.options import ModelConfig
from fedssl.objectives.barlow_twins import barlow_twins
from fedssl.objectives.generative.image import ImageModel, canvas_of
from fedssl.objectives.generative.losses import Latents, draw_pairs, same_content, same_style
from fedssl.objectives.generative.networks import FlatTrunk, Trunk, build_projector
from fedssl.objectives.losses import full_precision


class VAE(ImageModel):
    """β-VAE with shared content and private style (PaDPaF): reconstruction + β·KL + λ·Γ (Eqs. 14, 16).

    As in the authors' code, the reconstruction error is a mean over pixels, and KL is multiplied by
    (latents ÷ values of an image); β and λ are on that scale.

    | part | role |
    |---|---|
    | encoder, posterior, projector | shared: φ^c, q(z^c given x), g^c |
    | style_encoder, style_posterior, style_projector | private: the same for the style |
    | generator | shared decoder |
    | vectorizer, modulation | private decoder parts |
    """

    trunk: ClassVar[type[Trunk]] = FlatTrunk

    beta: float = Field(0.01, ge=0, description="β: weight of the KL divergence from the prior")
    regularizer: float = Field(
        0.001, ge=0, description="λ: weight of both Barlow Twins terms; at most β is advisable"
    )
    off_diagonal: float = Field(0.005, ge=0, description="λ_BT: weight of their redundancy term")

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        style, own = self.style_encoder(canvas_of(encoder))
        return Model(
            encoder=Part(encoder),
            posterior=Part(nn.Linear(features, 2 * self.latent)),
            projector=Part(build_projector(features, config)),
            style_encoder=Part(style, Role.PRIVATE),
            style_posterior=Part(nn.Linear(own, 2 * self.latent), Role.PRIVATE),
            style_projector=Part(build_projector(own, config), Role.PRIVATE),
            **self.generator_parts(canvas_of(encoder)),
        )

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        images = views[0]
        count, device = len(images), images.device
        with torch.no_grad():
            pairs = draw_pairs(count, self.latent, 0, rng).to(device)
            fakes = self.generate(model, pairs, rng)
        everything = torch.cat((images, fakes))
        latents, total = [], torch.zeros((), device=device)
        for prefix, paired in (("", same_content), ("style_", same_style)):
            features = model.part(f"{prefix}encoder")(everything)
            mean, log_variance = model.part(f"{prefix}posterior")(features[:count]).chunk(2, dim=1)
            noise = torch.randn(count, self.latent, generator=rng).to(device)
            latents.append(mean + (0.5 * log_variance).exp() * noise)
            projected = model.part(f"{prefix}projector")(features[count:])
            total = total + self.beta * self.latent / images[0].numel() * divergence(mean, log_variance)
            total = total + self.regularizer * barlow_twins(*paired(projected), self.off_diagonal)
        drawn = self.generate(model, Latents(*latents), rng)
        canvas = canvas_of(model)
        return total + reconstruction(drawn, images, (canvas.white - canvas.black) / 2)

    def classes(self, model: Model) -> int:
        """The VAE is unconditional."""
        return 0


@full_precision
def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL divergence of N(mean, variance) from N(0, I), in nats per image."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()


@full_precision
def reconstruction(drawn: Tensor, images: Tensor, unit: float) -> Tensor:
    """Mean (x − x̂)² for pixels in [−1, 1]; `unit` is the length of 1 on the scale of the images."""
    return ((drawn - images) / unit).square().mean()
