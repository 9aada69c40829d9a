"""Stylization: a procedural style per client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedssl.data.shifts import Shift

CHUNK = 64  # images at a time, to stay in the processor's cache


class Stylization(Shift):
    """One fixed style per client: palette, brush and canvas (similar to Dec-SSL, §B.4).

    The paper uses a style-transfer network (Geirhos et al. 2019), whose weights would have to be downloaded.
    These styles are procedural instead. Client i of K has a palette of hue 2πi/K, to which the mean and
    deviation of every channel are moved (like AdaIN's of features), a brush that smooths along the angle
    πi/K, and a canvas of stripes across it. Styles are deterministic, keep the position of content, and
    differ between all clients.
    """

    name: str = Field(
        "stylization", description="transform of each client's images (see `fedssl list shifts`)"
    )
    strength: float = Field(0.7, gt=0, le=1, description="strength of the style; 0 would be no change")

    def apply(self, x: Tensor, client: int, clients: int) -> Tensor:
        if len(x) == 0:
            return x
        style = Style.of(client % clients, clients)
        return torch.cat([_painted(part, style, self.strength) for part in torch.split(x, CHUNK)])


@dataclass(frozen=True)
class Style:
    """The parameters of a client's style."""

    hue: float  # of the palette, in radians
    angle: float  # of the brush, in radians
    stroke: int  # length of a brush stroke in pixels
    thread: float  # from stripe to stripe of the canvas, in pixels

    @staticmethod
    def of(client: int, clients: int) -> Style:
        share = client / clients
        return Style(
            2 * math.pi * share, math.pi * share, (3, 5, 1)[client % 3], (3.0, 4.5, 6.5, 9.0)[client % 4]
        )


def _painted(x: Tensor, style: Style, strength: float) -> Tensor:
    """Apply a style to uint8 images [B, H, W, C]."""
    planes = x.permute(0, 3, 1, 2).float() / 255
    painted = _brushed(planes, style)
    mean, deviation = palette(style, planes.shape[1])
    own_deviation, own_mean = torch.std_mean(painted, dim=(2, 3), keepdim=True, correction=0)
    scaled = (painted - own_mean) / (own_deviation + 1e-3)
    painted = scaled * deviation.to(x.device) + mean.to(x.device)
    painted = painted * canvas(style, x.shape[1], x.shape[2]).to(x.device)
    mixed = planes.lerp(painted, strength).clamp_(0, 1)
    return (mixed * 255).round_().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def palette(style: Style, channels: int) -> tuple[Tensor, Tensor]:
    """Mean and deviation [1, C, 1, 1] of the painted channels: three phases of the hue."""
    phases = style.hue + torch.arange(channels) * (2 * math.pi / 3)
    mean, deviation = 0.5 + 0.22 * torch.cos(phases), 0.18 + 0.07 * torch.sin(phases)
    return mean.view(1, -1, 1, 1), deviation.view(1, -1, 1, 1)


@lru_cache(maxsize=256)
def canvas(style: Style, height: int, width: int) -> Tensor:
    """Factors [H, W] around 1: stripes across the brush."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    along = columns * math.cos(style.angle) + rows * math.sin(style.angle)
    return 1 + 0.25 * torch.sin(2 * math.pi * along / style.thread)


@lru_cache(maxsize=256)
def _brush(style: Style, channels: int) -> Tensor:
    """A line of `stroke` pixels at the brush's angle, as a kernel for each channel."""
    side = style.stroke
    kernel = torch.zeros(side, side)
    for step in range(-(side // 2), side // 2 + 1):
        row, column = round(step * math.sin(style.angle)), round(step * math.cos(style.angle))
        kernel[side // 2 + row, side // 2 + column] += 1 / side
    return kernel.expand(channels, 1, side, side)


def _brushed(planes: Tensor, style: Style) -> Tensor:
    margin = style.stroke // 2
    padded = F.pad(planes, (margin,) * 4, mode="replicate")
    kernel = _brush(style, planes.shape[1]).to(planes.device)
    return F.conv2d(padded, kernel, groups=planes.shape[1])
