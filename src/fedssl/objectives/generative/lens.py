"""A private lens between the shared generator and the image: what gains of channels cannot do.

PaDPaF's style is a gain and a bias for every channel, which is not made for turning a digit over: the paper
says so of flips and rotations (§5), and leaves better designs open (§6). Through a lens, a style also turns,
zooms and shifts what the content generator has drawn, and changes its tone; the client holds the lens
upright, mirrored or upside down, as a positive or a negative. So a label that a client never saw is drawn by
the shared generator like all others, and looks the way this client's images look.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SPEED = 10.0  # a lens has to find its place while the shared generator still learns what to draw
MOST_TURN = math.pi / 3  # flips do the rest; without an end, a lens that sees nothing yet runs away
MOST_SHIFT = 0.5  # of half a side
MIRRORED, UPSIDE_DOWN, NEGATIVE = 1, 2, 4  # ways to hold a lens; sums of them are ways, too
FLIPS = (0, MIRRORED, UPSIDE_DOWN, MIRRORED | UPSIDE_DOWN)
MEMORY = 0.8  # of what rounds before have seen, when the next one decides
ENOUGH = 0.4  # agreement of flips from which on they say anything
MARGIN = 0.05  # by how much another way has to agree better, so that noise does not turn a lens over


class Lens(nn.Module):
    """What a style does to images in [−1, 1] once they are drawn."""

    way: Tensor  # how it is held; no gradient leads from one way to another
    tone: Tensor  # running means of agreements, which say how to hold it
    flips: Tensor

    def __init__(self, style: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, style) * (0.1 / SPEED))
        self.bias = nn.Parameter(torch.zeros(6))
        self.scale = SPEED / math.sqrt(style)
        self.register_buffer("way", torch.zeros((), dtype=torch.int64))
        self.register_buffer("tone", torch.zeros(()))
        self.register_buffer("flips", torch.zeros(len(FLIPS)))

    def said(self, style: Tensor) -> Tensor:
        """What styles ask for [B, 6]: turn, zoom, right, down; gain and bias of the tone."""
        return F.linear(style, self.weight * self.scale, self.bias * SPEED)

    def placed(self, drawn: Tensor, said: Tensor) -> Tensor:
        """What is drawn, from black 0 to white 1, where styles want it; upright and positive still."""
        return placed((drawn + 1) / 2, said[:, :4])

    def hold(self, found: Agreement) -> None:
        """Turn the lens over, if another way has agreed clearly better for some time."""
        self.tone.lerp_(self.tone.new_tensor(found.tone), 1 - MEMORY)
        self.flips.lerp_(found.flips.to(self.flips) * self._sign(), 1 - MEMORY)
        if float(self.tone) * self._sign() < -MARGIN:
            self.way ^= NEGATIVE
            self.flips.zero_()  # they were those of a negative
        best = int(self.flips.argmax())
        if self.flips[best] > max(ENOUGH, float(self.flips[int(self.way) & 3]) + MARGIN):
            self.way.fill_((int(self.way) & NEGATIVE) | FLIPS[best])

    def _sign(self) -> int:
        return -1 if int(self.way) & NEGATIVE else 1

    def forward(self, drawn: Tensor, style: Tensor) -> Tensor:
        said = self.said(style)
        ink = held(self.placed(drawn, said), int(self.way))
        gain, bias = said[:, 4:, None, None, None].unbind(1)
        return torch.addcmul(bias, ink, 1 + gain) * 2 - 1


def placed(ink: Tensor, said: Tensor) -> Tensor:
    """Images turned, zoomed and shifted as four numbers each ask for; what comes in from outside is black."""
    turn, zoom, right, down = said.tanh().unbind(1)
    cos, sin = torch.cos(MOST_TURN * turn) * torch.exp(-zoom), torch.sin(MOST_TURN * turn) * torch.exp(-zoom)
    across = torch.stack((cos, sin, -MOST_SHIFT * right), 1)
    along = torch.stack((-sin, cos, -MOST_SHIFT * down), 1)
    grid = F.affine_grid(torch.stack((across, along), 1), list(ink.shape), align_corners=False)
    return F.grid_sample(ink, grid, align_corners=False)


def held(ink: Tensor, way: int) -> Tensor:
    """Images in [0, 1] through a lens that is held this way."""
    if way & MIRRORED:
        ink = ink.flip(-1)
    if way & UPSIDE_DOWN:
        ink = ink.flip(-2)
    return 1 - ink if way & NEGATIVE else ink


class Agreement(NamedTuple):
    """How much mean images that are drawn are like real ones, label by label."""

    tone: float  # from 1 to −1, which is a perfect negative
    flips: Tensor  # of a lens that is held in each of the FLIPS, [4]


def agreement(bare: Tensor, seen: Tensor, real: Tensor) -> Agreement:
    """Of mean images [labels, C, H, W]: as the shared generator draws them, through the lens, and real ones.

    The tone is compared over all pixels, in the flip that says most. Of flips, what all labels have in
    common says nothing.
    """
    tones = [_cosine(held(bare - bare.mean(), way), real - real.mean()) for way in FLIPS]
    apart, wanted = seen - seen.mean(0), real - real.mean(0)
    flips = [_cosine(held(apart, way), wanted) for way in FLIPS]
    return Agreement(max(tones, key=abs), torch.tensor(flips))


def means(images: Tensor, labels: Tensor) -> Tensor:
    """The mean image of each label that occurs, in the order of labels."""
    return torch.stack([images[labels == label].mean(0) for label in sorted(set(labels.tolist()))])


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0))
