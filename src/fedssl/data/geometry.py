"""Crops and blurs of whole batches, each image with its own parameters.

Both take the rows of an image apart from its columns: a row of the result is a sum of a few rows of
the image, each with its own weight. Sums of weighted rows are what `embedding_bag` is made for, and
take half the time of a bilinear sampling pixel by pixel; columns are rows of the image turned over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

TRIES = 10  # torchvision gives up on a crop that fits after so many, and takes the centre


class Crops:
    """Draws crops as torchvision's RandomResizedCrop does, for V views of N images at once.

    `area` is a range of shares of the image's area for each view (one from 1 on: no crop at all),
    `ratio` one of width / height.
    """

    uniforms = 2 * TRIES + 2  # uniform numbers that one crop takes

    def __init__(
        self, size: tuple[int, int], area: Sequence[tuple[float, float]], ratio: Sequence[tuple[float, float]]
    ) -> None:
        shares, ratios = torch.tensor(area), torch.tensor(ratio).log_()
        self.area, self.area_span = _range(shares * (size[0] * size[1]))
        self.ratio, self.ratio_span = _range(ratios)
        self.limits = torch.tensor(size, dtype=torch.float32)[:, None, None]
        whole = (0, 0, *size)
        rest = [whole if low >= 1 else central(size, r) for (low, _), r in zip(area, ratio, strict=True)]
        self.rest = torch.tensor(rest, dtype=torch.float32).T[..., None]
        self.whole = shares[:, :1] >= 1

    def __call__(self, uniform: Tensor) -> Tensor:
        """Top, left, height, width [4, V, N] in whole pixels, from uniform numbers [uniforms, V, N]."""
        areas, ratios, corners = uniform.split_with_sizes((TRIES, TRIES, 2))
        areas = areas * self.area_span + self.area
        ratios = (ratios * self.ratio_span + self.ratio).exp_()
        tries = torch.stack((areas / ratios, areas * ratios)).sqrt_().round_()
        fits = ((tries >= 1) & (tries <= self.limits[:, None])).all(0)
        first = fits.int().argmax(0)
        sides = tries.gather(1, first.expand(2, 1, *first.shape)).squeeze(1)
        room = self.limits - sides
        # A number just below 1 can be rounded up in the product, hence the minimum.
        corners = (corners * (room + 1)).floor_().minimum(room)
        return torch.where(fits.any(0) & ~self.whole, torch.cat((corners, sides)), self.rest)


def central(size: tuple[int, int], ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    """Top, left, height, width of the largest central crop whose width / height is allowed."""
    height, width = size
    if width < ratio[0] * height:
        height = round(width / ratio[0])
    elif width > ratio[1] * height:
        width = round(height * ratio[1])
    return (size[0] - height) // 2, (size[1] - width) // 2, height, width


class Taps(NamedTuple):
    """Lines as sums of other lines: which K of them, and with which weights, each [..., K]."""

    which: Tensor
    weight: Tensor


def resized(start: Tensor, length: Tensor, mirrored: Tensor, side: int) -> Taps:
    """A line of `side` pixels that shows a part of one: for parts [...], taps [..., side, 2].

    Every pixel lies between two of the part, and has of each what the other is away. What lies beyond
    the centres of the part's first and last pixel repeats them, as in cutting it out and then resizing
    it; what lies outside of the line is black.
    """
    # Pairs lie in one dimension from the start: one of two is slow to work on.
    centres, neighbour = _pairs(side)
    pixel = centres.index_select(0, mirrored.flatten().int()).view(*mirrored.shape, 2 * side)
    pixel = pixel.mul_(length[..., None]).sub_(0.5).clamp_min_(0).minimum(length[..., None] - 1)
    pixel.add_(start[..., None])
    wanted = pixel.floor().add_(neighbour)
    index = wanted.clamp(0, side - 1)
    away = torch.sub(wanted, pixel).abs_().add_(wanted.sub_(index).abs_())
    weight = away.neg_().add_(1).clamp_min_(0)
    return Taps(*(part.view(*mirrored.shape, side, 2) for part in (index.int(), weight)))


@lru_cache(maxsize=8)
def _pairs(side: int) -> tuple[Tensor, Tensor]:
    """Of a line resized to `side` pixels, their centres as shares, each twice, and mirrored; 0, 1, 0, 1, …"""
    centres = ((torch.arange(side) + 0.5) / side).repeat_interleave(2)
    return torch.stack((centres, centres.flip(0))), torch.arange(2.0).repeat(side)


def mix(lines: Tensor, taps: Taps) -> Tensor:
    """Sums of weighted lines: of groups of lines [*G, L, P], taps [..., *G, L', K] make [..., *G, L', P]."""
    *groups, count, length = lines.shape
    first = torch.arange(math.prod(groups), dtype=torch.int32, device=lines.device).mul_(count)
    index = taps.which + first.view(*groups, 1, 1)
    weight = taps.weight.expand(index.shape)
    taken = index.shape[-1]
    sums = functional.embedding_bag(
        index.view(-1, taken),
        lines.reshape(-1, length),
        mode="sum",
        per_sample_weights=weight.reshape(-1, taken),
    )
    return sums.view(*index.shape[:-1], length)


def sample(images: Tensor, rows: Taps, columns: Taps) -> Tensor:
    """Of images [N, H, W, C], where rows [V, N, H', 2] and columns [V, N, W', 2] cross: [V, N, C, W', H'].

    The sides change places because columns are mixed as the rows of images turned over; nothing is
    gained by turning them back before the colours are done.
    """
    mixed = mix(images.flatten(2), rows)
    mixed = mixed.view(*mixed.shape[:3], *images.shape[2:])
    turned = mixed.permute(0, 1, 4, 3, 2).contiguous()
    return mix(turned, Taps(*(part.unsqueeze(2) for part in columns)))


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur of [..., C, W, H] by deviations [...], reflected at the borders: [..., H, W, C]."""
    *_, width, height = images.shape
    mixed = mix(images, gaussian(sigma[..., None], width)).transpose(-1, -3).contiguous()
    return mix(mixed.flatten(-2), gaussian(sigma, height)).view(mixed.shape)


def kernel_size(side: int) -> int:
    """About a tenth of the side (23 of 224), odd, at least 3 where reflection leaves room for it."""
    return min(max(3, side // 10 | 1), 2 * side - 1)


def gaussian(sigma: Tensor, side: int) -> Taps:
    """The blur of a line of `side` pixels: indices [side, K], the same for all, and weights [..., 1, K]."""
    size = kernel_size(side)
    tap = torch.arange(size, dtype=sigma.dtype, device=sigma.device) - size // 2
    weight = torch.softmax(-0.5 * (tap / sigma[..., None, None]).square(), -1)
    return Taps(_reflected(side, size).to(sigma.device, torch.int32), weight)


def _reflected(side: int, size: int) -> Tensor:
    """[side, size]: on which pixels of a line the taps of a kernel fall that is centred on each of them."""
    source = (torch.arange(side)[:, None] + torch.arange(size) - size // 2).abs()
    return (side - 1) - (side - 1 - source).abs()


def _range(ranges: Tensor) -> tuple[Tensor, Tensor]:
    """Where ranges [V, 2] begin and how long they are, each [V, 1]."""
    return ranges[:, :1], ranges[:, 1:] - ranges[:, :1]
