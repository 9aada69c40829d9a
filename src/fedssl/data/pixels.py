"""Augmentation of single images, compiled by Numba.

All steps of a view are applied to an image while it is in the processor's cache, and threads share the images
of a batch. Every image has its own random parameters, computed from uniform numbers that are drawn
beforehand.

Between steps, images are planes: float32 [C, H, W] in [0, 1], changed in place. Each step equals the
function of its name in `torchvision.transforms.functional`. Everything is in one file because Numba's cache
of compiled code checks only the file of `make` for changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

TRIES = 10  # torchvision's attempts to find a crop that fits, before it takes the center
# Offsets of the uniform numbers of one view of one image.
AREAS, RATIOS, CORNER, SHIFT = 0, TRIES, 2 * TRIES, 2 * TRIES + 2
FLIP, JITTERED, GRAY, BLUR, SOLARIZE = range(SHIFT + 2, SHIFT + 7)
FACTORS, SIGMA, ORDER = SHIFT + 7, SHIFT + 11, SHIFT + 12
UNIFORMS = ORDER + 3

SETTINGS = np.dtype(
    [
        ("pad", np.float64, 2),  # down and across, in pixels
        ("crop", np.float64, 2),  # least and largest share of the area; from 1 on: no crop
        ("ratio", np.float64, 2),  # least and largest width / height
        ("flip", np.float64),
        ("jitter", np.float64, 4),  # brightness, contrast, saturation, hue
        ("jitter_p", np.float64),
        ("grey", np.float64),
        ("grey_first", np.bool_),
        ("blur", np.float64),
        ("blur_sigma", np.float64, 2),
        ("solarize", np.float64),
    ]
)

# Without these types, numbers in a loop would be float64, which is twice as slow.
ZERO, ONE, HALF, THIRD, SIXTH = (np.float32(value) for value in (0, 1, 1 / 2, 1 / 3, 1 / 6))
# ITU-R 601-2, with torchvision's digits.
RED, GREEN, BLUE = (np.float32(value) for value in (0.2989, 0.587, 0.114))
TINY = np.float32(1e-12)  # stands in for a chroma of zero: such a pixel is gray whatever its hue
TWO_THIRDS, SIX = np.float32(2 / 3), np.float32(6)
WHITE = np.float32(1 / 255)


# Sums may be reordered, which SIMD needs; NaN and infinity are handled exactly.
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract"}}
F = TypeVar("F", bound=Callable[..., Any])
Array = Any  # of NumPy


def compiled(function: F) -> F:
    """Compile a step of `make`."""
    return cast(F, numba.njit(**OPTIONS)(function))


def compiled_for_threads(function: F) -> F:
    """Compile a function with threads, which takes some seconds; the result is cached in a file."""
    try:
        return cast(F, numba.njit(**OPTIONS, parallel=True, cache=True)(function))
    except RuntimeError:  # no writable folder: every process compiles for itself
        return cast(F, numba.njit(**OPTIONS, parallel=True)(function))


@compiled
def crop_of(uniform: Array, view: Any, height: int, width: int) -> tuple[float, float, float, float]:
    """Draw top, left, height and width in whole pixels like torchvision's RandomResizedCrop."""
    if view.crop[0] >= 1:
        return 0.0, 0.0, float(height), float(width)
    low, high = math.log(view.ratio[0]), math.log(view.ratio[1])
    for attempt in range(TRIES):
        share = view.crop[0] + uniform[AREAS + attempt] * (view.crop[1] - view.crop[0])
        area, ratio = share * height * width, math.exp(low + uniform[RATIOS + attempt] * (high - low))
        down, across = np.round(math.sqrt(area / ratio)), np.round(math.sqrt(area * ratio))
        if 1 <= down <= height and 1 <= across <= width:
            top = math.floor(uniform[CORNER] * (height - down + 1))
            left = math.floor(uniform[CORNER + 1] * (width - across + 1))
            return float(top), float(left), down, across
    down, across = float(height), float(width)
    if width < view.ratio[0] * height:
        down = np.round(width / view.ratio[0])
    elif width > view.ratio[1] * height:
        across = np.round(height * view.ratio[1])
    return float((height - down) // 2), float((width - across) // 2), down, across


@compiled
def lines_of(start: float, length: float, mirrored: bool, which: Array, weight: Array) -> None:
    """The pixels and weights [2, side] that resize a part of a line to the whole line.

    The part's first and last pixel are repeated beyond their centers, as if it was cropped before it is
    resized. Pixels outside of the line are black.
    """
    side = which.shape[1]
    for place in range(side):
        center = (side - place - 0.5 if mirrored else place + 0.5) / side
        pixel = min(max(center * length - 0.5, 0.0), length - 1) + start
        first = math.floor(pixel)
        for tap in range(2):
            wanted = first + tap
            which[tap, place] = min(max(wanted, 0), side - 1)
            weight[tap, place] = 1 - abs(wanted - pixel) if 0 <= wanted < side else 0


@compiled
def resize(
    image: Array, rows: Array, row_weights: Array, columns: Array, weights: Array, line: Array, planes: Array
) -> None:
    """Interpolate an image [H, W, C] (white is 255) at rows [2, H] and columns [2, W]: planes [C, H, W]."""
    channels, height, width = planes.shape
    pixels, out, long = image.reshape(-1), planes.reshape(-1), width * channels
    (left, right), (first, second) = columns, weights
    for y in range(height):
        above, below = rows[0, y] * long, rows[1, y] * long
        upper, lower = pixels[above : above + long], pixels[below : below + long]
        over, under = row_weights[0, y] * WHITE, row_weights[1, y] * WHITE
        for i in range(long):
            line[i] = over * np.float32(upper[i]) + under * np.float32(lower[i])
        begin, end, plane = y * width, (y + 1) * width, height * width
        red = out[begin:end]
        if channels == 1:
            for x in range(width):
                red[x] = first[x] * line[left[x]] + second[x] * line[right[x]]
        elif channels != 3:
            for c in range(channels):
                one = out[c * plane + begin : c * plane + end]
                for x in range(width):
                    one[x] = (
                        first[x] * line[channels * left[x] + c] + second[x] * line[channels * right[x] + c]
                    )
        else:
            green, blue = out[plane + begin : plane + end], out[2 * plane + begin : 2 * plane + end]
            for x in range(width):
                a, b, i, j = first[x], second[x], 3 * left[x], 3 * right[x]
                red[x] = a * line[i] + b * line[j]
                green[x] = a * line[i + 1] + b * line[j + 1]
                blue[x] = a * line[i + 2] + b * line[j + 2]


@compiled
def brightness(planes: Array, factor: float) -> None:
    """Scale by a factor ≥ 0."""
    values, by = planes.reshape(-1), np.float32(factor)
    for i in range(len(values)):
        values[i] = min(values[i] * by, ONE)


@compiled
def contrast(planes: Array, factor: float) -> None:
    """Blend with the mean gray of the image: factor 0 gives the gray, 1 the image.

    If the channels are not colors, each is blended with its own mean.
    """
    if len(planes) not in (1, 3):
        for c in range(len(planes)):
            contrast_of(planes[c : c + 1], factor)
    else:
        contrast_of(planes, factor)


@compiled
def contrast_of(planes: Array, factor: float) -> None:
    """`contrast` for gray or color images."""
    mean, pixels = ZERO, planes[0].size
    for c in range(len(planes)):
        total, plane = ZERO, planes[c].reshape(-1)
        for i in range(pixels):
            total += plane[i]
        mean += total * (ONE if len(planes) == 1 else (RED, GREEN, BLUE)[c])
    blend(planes, mean / np.float32(pixels), factor)


@compiled
def blend(planes: Array, gray: Any, factor: float) -> None:
    """Interpolate between a gray (factor 0) and the image (1), or extrapolate."""
    values, by = planes.reshape(-1), np.float32(factor)
    rest = gray * (ONE - by)
    for i in range(len(values)):
        values[i] = min(max(values[i] * by + rest, ZERO), ONE)


@compiled
def saturation(planes: Array, factor: float) -> None:
    """Blend with the gray image: factor 0 gives the gray image, 1 the image. Only for color images."""
    if len(planes) != 3:
        return
    red, green, blue = planes[0].reshape(-1), planes[1].reshape(-1), planes[2].reshape(-1)
    by = np.float32(factor)
    rest = ONE - by
    for i in range(len(red)):
        gray = (red[i] * RED + green[i] * GREEN + blue[i] * BLUE) * rest
        red[i] = min(max(red[i] * by + gray, ZERO), ONE)
        green[i] = min(max(green[i] * by + gray, ZERO), ONE)
        blue[i] = min(max(blue[i] * by + gray, ZERO), ONE)


@compiled
def hue(planes: Array, shift: float) -> None:
    """Rotate the hue of HSV by `shift` turns, from -0.5 to 0.5. Only for color images.

    Let lo be a pixel's smallest color and chroma its largest minus its smallest. The hue's distance from red
    is then 1 + (g + b - r - lo) / chroma sextants, on the green side if g ≥ b. Conversely each color is
    lo + chroma · t, with t a trapezium in the hue's distance from a fixed point. The code therefore has no
    branches on the largest color, and can be vectorized.
    """
    if len(planes) != 3:
        return
    red, green, blue = planes[0].reshape(-1), planes[1].reshape(-1), planes[2].reshape(-1)
    by = np.float32(shift)
    for i in range(len(red)):
        r, g, b = red[i], green[i], blue[i]
        lo = min(min(r, g), b)
        chroma = max((max(max(r, g), b) - lo) * SIX, TINY)  # times six, so that hues are in turns
        away = (g + b - r - lo) / chroma + SIXTH
        turned = (away if g >= b else -away) + by
        turned -= np.floor(turned)
        red[i] = lo + chroma * (min(max(abs(turned - HALF), SIXTH), THIRD) - SIXTH)
        green[i] = lo + chroma * (THIRD - min(max(abs(turned - THIRD), SIXTH), THIRD))
        blue[i] = lo + chroma * (THIRD - min(max(abs(turned - TWO_THIRDS), SIXTH), THIRD))


@compiled
def grayscale(planes: Array) -> None:
    """Set every color to the gray value."""
    if len(planes) != 3:
        return
    red, green, blue = planes[0].reshape(-1), planes[1].reshape(-1), planes[2].reshape(-1)
    for i in range(len(red)):
        gray = red[i] * RED + green[i] * GREEN + blue[i] * BLUE
        red[i], green[i], blue[i] = gray, gray, gray


@compiled
def kernel_size(side: int) -> int:
    """About a tenth of the side (23 of 224), odd, and at least 3 if the side allows reflection."""
    return min(max(3, side // 10 | 1), 2 * side - 1)


@compiled
def gaussian(sigma: float, side: int) -> Array:
    """The weights of a Gaussian blur along a line of `side` pixels."""
    weights = np.empty(kernel_size(side), np.float32)
    middle, total = len(weights) // 2, 0.0
    for tap in range(len(weights)):
        total += math.exp(-0.5 * ((tap - middle) / sigma) ** 2)
    for tap in range(len(weights)):
        weights[tap] = math.exp(-0.5 * ((tap - middle) / sigma) ** 2) / total
    return weights


@compiled
def reflect(place: int, side: int) -> int:
    """Reflect a position at the ends of a line."""
    return (side - 1) - abs(side - 1 - abs(place))


@compiled
def blur(planes: Array, sigma: float) -> None:
    """Gaussian blur, reflected at the borders."""
    channels, height, width = planes.shape
    down, across = gaussian(sigma, height), gaussian(sigma, width)
    above, margin = len(down) // 2, len(across) // 2
    blurred, line = np.empty(height * width, np.float32), np.empty(width + 2 * margin, np.float32)
    values = planes.reshape(-1)
    for c in range(channels):
        plane = values[c * height * width : (c + 1) * height * width]
        for y in range(height):
            row = blurred[y * width : (y + 1) * width]
            row[:] = ZERO
            for tap in range(len(down)):
                begin = reflect(y + tap - above, height) * width
                source, weight = plane[begin : begin + width], down[tap]
                for x in range(width):
                    row[x] += weight * source[x]
        for y in range(height):
            row, result = blurred[y * width : (y + 1) * width], plane[y * width : (y + 1) * width]
            line[margin : margin + width] = row
            for x in range(margin):
                line[x] = row[reflect(x - margin, width)]
                line[margin + width + x] = row[reflect(width + x, width)]
            result[:] = ZERO
            for tap in range(len(across)):
                source, weight = line[tap : tap + width], across[tap]
                for x in range(width):
                    result[x] += weight * source[x]


@compiled
def solarize(planes: Array) -> None:
    """Invert pixels of at least 0.5, so that every pixel is the minimum of itself and its inverse."""
    values = planes.reshape(-1)
    for i in range(len(values)):
        values[i] = min(values[i], ONE - values[i])


@compiled
def jitter(planes: Array, uniform: Array, view: Any, order: Array) -> None:
    """Brightness, contrast, saturation and hue, in an order that is drawn for each image."""
    for step in range(4):
        order[step] = step
    for last in range(3, 0, -1):
        other = int(uniform[ORDER + last - 1] * (last + 1))
        order[last], order[other] = order[other], order[last]
    for place in range(4):
        step = order[place]
        strength, draw = view.jitter[step], uniform[FACTORS + step]
        if strength == 0:
            continue
        if step == 3:
            hue(planes, (2 * draw - 1) * strength)
            continue
        low, high = max(1 - strength, 0.0), 1 + strength
        factor = low + draw * (high - low)
        if step == 0:
            brightness(planes, factor)
        elif step == 1:
            contrast(planes, factor)
        else:
            saturation(planes, factor)


@compiled
def recolor(planes: Array, uniform: Array, view: Any, order: Array) -> None:
    """Apply the steps that follow the crop."""
    gray = uniform[GRAY] < view.grey
    if gray and view.grey_first:
        grayscale(planes)
    if uniform[JITTERED] < view.jitter_p:
        jitter(planes, uniform, view, order)
    if gray and not view.grey_first:
        grayscale(planes)
    if uniform[BLUR] < view.blur:
        low, high = view.blur_sigma
        blur(planes, low + uniform[SIGMA] * (high - low))
    if uniform[SOLARIZE] < view.solarize:
        solarize(planes)


@compiled
def write_normalized(planes: Array, scale: Array, shift: Array, out: Array) -> None:
    """Write planes [C, H, W], normalized per channel, to [H, W, C]."""
    values, channels = out.reshape(-1), len(planes)
    red, by, to = planes[0].reshape(-1), scale[0], shift[0]
    if channels == 1:
        for i in range(len(red)):
            values[i] = red[i] * by + to
    elif channels == 3:
        green, blue = planes[1].reshape(-1), planes[2].reshape(-1)
        by_green, by_blue, to_green, to_blue = scale[1], scale[2], shift[1], shift[2]
        for i in range(len(red)):
            values[3 * i] = red[i] * by + to
            values[3 * i + 1] = green[i] * by_green + to_green
            values[3 * i + 2] = blue[i] * by_blue + to_blue
    else:
        for c in range(channels):
            one, by, to = planes[c].reshape(-1), scale[c], shift[c]
            for i in range(len(one)):
                values[channels * i + c] = one[i] * by + to


def limit_threads(threads: int) -> int:
    """Let Numba use up to `threads` threads; returns how many it has."""
    threads = min(threads, numba.config.NUMBA_NUM_THREADS)
    numba.set_num_threads(threads)
    return threads


@compiled_for_threads
def make(
    images: Array, views: Array, uniform: Array, scale: Array, shift: Array, threads: int, out: Array
) -> None:
    """Make all views of a batch.

    Args:
        images: uint8 [B, H, W, C].
        views: records of SETTINGS [V].
        uniform: random numbers [V, B, UNIFORMS].
        scale: factor of each channel [C].
        shift: added to each channel [C].
        threads: number of threads.
        out: where to write the views [V, B, H, W, C].
    """
    count, height, width, channels = images.shape
    every = len(views) * count
    for thread in numba.prange(threads):
        planes = np.empty((channels, height, width), np.float32)
        line = np.empty(width * channels, np.float32)
        rows, columns = np.empty((2, height), np.intp), np.empty((2, width), np.intp)
        row_weights, weights = np.empty((2, height), np.float32), np.empty((2, width), np.float32)
        order = np.empty(4, np.intp)
        for number in range(every * thread // threads, every * (thread + 1) // threads):
            v, i = number // count, number % count
            view, u = views[v], uniform[v, i]
            top, left, down, across = crop_of(u, view, height, width)
            top += math.floor(u[SHIFT] * (2 * view.pad[0] + 1)) - view.pad[0]
            left += math.floor(u[SHIFT + 1] * (2 * view.pad[1] + 1)) - view.pad[1]
            lines_of(top, down, False, rows, row_weights)
            lines_of(left, across, u[FLIP] < view.flip, columns, weights)
            resize(images[i], rows, row_weights, columns, weights, line, planes)
            recolor(planes, u, view, order)
            write_normalized(planes, scale, shift, out[v, i])
