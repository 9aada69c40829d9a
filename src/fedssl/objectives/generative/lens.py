"""A private lens after the shared generator: geometric and tonal changes that channel gains cannot make.

PaDPaF's style is a gain and a bias per channel, which cannot flip or rotate a digit; the paper notes this
(§5) and leaves better designs open (§6). A lens adds a rotation, zoom, shift and tone curve that depend on
the style vector, and a discrete orientation per client (mirrored, upside down, negative). The shared
generator then draws every class the same way, and each client's lens renders it in that client's domain,
including classes the client has no images of.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SPEED = 10.0  # learning-rate multiplier: the lens must converge while the shared generator still changes
MAX_ROTATION = math.pi / 3  # flips cover the rest; without a bound, an untrained lens diverges
MAX_SHIFT = 0.5  # of half a side
MIRRORED, UPSIDE_DOWN, NEGATIVE = 1, 2, 4  # bits of an orientation
FLIPS = (0, MIRRORED, UPSIDE_DOWN, MIRRORED | UPSIDE_DOWN)
MEMORY = 0.8  # weight of earlier rounds in the running similarities
MIN_SIMILARITY = 0.4  # flips with less similarity are not considered
MARGIN = 0.05  # hysteresis: another orientation must be better by this much


class Lens(nn.Module):
    """Transforms generated images in [−1, 1] according to the style and the client's orientation.

    Attributes:
        orientation: bits MIRRORED, UPSIDE_DOWN and NEGATIVE; not differentiable, set by `update_orientation`.
        tone: running mean of the tone similarity.
        flips: running mean of the similarity under each of FLIPS.
    """

    orientation: Tensor
    tone: Tensor
    flips: Tensor

    def __init__(self, style: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, style) * (0.1 / SPEED))
        self.bias = nn.Parameter(torch.zeros(6))
        self.scale = SPEED / math.sqrt(style)
        self.register_buffer("orientation", torch.zeros((), dtype=torch.int64))
        self.register_buffer("tone", torch.zeros(()))
        self.register_buffer("flips", torch.zeros(len(FLIPS)))

    def params(self, style: Tensor) -> Tensor:
        """Parameters for a batch of styles [B, 6]: rotation, zoom, right, down, tone gain, tone bias."""
        return F.linear(style, self.weight * self.scale, self.bias * SPEED)

    def warp(self, drawn: Tensor, params: Tensor) -> Tensor:
        """Rescale generated images to [0, 1] and warp them; the orientation is applied later."""
        return warp((drawn + 1) / 2, params[:, :4])

    def update_orientation(self, found: Similarity) -> None:
        """Update the running similarities, and switch to another orientation if it is clearly better."""
        self.tone.lerp_(self.tone.new_tensor(found.tone), 1 - MEMORY)
        self.flips.lerp_(found.flips.to(self.flips) * self._tone_sign(), 1 - MEMORY)
        if float(self.tone) * self._tone_sign() < -MARGIN:
            self.orientation ^= NEGATIVE
            self.flips.zero_()  # they were measured with the other tone
        best = int(self.flips.argmax())
        if self.flips[best] > max(MIN_SIMILARITY, float(self.flips[int(self.orientation) & 3]) + MARGIN):
            self.orientation.fill_((int(self.orientation) & NEGATIVE) | FLIPS[best])

    def _tone_sign(self) -> int:
        return -1 if int(self.orientation) & NEGATIVE else 1

    def forward(self, drawn: Tensor, style: Tensor) -> Tensor:
        params = self.params(style)
        ink = orient(self.warp(drawn, params), int(self.orientation))
        gain, bias = params[:, 4:, None, None, None].unbind(1)
        return torch.addcmul(bias, ink, 1 + gain) * 2 - 1


def warp(ink: Tensor, params: Tensor) -> Tensor:
    """Rotate, zoom and shift images [B, C, H, W] by parameters [B, 4]; pixels from outside are black."""
    turn, zoom, right, down = params.tanh().unbind(1)
    angle, scale = MAX_ROTATION * turn, torch.exp(-zoom)
    cos, sin = torch.cos(angle) * scale, torch.sin(angle) * scale
    first = torch.stack((cos, sin, -MAX_SHIFT * right), 1)
    second = torch.stack((-sin, cos, -MAX_SHIFT * down), 1)
    grid = F.affine_grid(torch.stack((first, second), 1), list(ink.shape), align_corners=False)
    return F.grid_sample(ink, grid, align_corners=False)


def orient(ink: Tensor, orientation: int) -> Tensor:
    """Apply an orientation to images in [0, 1]."""
    if orientation & MIRRORED:
        ink = ink.flip(-1)
    if orientation & UPSIDE_DOWN:
        ink = ink.flip(-2)
    return 1 - ink if orientation & NEGATIVE else ink


class Similarity(NamedTuple):
    """Cosine similarity of generated and real class means.

    Attributes:
        tone: from 1 to −1; −1 is a perfect negative.
        flips: similarity under each of FLIPS [4].
    """

    tone: float
    flips: Tensor


def compare_means(bare: Tensor, seen: Tensor, real: Tensor) -> Similarity:
    """Compare class means of generated images with those of real ones, all [labels, C, H, W].

    The tone is compared over all pixels, under the flip with the largest absolute similarity. Flips are
    compared after the mean over classes is subtracted, since it carries no information about them.

    Args:
        bare: images of the shared generator without the lens.
        seen: the same images after `Lens.warp`.
        real: the client's own images.
    """
    tones = [_cosine(orient(bare - bare.mean(), orientation), real - real.mean()) for orientation in FLIPS]
    generated, wanted = seen - seen.mean(0), real - real.mean(0)
    flips = [_cosine(orient(generated, orientation), wanted) for orientation in FLIPS]
    return Similarity(max(tones, key=abs), torch.tensor(flips))


def class_means(images: Tensor, labels: Tensor) -> Tensor:
    """The mean image of each label that occurs, in the order of labels."""
    return torch.stack([images[labels == label].mean(0) for label in sorted(set(labels.tolist()))])


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0))
