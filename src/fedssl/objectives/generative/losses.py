"""Adversarial losses, and paired latents for the regularizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedssl.objectives.losses import full_precision

Kind = Literal["hinge", "log"]


@full_precision
def discriminator_adversarial(real: Tensor, fake: Tensor, kind: Kind) -> Tensor:
    """The discriminator's loss from its scores of real and generated images.

    hinge: mean (1 − D(x))₊ + mean (1 + D(x̃))₊; log: −mean log σ(D(x)) − mean log(1 − σ(D(x̃))) (Eq. 9).
    """
    if kind == "hinge":
        return F.relu(1 - real).mean() + F.relu(1 + fake).mean()
    return F.softplus(-real).mean() + F.softplus(fake).mean()


@full_precision
def generator_adversarial(fake: Tensor, kind: Kind) -> Tensor:
    """The generator's loss: −mean D(x̃), or −mean log σ(D(x̃)).

    The latter is the non-saturating form of mean log(1 − σ(D(x̃))) in Eq. 9: the same fixed points, without
    vanishing gradients (Goodfellow et al. 2014, section 3).
    """
    return -fake.mean() if kind == "hinge" else F.softplus(-fake).mean()


@dataclass(frozen=True)
class Latents:
    """Content latents z^c, style latents z^s, and the labels of a conditional model."""

    content: Tensor
    style: Tensor
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.content)

    def to(self, device: torch.device) -> Latents:
        return Latents(
            self.content.to(device),
            self.style.to(device),
            None if self.labels is None else self.labels.to(device),
        )


def draw_latents(count: int, size: int, classes: int, rng: torch.Generator) -> Latents:
    """Sample latents from N(0, I), and labels uniformly if there are classes (§4.1)."""
    content, style = torch.randn(2, count, size, generator=rng).unbind()
    labels = torch.randint(classes, (count,), generator=rng) if classes else None
    return Latents(content, style, labels)


def draw_pairs(count: int, size: int, classes: int, rng: torch.Generator) -> Latents:
    """Sample latents in which every content occurs twice with different styles, and vice versa.

    Row i of the first half has the content of row i of the second half and the style of row i + 1
    (cyclically). One batch of generated images thus serves the adversarial loss and both terms of Γ
    (Eq. 14). Content is z^c, with the label if there is one. There are at least `count` rows, and at least
    four, since a correlation needs two pairs.
    """
    half = draw_latents(max(2, (count + 1) // 2), size, classes, rng)
    return Latents(
        half.content.repeat(2, 1),
        torch.cat((half.style, half.style.roll(1, 0))),
        None if half.labels is None else half.labels.repeat(2),
    )


def same_content(features: Tensor) -> tuple[Tensor, Tensor]:
    """Split features of images from `draw_pairs` into two batches with the same content in each row."""
    first, second = features.chunk(2)
    return first, second


def same_style(features: Tensor) -> tuple[Tensor, Tensor]:
    """Split features of images from `draw_pairs` into two batches with the same style in each row."""
    first, second = features.chunk(2)
    return first, second.roll(-1, 0)
