"""COCO's format: a folder of images, and a JSON file of images, categories and annotations."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedssl.errors import ConfigError, DataError
from fedssl.evaluation.scenes import Mask, Pixels, Scene, Scenes, read_pixels, scene


def read_coco(images: Path, annotations: Path) -> Scenes:
    """Read the annotated images of a folder."""
    try:
        known = json.loads(annotations.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"no annotations {annotations}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{annotations} is not JSON: {error}") from None
    try:
        return coco_scenes(annotations.stem, known, lambda name: read_pixels(images / name))
    except (KeyError, TypeError, IndexError) as error:
        raise DataError(f"{annotations} is not in COCO's format: {type(error).__name__} {error}") from None


def coco_scenes(name: str, known: Any, pixels: Callable[[str], Pixels]) -> Scenes:
    """Convert annotations in COCO's format to scenes.

    Args:
        name: of the data set.
        known: the annotations.
        pixels: reads the image of a file name.
    """
    categories = sorted(known["categories"], key=lambda category: category["id"])
    labels = {category["id"]: place for place, category in enumerate(categories, start=1)}
    images, objects = known["images"], dict[int, list[Any]]()
    for each in known["annotations"]:
        if each["bbox"][2] > 0 and each["bbox"][3] > 0:  # COCO has a few without area
            objects.setdefault(each["image_id"], []).append({**each, "label": labels[each["category_id"]]})
    sizes = tuple((int(image["height"]), int(image["width"])) for image in images)
    has_masks = bool(objects) and all(each.get("segmentation") for own in objects.values() for each in own)

    def read(index: int) -> Scene:
        own = objects.get(images[index]["id"], [])
        boxes = np.array([each["bbox"] for each in own], dtype=np.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        return scene(
            pixels(images[index]["file_name"]),
            boxes,
            np.array([each["label"] for each in own], dtype=np.int64),
            [decode(each["segmentation"], *sizes[index]) for each in own] if has_masks else None,
            np.array([bool(each.get("iscrowd", 0)) for each in own], dtype=bool),
        )

    names = tuple(str(category["name"]) for category in categories)
    return Scenes(name, names, has_masks, sizes, read, tuple(range(len(images))))


def decode(segmentation: Any, height: int, width: int) -> Mask:
    """Convert polygons or run lengths (as numbers or compressed) to a mask."""
    mask = mask_tools()
    if isinstance(segmentation, list):
        segmentation = mask.merge(mask.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation["counts"], list):
        segmentation = mask.frPyObjects(segmentation, height, width)
    decoded: Mask = mask.decode(segmentation).astype(bool)
    return decoded


def encode(mask: Mask) -> Any:
    """Convert a mask to compressed run lengths."""
    return mask_tools().encode(np.asfortranarray(mask.astype(np.uint8)))


def mask_tools() -> Any:
    """Import pycocotools.mask, which the extra `detection` installs."""
    try:
        return importlib.import_module("pycocotools.mask")
    except ImportError:
        raise ConfigError("detection needs pycocotools: pip install 'fedssl[detection]'") from None
