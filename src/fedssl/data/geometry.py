"""Crops and blurs of whole batches, each image with its own parameters.

A crop, its resizing and a flip are one bilinear sampling. A blur is two small matrix products per
image, which is faster than convolutions with a kernel for every image. Images are [N, C, H, W].
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

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


def positions(start: Tensor, length: Tensor, side: int) -> Tensor:
    """Where the pixels of a crop, resized to all of a line of `side` pixels, lie in it: [..., side].

    From -1 to 1 between the outer edges of the line, as `sample` wants it. What lies beyond the
    centres of the crop's first and last pixel repeats them, as in cutting it out and then resizing.
    """
    share = (torch.arange(side) + 0.5) / side
    pixel = (length[..., None] * share).sub_(0.5).clamp_min_(0).minimum(length[..., None] - 1)
    return pixel.add_(start[..., None] + 0.5).mul_(2 / side).sub_(1)


def sample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Bilinear values of the images where rows [N, H] and columns [N, W] cross; black outside."""
    shape = (len(images), rows.shape[1], columns.shape[1])
    grid = torch.stack((columns.unsqueeze(1).expand(shape), rows.unsqueeze(2).expand(shape)), -1)
    return functional.grid_sample(images, grid, align_corners=False)


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur with standard deviations [N], reflected at the borders."""
    height, width = images.shape[2:]
    rows = gaussian(sigma, height)[:, None]
    columns = rows if width == height else gaussian(sigma, width)[:, None]
    return rows @ (images @ columns.mT)


def kernel_size(side: int) -> int:
    """About a tenth of the side (23 of 224), odd, at least 3 where reflection leaves room for it."""
    return min(max(3, side // 10 | 1), 2 * side - 1)


def gaussian(sigma: Tensor, side: int) -> Tensor:
    """The blur of a line of `side` pixels as a matrix [N, side, side]."""
    size = kernel_size(side)
    tap = torch.arange(size, dtype=sigma.dtype, device=sigma.device) - size // 2
    weight = torch.softmax(-0.5 * (tap / sigma[:, None]).square(), 1)
    return torch.mm(weight, _taps(side, size, sigma.device)).view(-1, side, side)


@lru_cache(maxsize=8)
def _taps(side: int, size: int, device: torch.device) -> Tensor:
    """[size, side · side]: 1 where a tap of the kernel, centred on one pixel, falls on another."""
    source = (torch.arange(side) + torch.arange(size)[:, None] - size // 2).abs()
    source = (side - 1) - (side - 1 - source).abs()
    return functional.one_hot(source, side).to(device, torch.float32).view(size, -1)


def _range(ranges: Tensor) -> tuple[Tensor, Tensor]:
    """Where ranges [V, 2] begin and how long they are, each [V, 1]."""
    return ranges[:, :1], ranges[:, 1:] - ranges[:, :1]
