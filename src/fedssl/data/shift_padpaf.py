"""The client transforms of PaDPaF (appendix C), one per client.

Random transforms are seeded by an image's pixels, so that an image is transformed in the same way in every
epoch, process and engine. Values are those of torchvision's transforms with the paper's arguments; sizes in
pixels are relative to the side of the paper's images, and scale with the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedssl.data.shifts import Shift

Transform = Callable[[Tensor], Tensor]  # of uint8 images [B, H, W, C]

SHIFT = "transform of each client's images (see `fedssl list shifts`)"


class ClientTransforms(Shift):
    """Client i has transform i modulo their number."""

    transforms: ClassVar[tuple[Transform, ...]]

    def apply(self, x: Tensor, client: int, clients: int) -> Tensor:
        if not len(x):
            return x
        return type(self).transforms[client % len(type(self).transforms)](x)


# --- random numbers ---------------------------------------------------------------------------------


def uniforms(x: Tensor, count: int) -> Tensor:
    """Numbers in [0, 1) [B, count] that are determined by the pixels of each image."""
    flat = x.reshape(len(x), -1).to(torch.int64)
    mixed = flat @ _weights(flat.shape[1], count)  # modulo 2⁶⁴: a hash by random multipliers
    for shift, factor in ((33, -0xAE502812AA7333), (29, -0x3B314601E57A13AD)):
        mixed = (mixed ^ _right(mixed, shift)) * factor
    return _right(mixed ^ _right(mixed, 32), 11).double() / 2**53


def _right(values: Tensor, shift: int) -> Tensor:
    """Logical right shift."""
    return values.bitwise_right_shift(shift) & ((1 << (64 - shift)) - 1)


@lru_cache(maxsize=8)
def _weights(pixels: int, count: int) -> Tensor:
    rng = torch.Generator().manual_seed(pixels)
    return torch.randint(-(2**62), 2**62, (pixels, count), generator=rng) * 2 + 1


def between(uniform: Tensor, low: float, high: float) -> Tensor:
    return uniform * (high - low) + low


# --- deterministic transforms -----------------------------------------------------------------------


def zoom_in(share: float) -> Transform:
    """CenterCrop of a share of the side, resized to full size."""

    def transform(x: Tensor) -> Tensor:
        height, width = (max(1, round(share * side)) for side in x.shape[1:3])
        top, left = (round((side - own) / 2) for side, own in zip(x.shape[1:3], (height, width), strict=True))
        return _resized(x[:, top : top + height, left : left + width], x)

    return transform


def zoom_out(share: float) -> Transform:
    """Pad by a share of the side on all sides, resized to full size."""

    def transform(x: Tensor) -> Tensor:
        down, right = (round(share * side) for side in x.shape[1:3])
        return _resized(F.pad(x, (0, 0, right, right, down, down)), x)

    return transform


def _resized(x: Tensor, like: Tensor) -> Tensor:
    size = (like.shape[1], like.shape[2])
    planes = F.interpolate(_planes(x), size, mode="bilinear", antialias=True, align_corners=False)
    return _pixels(planes.round_())


def invert(x: Tensor) -> Tensor:
    return 255 - x


def mirror(x: Tensor) -> Tensor:
    return x.flip(2)


def upside_down(x: Tensor) -> Tensor:
    return x.flip(1)


def grayscale(x: Tensor) -> Tensor:
    """ITU-R 601 luma in every channel."""
    if x.shape[3] == 1:
        return x
    red, green, blue = x.to(torch.float32).unbind(3)
    gray = (0.2989 * red + 0.587 * green + 0.114 * blue).to(torch.uint8)
    return gray.unsqueeze(3).expand(x.shape).contiguous()


# --- random transforms ------------------------------------------------------------------------------


def blur(x: Tensor) -> Tensor:
    """GaussianBlur(5, sigma=(0.1, 2.0))."""
    sigma = between(uniforms(x, 1), 0.1, 2.0)
    tap = torch.arange(-2, 3)
    weight = torch.softmax(-0.5 * (tap / sigma).square(), 1).float()[:, :, None, None, None]
    height, width = x.shape[1:3]
    # Reflection needs more pixels than the margin; smaller images repeat their edge.
    margin = F.pad(_planes(x), (2, 2, 2, 2), mode="reflect" if min(height, width) > 2 else "replicate")
    rows = sum(weight[:, i] * margin[:, :, i : i + height] for i in range(5))
    assert isinstance(rows, Tensor)
    both = sum(weight[:, i] * rows[..., i : i + width] for i in range(5))
    assert isinstance(both, Tensor)
    return _pixels(both.round_())


def brightness(x: Tensor) -> Tensor:
    """ColorJitter(brightness=0.8): times a factor from 0.2 to 1.8."""
    factor = between(uniforms(x, 1), 0.2, 1.8).float()[:, :, None, None]
    return (x * factor).clamp_(0, 255).to(torch.uint8)


def solarize(x: Tensor) -> Tensor:
    """RandomSolarize(threshold=192) with p = 0.5."""
    chosen = (uniforms(x, 1) < 0.5)[:, :, None, None]
    return torch.where(chosen & (x >= 192), 255 - x, x)


def rotate(x: Tensor) -> Tensor:
    """RandomRotation(40): nearest pixels, black outside."""
    angle = between(uniforms(x, 1), -40, 40)
    still = torch.zeros_like(angle)
    return _moved(x, angle, still, still, torch.ones_like(angle))


def affine(x: Tensor) -> Tensor:
    """RandomAffine(degrees=(30, 70), translate=(0.1, 0.3), scale=(0.5, 0.75))."""
    angle, right, down, scale = torch.split(uniforms(x, 4), 1, dim=1)
    height, width = x.shape[1:3]
    right = between(right, -0.1 * width, 0.1 * width).round()
    down = between(down, -0.3 * height, 0.3 * height).round()
    # RandomAffine turns clockwise, RandomRotation the other way.
    return _moved(x, -between(angle, 30, 70), right, down, between(scale, 0.5, 0.75))


def perspective(x: Tensor) -> Tensor:
    """RandomPerspective(distortion_scale=0.4, p=1): corners move inwards by up to a fifth of the side."""
    height, width = x.shape[1:3]
    most = torch.tensor([int(0.4 * (side // 2)) for side in (width, height)])
    inward = (uniforms(x, 8).view(-1, 4, 2) * (most + 1)).floor()
    corners = torch.tensor([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]).double()
    ends = corners + inward * torch.tensor([[1, 1], [-1, 1], [-1, -1], [1, -1]])
    # A pixel (x, y) of the result comes from ((ax + by + c) / d, (dx + ey + f) / d), d = gx + hy + 1.
    starts = corners.expand_as(ends)
    ones, zeros = torch.ones(len(x), 4, 1).double(), torch.zeros(len(x), 4, 3).double()
    across = torch.cat((ends, ones, zeros, -starts[..., :1] * ends), 2)
    along = torch.cat((zeros, ends, ones, -starts[..., 1:] * ends), 2)
    known = torch.cat((starts[..., 0], starts[..., 1]), 1)
    a = torch.linalg.solve(torch.cat((across, along), 1), known)[:, :, None, None].unbind(1)
    column, row = torch.arange(width) + 0.5, torch.arange(height)[:, None] + 0.5
    below = a[6] * column + a[7] * row + 1
    source_x = (a[0] * column + a[1] * row + a[2]) / below
    source_y = (a[3] * column + a[4] * row + a[5]) / below
    grid = torch.stack((source_x * 2 / width - 1, source_y * 2 / height - 1), -1).float()
    drawn = F.grid_sample(_planes(x), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return _pixels(drawn.round_())


def color_one(x: Tensor) -> Tensor:
    """(x + 0.5·U³)·U³ on values from −1 to 1, drawn per channel."""
    return _from_unit(_colored(x))


def color_two(x: Tensor) -> Tensor:
    """`color_one`, followed by 2x − 1."""
    return _from_unit(2 * _colored(x) - 1)


def erase(x: Tensor) -> Tensor:
    """RandomErasing(p=1, scale=(0.02, 0.1)): a black rectangle."""
    area, ratio, top, left = uniforms(x, 4).unbind(1)
    height, width = x.shape[1:3]
    area = between(area, 0.02, 0.1) * (height * width)
    ratio = between(ratio, math.log(0.3), math.log(3.3)).exp()
    tall = (area * ratio).sqrt().round().clamp_max(height - 1)
    wide = (area / ratio).sqrt().round().clamp_max(width - 1)
    top, left = (top * (height - tall + 1)).floor(), (left * (width - wide + 1)).floor()
    row, column = torch.arange(height)[:, None], torch.arange(width)

    def inside(place: Tensor, start: Tensor, length: Tensor) -> Tensor:
        start, length = start[:, None, None], length[:, None, None]
        return (place >= start) & (place < start + length)

    hidden = inside(row, top, tall) & inside(column, left, wide)
    return x.masked_fill(hidden.unsqueeze(3), 0)


def _moved(x: Tensor, angle: Tensor, right: Tensor, down: Tensor, scale: Tensor) -> Tensor:
    """Rotate counter-clockwise by degrees, scale about the center, then translate by pixels; each [B, 1]."""
    height, width = x.shape[1:3]
    turn = torch.deg2rad(angle)
    cos, sin = turn.cos() / scale, turn.sin() / scale
    # From a pixel of the result back to the image, in pixels from the center, then from −1 to 1.
    rows = (cos, -sin, -(cos * right - sin * down)), (sin, cos, -(sin * right + cos * down))
    matrix = torch.stack([torch.cat(row, 1) for row in rows], 1)
    matrix = matrix * torch.tensor([[1, height / width, 2 / width], [width / height, 1, 2 / height]])
    grid = F.affine_grid(matrix.float(), [len(x), 1, height, width], align_corners=False)
    return _pixels(F.grid_sample(_planes(x), grid, mode="nearest", align_corners=False))


def _colored(x: Tensor) -> Tensor:
    add, times = uniforms(x, 2 * x.shape[3]).float().view(len(x), 2, 1, 1, -1).unbind(1)
    return (x / 127.5 - 1 + 0.5 * add) * times


def _from_unit(values: Tensor) -> Tensor:
    return values.clamp_(-1, 1).add_(1).mul_(127.5).round_().to(torch.uint8)


def _planes(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2).float()


def _pixels(planes: Tensor) -> Tensor:
    return planes.clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


# --- the federations --------------------------------------------------------------------------------


class MNISTStyles(ClientTransforms):
    """PaDPaF on MNIST: zoom in, zoom out, invert, blur, both flips, rotation by up to 40°, brightness."""

    name: str = Field("padpaf-mnist", description=SHIFT)
    transforms: ClassVar[tuple[Transform, ...]] = (
        zoom_in(22 / 28),
        zoom_out(14 / 28),
        invert,
        blur,
        mirror,
        upside_down,
        rotate,
        brightness,
    )


class CIFARStyles(ClientTransforms):
    """PaDPaF on CIFAR-10: zoom, invert, blur, gray, vertical flip, light, perspective, solarize, colors."""

    name: str = Field("padpaf-cifar10", description=SHIFT)
    transforms: ClassVar[tuple[Transform, ...]] = (
        zoom_in(22 / 32),
        invert,
        blur,
        grayscale,
        upside_down,
        brightness,
        perspective,
        solarize,
        color_one,
        color_two,
    )


class NewStyles(ClientTransforms):
    """PaDPaF's new clients: affine, solarize, erase (appendix C.2.1)."""

    name: str = Field("padpaf-new", description=SHIFT)
    transforms: ClassVar[tuple[Transform, ...]] = (affine, solarize, erase)
