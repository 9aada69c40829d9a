"""What the image GAN and the linear one share: two discriminators, one of content and one of style."""

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
    deception,
    discrimination,
    draw_latents,
    draw_pairs,
    same_content,
    same_style,
)
from fedssl.objectives.objective import Objective

# Parts of the model, by who trains them.
DISCRIMINATORS = ("encoder", "critic", "projector", "style_encoder", "style_critic", "style_projector")
GENERATORS = ("generator", "label_modulation", "modulation", "vectorizer", "lens")


class Adversarial(Objective):
    """F_i = f_i + λ·Γ_i (Eqs. 9, 14, 15): D^c and D^s judge together, Barlow Twins tells them apart.

    `loss` lets both players move at once, for methods that train any objective; `discriminator_loss` and
    `generator_loss` are for those that let them take turns (Algorithm 1).
    """

    views: ClassVar[str] = "plain"
    num_views: ClassVar[int] = 1

    adversarial: Kind = Field("hinge", description="hinge, or the log-loss of Eq. 9")
    regularizer: float = Field(0.1, ge=0, description="λ: weight of both Barlow Twins terms")
    off_diagonal: float = Field(0.005, ge=0, description="λ_BT: weight of their redundancy term")

    # --- what a kind of model has to say ------------------------------------------------------------

    def latent_size(self, model: Model) -> int:
        """The length of z^c, and of z^s."""
        raise TypeError(f"{type(self).__name__} does not say how long its latents are")

    def generate(self, model: Model, latents: Latents) -> Tensor:
        """Images like the normalised ones that the discriminators see."""
        raise TypeError(f"{type(self).__name__} does not say how it draws")

    def classes(self, model: Model) -> int:
        """Of a conditional model; 0: it is none."""
        return 0

    def choices(self, labels: Tensor | None) -> Tensor | None:
        """What the labels of generated images are drawn from, given those of a real batch; none: all."""
        return None

    def prepare(
        self, model: Model, images: ClientImages, round: int, rng: torch.Generator
    ) -> dict[str, float]:
        """What happens before a client trains, by other means than gradients; numbers for its log."""
        return {}

    # --- the game -----------------------------------------------------------------------------------

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        judged = self.discriminator_loss(model, views[0], labels, rng)
        return judged + self.generator_loss(model, len(views[0]), labels, rng)

    def discriminator_loss(
        self, model: Model, images: Tensor, labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        """Real against generated, for both discriminators, + λΓ; generated images take no gradient."""
        latents = self._draw(draw_pairs, model, len(images), labels, rng).to(images.device)
        with torch.no_grad():
            fakes = self.fakes(model, latents, rng)
        everything = self.blurred(model, torch.cat((images, fakes)), rng)
        total = torch.zeros((), device=images.device)
        for prefix, pairs in (("", same_content), ("style_", same_style)):
            features = model.part(f"{prefix}encoder")(everything)
            known = None if prefix else _joined(labels, latents.labels)
            real, fake = model.part(f"{prefix}critic")(features, known).split((len(images), len(fakes)))
            total = total + discrimination(real, fake, self.adversarial)
            if self.regularizer:
                projected = model.part(f"{prefix}projector")(features[len(images) :])
                gamma = barlow_twins(*pairs(projected), self.off_diagonal)
                total = total + self.regularizer * gamma
        return total

    def generator_loss(self, model: Model, count: int, labels: Tensor | None, rng: torch.Generator) -> Tensor:
        """Both discriminators are to take generated images for real; they themselves take no gradient."""
        device = next(model.parameters()).device
        latents = self._draw(draw_latents, model, count, labels, rng).to(device)
        total = torch.zeros((), device=device)
        with frozen(model, DISCRIMINATORS):
            fakes = self.blurred(model, self.drawn(model, latents, rng), rng)
            for prefix in ("", "style_"):
                features = model.part(f"{prefix}encoder")(fakes)
                score = model.part(f"{prefix}critic")(features, None if prefix else latents.labels)
                total = total + deception(score, self.adversarial)
        return total

    def drawn(self, model: Model, latents: Latents, rng: torch.Generator) -> Tensor:
        """Generated images while players train."""
        return self.generate(model, latents)

    def fakes(self, model: Model, latents: Latents, rng: torch.Generator) -> Tensor:
        """What discriminators learn to tell from real images."""
        return self.drawn(model, latents, rng)

    def blurred(self, model: Model, images: Tensor, rng: torch.Generator) -> Tensor:
        """Images, real or generated, as discriminators see them while players train."""
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
        return replace(drawn, labels=choices.cpu()[drawn.labels])


def players(model: Model) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Parameters by name: those of the discriminators, and those of the generator."""
    named = list(model.named_parameters())

    def under(parts: Iterable[str]) -> dict[str, nn.Parameter]:
        prefixes = tuple(f"{part}." for part in parts)
        return {name: value for name, value in named if name.startswith(prefixes)}

    return under(DISCRIMINATORS), under(GENERATORS)


@contextmanager
def frozen(model: Model, parts: Iterable[str]) -> Iterator[None]:
    """Gradients flow through these parts but not into them."""
    held = [value for part in parts if model.has(part) for value in model.part(part).parameters()]
    for value in held:
        value.requires_grad_(False)
    try:
        yield
    finally:
        for value in held:
            value.requires_grad_(True)


def _joined(real: Tensor | None, fake: Tensor | None) -> Tensor | None:
    """The labels of real and generated images; a model without labels takes no notice of the real ones'."""
    return None if real is None or fake is None else torch.cat((real, fake))
