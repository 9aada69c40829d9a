"""Colour operations on whole batches, each image with its own strength.

Images are float32 [N, C, H, W] in [0, 1]. Everything works in place, and equals the function of
the same name in `torchvision.transforms.functional` applied to each image with its own factor.
"""

from __future__ import annotations

import torch
from torch import Tensor

LUMA = (0.2989, 0.587, 0.114)  # ITU-R 601-2, with torchvision's digits
SIGN = -(2**31)  # the bit that says that a float is negative
TINY = 1e-12  # stands in for a chroma of zero: such a pixel is grey whatever its hue


def brightness_(images: Tensor, factor: Tensor) -> Tensor:
    """Scale by `factor` [N] ≥ 0."""
    return images.mul_(_each(factor)).clamp_max_(1)


def contrast_(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean grey of the image: 0 gives that alone, 1 the image."""
    grey = luma(images.mean((2, 3), keepdim=True)).mul(_each(1 - factor))
    return images.mul_(_each(factor)).add_(grey).clamp_(0, 1)


def saturation_(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grey image: 0 gives that alone, 1 the image."""
    if images.shape[1] == 1:
        return images
    return torch.lerp(luma(images), images, _each(factor), out=images).clamp_(0, 1)


def hue_(images: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of HSV by `shift` [N], in turns from -0.5 to 0.5.

    Let lo be a pixel's smallest colour and chroma what the largest has more. The hue's distance
    from red is then 1 + (g + b - r - lo) / chroma sextants, on the green side where g > b. On the
    way back each colour is lo + chroma · t, with t a trapezium in the hue's distance from a fixed
    point. So nothing depends on which colour is the largest: no masks, and few passes.
    """
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    lo = torch.minimum(red, green)
    torch.minimum(lo, blue, out=lo)
    chroma = torch.maximum(red, green)
    torch.maximum(chroma, blue, out=chroma)
    chroma.sub_(lo).mul_(6).clamp_min_(TINY)  # six times chroma, so that hues come out in turns
    # The sign's bit alone is taken over: copysign takes twice as long.
    sign = torch.sub(green, blue).view(torch.int32).bitwise_and_(SIGN)
    hue = green.add_(blue).sub_(red).sub_(lo).div_(chroma).add_(1 / 6)
    hue.view(torch.int32).bitwise_xor_(sign)
    hue.add_((shift + 1).view(-1, 1, 1)).frac_()  # + 1: of what is positive, frac is the remainder
    # red = lo + chroma · (|hue - 1/2| - 1/6); green, blue = lo + chroma · (1/3 - |hue - n/3|), n = 1, 2
    torch.sub(hue, 1 / 2, out=red)
    torch.sub(hue, 2 / 3, out=blue)
    hue.sub_(1 / 3)  # in place of green
    images.abs_().clamp_(1 / 6, 1 / 3)
    lo.sub_(chroma, alpha=1 / 6)
    torch.addcmul(lo, chroma, red, out=red)
    lo.add_(chroma, alpha=1 / 2)
    torch.addcmul(lo, chroma, green, value=-1, out=green)
    torch.addcmul(lo, chroma, blue, value=-1, out=blue)
    return images


def greyscale_(images: Tensor) -> Tensor:
    """Every colour becomes the grey one."""
    return images.copy_(luma(images))


def solarize_(images: Tensor) -> Tensor:
    """Invert what is at least 0.5: then everything is the smaller of itself and its inverse."""
    return torch.minimum(images, 1 - images, out=images)


def luma(images: Tensor) -> Tensor:
    """The grey image [N, 1, H, W]; of one channel, a copy."""
    if images.shape[1] == 1:
        return images.clone()
    red, green, blue = images.chunk(3, dim=1)
    return red.mul(LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def _each(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)
