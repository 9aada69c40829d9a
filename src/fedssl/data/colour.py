"""Colour operations on whole batches, each image with its own strength.

Images are planes: float32 [C, N, H, W] in [0, 1], colour first, because then every colour is one
contiguous block. Everything works in place, and equals the function of the same name in
`torchvision.transforms.functional` applied to each image with its own factor.
"""

from __future__ import annotations

import torch
from torch import Tensor

LUMA = (0.2989, 0.587, 0.114)  # ITU-R 601-2, with torchvision's digits
TINY = 1e-12  # stands in for a chroma of zero: such pixels are grey whatever their hue


def brightness_(planes: Tensor, factor: Tensor) -> Tensor:
    """Scale by `factor` [N] ≥ 0."""
    return planes.mul_(_per_image(factor)).clamp_max_(1)


def contrast_(planes: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean grey of the image: 0 gives flat grey, 1 the image itself."""
    means = planes.mean((2, 3))
    grey = means[0] if len(planes) == 1 else torch.tensor(LUMA, device=means.device) @ means
    return planes.mul_(_per_image(factor)).add_(_per_image((1 - factor) * grey)).clamp_(0, 1)


def saturation_(planes: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grey image: 0 gives greyscale, 1 the image itself."""
    if len(planes) == 1:
        return planes
    grey = luma(planes).mul_(_per_image(1 - factor))
    return planes.mul_(_per_image(factor)).add_(grey).clamp_(0, 1)


def hue_(planes: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of HSV by `shift` [N] in turns, from -0.5 to 0.5.

    With lo, hi and chroma = hi - lo of a pixel, the hue's distance from red is
    1 + (g + b - r - lo) / chroma sextants, on the green side where g > b. Back again, each colour
    is lo + chroma · t with t a trapezium in the hue's distance from a fixed point. So there is no
    case distinction over which colour is the largest, and few passes over memory.
    """
    if len(planes) == 1:
        return planes
    red, green, blue = planes
    lo = torch.minimum(red, green)
    torch.minimum(lo, blue, out=lo)
    chroma = torch.maximum(red, green)
    torch.maximum(chroma, blue, out=chroma)
    chroma.sub_(lo).mul_(6).clamp_min_(TINY)  # in sixths, so that hues come out in turns
    hue = torch.add(green, blue).sub_(red).sub_(lo).div_(chroma).add_(1 / 6)
    side = torch.sub(green, blue)
    torch.copysign(hue, side, out=hue)
    hue.add_(_per_image(shift + 1)).frac_()  # + 1: positive, where the fraction is the remainder
    # red: lo + chroma · (|hue - 1/2| - 1/6), green and blue: lo + chroma · (1/3 - |hue - n/3|)
    lo.sub_(chroma, alpha=1 / 6)
    distance = torch.sub(hue, 1 / 2, out=side).abs_().clamp_(1 / 6, 1 / 3)
    torch.addcmul(lo, chroma, distance, out=red)
    lo.add_(chroma, alpha=1 / 2)
    distance = torch.sub(hue, 1 / 3, out=side).abs_().clamp_(1 / 6, 1 / 3)
    torch.addcmul(lo, chroma, distance, value=-1, out=green)
    distance = torch.sub(hue, 2 / 3, out=side).abs_().clamp_(1 / 6, 1 / 3)
    torch.addcmul(lo, chroma, distance, value=-1, out=blue)
    return planes


def greyscale_(planes: Tensor) -> Tensor:
    """Every colour becomes the luma."""
    return planes if len(planes) == 1 else planes.copy_(luma(planes))


def solarize_(planes: Tensor, threshold: float = 0.5) -> Tensor:
    """Invert what is at least as bright as the threshold."""
    return planes.copy_(torch.where(planes >= threshold, 1 - planes, planes))


def luma(planes: Tensor) -> Tensor:
    """The grey image [N, H, W] of three planes."""
    red, green, blue = planes
    return red.mul(LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def _per_image(values: Tensor) -> Tensor:
    return values[:, None, None]
