"""Data sets for detection, chosen by `detection.data`."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from fedssl.errors import DataError
from fedssl.evaluation.coco import read_coco
from fedssl.evaluation.scenes import Scene, Scenes, box_of, read_pixels, scene
from fedssl.evaluation.shapes import draw

if TYPE_CHECKING:
    from fedssl.evaluation.options import DetectionConfig

KEYS = ("x", "boxes", "box_img", "box_y", "classes")
TRAIN, TEST, SIDE = 300, 100, 96  # default numbers and size of synthetic shapes


def load(config: DetectionConfig, sibling: str = "") -> tuple[Scenes, Scenes]:
    """Load training and test scenes.

    Args:
        config: the options of detection.
        sibling: a file or folder; bare file names are also searched next to it.
    """
    train, test = LOADERS[config.data](config, sibling)
    if test is None:
        count = max(1, round(config.test_fraction * len(train)))
        test = train.some(count, "test")
        train = train.subset(
            [place for place in range(len(train)) if train.indices[place] not in test.indices]
        )
    elif test.classes != train.classes or test.has_masks != train.has_masks:
        raise DataError(f"{train.name} and {test.name} differ in their classes, or one has no masks")
    train = train.some(config.limit or len(train), "limit", config.data)
    test = test.some(config.test_limit or len(test), "test limit", config.data)
    if not len(train) or not len(test):
        raise DataError(f"{train.name}: {len(train)} train and {len(test)} test images; both are needed")
    return train, test


def _shapes(config: DetectionConfig, sibling: str) -> tuple[Scenes, Scenes]:
    side = config.size or SIDE
    return draw(config.limit or TRAIN, side, "train"), draw(config.test_limit or TEST, side, "test")


def _coco(config: DetectionConfig, sibling: str) -> tuple[Scenes, Scenes | None]:
    root = _folder(config, sibling)
    train = read_coco(root / config.images, root / config.annotations)
    if not config.test_annotations:
        return train, None
    return train, read_coco(root / config.test_images, root / config.test_annotations)


def _pennfudan(config: DetectionConfig, sibling: str) -> tuple[Scenes, None]:
    """PNGImages/NAME.png and PedMasks/NAME_mask.png, in which n is the n-th object and 0 the background."""
    root = _folder(config, sibling)
    masks = {file.stem.removesuffix("_mask"): file for file in (root / "PedMasks").glob("*.png")}
    photos = sorted(file for file in (root / "PNGImages").glob("*") if file.stem in masks)
    if not photos:
        raise DataError(f"{root}: no image in PNGImages has a mask NAME_mask.png in PedMasks")
    sizes = []
    for photo in photos:
        with Image.open(photo) as image:
            sizes.append((image.height, image.width))

    def read(index: int) -> Scene:
        photo = photos[index]
        with Image.open(masks[photo.stem]) as image:
            instances = np.array(image)
        if instances.shape != sizes[index]:
            raise DataError(f"{masks[photo.stem]} is {instances.shape}, but its image is {sizes[index]}")
        own = [instances == value for value in np.unique(instances) if value]
        boxes = np.array([box_of(each) for each in own])
        return scene(read_pixels(photo), boxes, np.ones(len(own)), own)

    return Scenes(root.name, ("object",), True, tuple(sizes), read, tuple(range(len(photos)))), None


def _npz(config: DetectionConfig, sibling: str) -> tuple[Scenes, Scenes | None]:
    """`x` uint8 NHWC, `boxes` x0 y0 x1 y1, their images `box_img` and classes `box_y`, and `classes`."""
    path = _npz_file(config, sibling)
    other = path.with_name(path.name.removesuffix("_train.npz") + "_test.npz")
    has_test = path.name.endswith("_train.npz") and other.is_file()
    return _read_npz(path), _read_npz(other) if has_test else None


def _read_npz(path: Path) -> Scenes:
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [key for key in KEYS if key not in file]
            if missing:
                raise DataError(f"{path} has no `{missing[0]}`: it needs {', '.join(KEYS)}")
            x, boxes, owner, label, classes = (file[key] for key in KEYS)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if x.dtype != np.uint8 or x.ndim != 4:
        raise DataError(f"{path}: `x` must be uint8 N×H×W×C, not {x.dtype} of shape {x.shape}")
    if boxes.shape != (len(owner), 4) or label.shape != owner.shape:
        raise DataError(f"{path}: boxes {boxes.shape}, box_img {owner.shape}, box_y {label.shape} do not fit")
    for name, values, count in (("box_img", owner, len(x)), ("box_y", label, len(classes))):
        if len(values) and not 0 <= values.min() <= values.max() < count:
            raise DataError(f"{path}: `{name}` runs from {values.min()} to {values.max()}, of {count}")

    def read(index: int) -> Scene:
        own = np.flatnonzero(owner == index)
        return scene(x[index], boxes[own], label[own] + 1)

    name = path.name.removesuffix(".npz").removesuffix("_train").removesuffix("_test")
    names = tuple(str(each) for each in classes.tolist())
    return Scenes(name, names, False, (x.shape[1:3],) * len(x), read, tuple(range(len(x))))


def _npz_file(config: DetectionConfig, sibling: str) -> Path:
    path = near(config.root, sibling)
    if not config.root or not path.is_file():
        raise DataError(f"npz needs a file: detection.root={config.root!r} does not exist or is a folder")
    return path


def _folder(config: DetectionConfig, sibling: str) -> Path:
    path = near(config.root, sibling)
    if not config.root or not path.is_dir():
        raise DataError(
            f"detection.data={config.data} needs a folder: detection.root={config.root!r} is not one"
        )
    return path


def near(root: str, sibling: str) -> Path:
    """Resolve a path; a bare name that does not exist is searched next to `sibling`."""
    path, other = Path(root).expanduser(), Path(sibling).expanduser()
    if root and sibling and path.name == root and not path.exists():
        for folder in (other, other.parent):
            if (folder / root).exists():
                return folder / root
    return path


LOADERS: dict[str, Callable[[DetectionConfig, str], tuple[Scenes, Scenes | None]]] = {
    "shapes": _shapes,
    "npz": _npz,
    "coco": _coco,
    "pennfudan": _pennfudan,
}
