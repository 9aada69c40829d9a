"""Synthetic images of circles, squares and triangles with exact masks, in COCO's format.

Only the outline depends on the class: color, size, angle and position are random, objects overlap, and
background and objects are noisy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedssl.evaluation.coco import coco_scenes, encode
from fedssl.evaluation.scenes import Mask, Pixels, Scenes, box_of
from fedssl.rng import numpy_rng

KINDS = ("circle", "square", "triangle")
MAX_OBJECTS = 4  # per image
MIN_VISIBLE = 0.4  # share of an object; more hidden ones are not annotated
NOISE = 12.0  # standard deviation, of 255


@dataclass(frozen=True)
class DrawnImage:
    """A synthetic image with the masks and classes of its objects."""

    image: Pixels
    masks: list[Mask]
    kinds: list[int]


def draw(count: int, side: int, split: str) -> Scenes:
    """Draw `count` images of side×side pixels; a smaller count gives the first of them."""
    pictures = [picture(side, numpy_rng(0, "shapes", split, side, number)) for number in range(count)]
    annotations = []
    for number, drawn in enumerate(pictures):
        for visible, kind in zip(drawn.masks, drawn.kinds, strict=True):
            left, top, right, bottom = box_of(visible)
            annotations.append(
                {
                    "image_id": number,
                    "category_id": kind + 1,
                    "bbox": [left, top, right - left, bottom - top],
                    "segmentation": encode(visible),
                }
            )
    known = {
        "images": [
            {"id": number, "file_name": str(number), "height": side, "width": side} for number in range(count)
        ],
        "categories": [{"id": kind + 1, "name": name} for kind, name in enumerate(KINDS)],
        "annotations": annotations,
    }
    return coco_scenes("shapes", known, lambda name: pictures[int(name)].image)


def picture(side: int, rng: np.random.Generator) -> DrawnImage:
    """Draw one to four objects, later ones in front of earlier ones."""
    across, down = np.meshgrid(np.arange(side) + 0.5, np.arange(side) + 0.5)
    canvas = _background(side, across, down, rng)
    whole: list[tuple[Mask, int]] = []
    for _ in range(int(rng.integers(1, MAX_OBJECTS + 1))):
        kind, radius = int(rng.integers(len(KINDS))), side * rng.uniform(0.1, 0.24)
        center = rng.uniform(radius, side - radius, size=2)
        angle = rng.uniform(0, 2 * np.pi)
        mask = outline(kind, (across - center[0]) / radius, (down - center[1]) / radius, angle)
        canvas[mask] = _contrast(canvas[mask].mean(axis=0), rng)
        whole.append((mask, kind))
    canvas += rng.normal(0, NOISE, canvas.shape)
    masks, kinds, hidden = [], [], np.zeros((side, side), dtype=bool)
    for mask, kind in reversed(whole):
        visible = mask & ~hidden
        hidden |= mask
        if visible.sum() >= MIN_VISIBLE * mask.sum():
            masks.append(visible)
            kinds.append(kind)
    return DrawnImage(canvas.round().clip(0, 255).astype(np.uint8), masks, kinds)


def outline(kind: int, x: NDArray[np.float64], y: NDArray[np.float64], angle: float) -> Mask:
    """Whether points are inside a shape of radius 1 around 0, rotated by an angle."""
    u, v = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    inside: Mask = (
        u**2 + v**2 < 0.8,
        np.maximum(np.abs(u), np.abs(v)) < 0.8,
        (v > -0.5) & (np.sqrt(3) * np.abs(u) + v < 1),
    )[kind]
    return inside


def _background(
    side: int, across: NDArray[np.float64], down: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """A color gradient in a random direction."""
    angle = rng.uniform(0, 2 * np.pi)
    along = (np.cos(angle) * (across / side - 0.5) + np.sin(angle) * (down / side - 0.5)) / np.sqrt(2) + 0.5
    first, second = rng.uniform(40, 215, size=(2, 3))
    canvas: NDArray[np.float64] = first + along[..., None] * (second - first)
    return canvas


def _contrast(behind: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """A random color with sufficient contrast to the background."""
    while True:
        color = rng.uniform(0, 255, size=3)
        if np.abs(color - behind).max() > 60:
            return color
