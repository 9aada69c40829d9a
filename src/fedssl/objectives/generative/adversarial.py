"""Base class of the GANs: two discriminators, one for content and one for style."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedssl.data.federation import ClientImages
from fedssl.models.model import Model
from fedssl.objectives.barlow_twins import barlow_twins
from fedssl.objectives.generative.losses import (
    Kind,
    Latents,
    discriminator_adversarial,
    draw_latents,
    draw_pairs,
    generator_adversarial,
    same_content,
    same_style,
)
from fedssl.objectives.objective import Objective

# Parts of the model, by who trains them.
DISCRIMINATORS = ("encoder", "critic", "projector", "style_encoder", "style_critic", "style_projector")
GENERATORS = ("generator", "label_modulation", "modulation", "vectorizer", "lens")


class Adversarial(Objective):
    """F_i = f_i + λ·Γ_i (Eqs. 9, 14, 15): both discriminators score every image, Γ disentangles features.

    `loss` is the sum of both losses, for methods that train any objective. Methods that alternate between
    discriminators and generator (Algorithm 1) call `discriminator_loss` and `generator_loss`.
    """

    views: ClassVar[str] = "plain"
    num_views: ClassVar[int] = 1

    adversarial: Kind = Field("hinge", description="hinge, or the log-loss of Eq. 9")
    regularizer: float = Field(0.1, ge=0, description="λ: weight of both Barlow Twins terms")
    off_diagonal: float = Field(0.005, ge=0, description="λ_BT: weight of their redundancy term")

    # --- what subclasses define ---------------------------------------------------------------------

    def latent_size(self, model: Model) -> int:
        """The length of z^c, and of z^s."""
        raise TypeError(f"{type(self).__name__} does not define latent_size")

    def generate(self, model: Model, latents: Latents) -> Tensor:
        """Generate images, normalized like those that the discriminators see."""
        raise TypeError(f"{type(self).__name__} does not define generate")

    def classes(self, model: Model) -> int:
        """The number of classes of a conditional model; 0 for an unconditional one."""
        return 0

    def choices(self, labels: Tensor | None) -> Tensor | None:
        """The labels to sample those of generated images from, given a real batch; None: all classes."""
        return None

    def prepare(
        self, model: Model, images: ClientImages, round: int, rng: torch.Generator
    ) -> dict[str, float]:
        """Update what is not trained by gradients, before a client trains; returns values for its log."""
        return {}

    # --- losses -------------------------------------------------------------------------------------

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        first = self.discriminator_loss(model, views[0], labels, rng)
        return first + self.generator_loss(model, len(views[0]), labels, rng)

    def discriminator_loss(
        self, model: Model, images: Tensor, labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        """Real against generated images, for both discriminators, + λΓ; the generator gets no gradient."""
        latents = self._draw(draw_pairs, model, len(images), labels, rng).to(images.device)
        with torch.no_grad():
            fakes = self.fakes(model, latents, rng)
        everything = self.add_noise(model, torch.cat((images, fakes)), rng)
        total = torch.zeros((), device=images.device)
        for prefix, pairs in (("", same_content), ("style_", same_style)):
            features = model.part(f"{prefix}encoder")(everything)
            known = None if prefix else _concatenate(labels, latents.labels)  # D^s ignores labels
            real, fake = model.part(f"{prefix}critic")(features, known).split((len(images), len(fakes)))
            total = total + discriminator_adversarial(real, fake, self.adversarial)
            if self.regularizer:
                projected = model.part(f"{prefix}projector")(features[len(images) :])
                gamma = barlow_twins(*pairs(projected), self.off_diagonal)
                total = total + self.regularizer * gamma
        return total

    def generator_loss(self, model: Model, count: int, labels: Tensor | None, rng: torch.Generator) -> Tensor:
        """How well generated images pass for real ones; the discriminators get no gradient."""
        device = next(model.parameters()).device
        latents = self._draw(draw_latents, model, count, labels, rng).to(device)
        total = torch.zeros((), device=device)
        with frozen(model, DISCRIMINATORS):
            fakes = self.add_noise(model, self.training_images(model, latents, rng), rng)
            for prefix in ("", "style_"):
                features = model.part(f"{prefix}encoder")(fakes)
                score = model.part(f"{prefix}critic")(features, None if prefix else latents.labels)
                total = total + generator_adversarial(score, self.adversarial)
        return total

    def training_images(self, model: Model, latents: Latents, rng: torch.Generator) -> Tensor:
        """Generate images during training."""
        return self.generate(model, latents)

    def fakes(self, model: Model, latents: Latents, rng: torch.Generator) -> Tensor:
        """Generate the negatives of the discriminators."""
        return self.training_images(model, latents, rng)

    def add_noise(self, model: Model, images: Tensor, rng: torch.Generator) -> Tensor:
        """Add the noise that discriminators see on real and generated images during training."""
        return images

    def _draw(
        self,
        kind: Callable[[int, int, int, torch.Generator], Latents],
        model: Model,
        count: int,
        labels: Tensor | None,
        rng: torch.Generator,
    ) -> Latents:
        size, choices = self.latent_size(model), self.choices(labels)
        if choices is None:
            return kind(count, size, self.classes(model), rng)
        drawn = kind(count, size, len(choices), rng)
        assert drawn.labels is not None
        return replace(drawn, labels=choices[drawn.labels.to(choices.device)])


def split_parameters(model: Model) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """The parameters of the discriminators and those of the generator, each by name."""
    named = list(model.named_parameters())

    def under(parts: Iterable[str]) -> dict[str, nn.Parameter]:
        prefixes = tuple(f"{part}." for part in parts)
        return {name: value for name, value in named if name.startswith(prefixes)}

    return under(DISCRIMINATORS), under(GENERATORS)


@contextmanager
def frozen(model: Model, parts: Iterable[str]) -> Iterator[None]:
    """Let gradients flow through these parts but not into their parameters."""
    parameters = [value for part in parts if model.has(part) for value in model.part(part).parameters()]
    for value in parameters:
        value.requires_grad_(False)
    try:
        yield
    finally:
        for value in parameters:
            value.requires_grad_(True)


def _concatenate(real: Tensor | None, fake: Tensor | None) -> Tensor | None:
    """Labels of real and generated images; None for an unconditional model."""
    return None if real is None or fake is None else torch.cat((real, fake))
