"""Loading of data sets by name, with the common steps: test split, limit, channels, size.

A loader is a function `(config, progress) -> (train, test or None)` in `fedssl.data.DATASETS`. It
returns images in memory (`ImageSet`), or a `Listing`, of which only the images that are used are decoded.
A loader with a parameter `seed` generates different images for each seed of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedssl.data import DATASETS
from fedssl.data.cache import Listing, decode
from fedssl.data.images import MOST_CHANNELS, ImageSet
from fedssl.errors import ConfigError, DataError
from fedssl.progress import Progress
from fedssl.rng import numpy_rng

if TYPE_CHECKING:
    from fedssl.data.options import DataConfig

Indices = NDArray[np.int64]
Images = ImageSet | Listing
Kind = TypeVar("Kind", bound=Images)

MOST_CLASSES = 1 << 20
STEP_BYTES = 1 << 25  # uint8 bytes converted at a time: as float32 they are four times as many


def load(config: DataConfig, seed: int, progress: Progress | None = None) -> tuple[ImageSet, ImageSet | None]:
    """Load training and test images; unlabeled data without a test split have no test images.

    Args:
        config: the options of data.
        seed: seed of the run, which determines the subset of `data.limit`.
        progress: called while images are read.
    """
    if config.split and config.name in DATASETS and config.name not in ("huggingface", "stl10"):
        raise ConfigError(f"data.split={config.split!r}: {config.name} has no splits to choose from")
    train, test = _loader(config, seed)(config, progress)
    check_labels(train, f"{train.name} train")
    if test is not None:
        check_labels(test, f"{test.name} test")
    elif train.y is not None:
        train, test = _split_test(train, config.test_fraction)
    train = limit_images(train, config.limit, seed)
    ready = _finish(train, config, "train", progress)
    if test is None:
        return _name_labels(ready, ready), None
    ready_test = _finish(test, config, "test", progress)
    if ready.x.shape[1:] != ready_test.x.shape[1:]:
        raise DataError(
            f"{train.name}: train images are {_shape(ready.x)}, test images {_shape(ready_test.x)}; "
            "set data.size and data.channels to make them equal"
        )
    return _name_labels(ready, ready_test), _name_labels(ready_test, ready)


def load_whole(config: DataConfig, progress: Progress | None = None) -> ImageSet:
    """Load all images of a data set, or of its training split if it has one."""
    images, _ = _loader(config)(config, progress)
    check_labels(images, images.name)
    ready = _finish(images, config, "train", progress)
    return _name_labels(ready, ready)


def split_holdout(images: ImageSet, fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Indices to pre-train on, and a stratified labeled share with at least one image of each class."""
    if images.y is None:
        raise DataError(f"data.holdout needs labels, but {images.name} has none")
    if not 0 < fraction < 1:
        raise ConfigError(f"data.holdout must be between 0 and 1, not {fraction}")
    classes, counts = _strata(images.y.numpy())
    rng = numpy_rng(seed, "data", "holdout")
    take = np.maximum(_allocate(counts, round(fraction * len(images)), rng), 1)
    return _draw(classes, take, rng)


def to_labels(values: NDArray[Any], count: int, where: str) -> Tensor:
    """Check class (or style) numbers of `count` images, and convert them to int64; errors name `where`."""
    if values.shape != (count,):
        raise DataError(f"{where}: {count} images, but labels of shape {values.shape}")
    if values.dtype.kind not in "iuf":
        raise DataError(f"{where}: labels must be whole numbers, not {values.dtype}")
    if values.dtype.kind == "f":
        wrong = np.flatnonzero(~np.isfinite(values) | (values != np.trunc(values)))
        if len(wrong):
            first = wrong[0]
            raise DataError(f"{where}: labels must be whole numbers, but label {first} is {values[first]}")
    if count and (values.min() < 0 or values.max() >= MOST_CLASSES):
        raise DataError(
            f"{where}: labels must be from 0 to classes - 1, but are from {values.min()} to {values.max()}"
        )
    return torch.from_numpy(values.astype(np.int64))


def check_pixels(x: Tensor, where: str) -> None:
    """Raise a DataError unless pixels are uint8 N×H×W×C with at least one image and 1 to 16 channels."""
    if x.dtype != torch.uint8:
        found = str(x.dtype).removeprefix("torch.")
        raise DataError(f"{where}: pixels must be uint8 (0..255), not {found}")
    if x.ndim != 4 or not 1 <= x.shape[3] <= MOST_CHANNELS:
        raise DataError(
            f"{where}: pixels must be N×H×W×C with 1 to {MOST_CHANNELS} channels, not {tuple(x.shape)}"
        )
    if not x.numel():
        raise DataError(f"{where}: no images (shape {tuple(x.shape)})")


def check_labels(images: Images, where: str) -> None:
    """Raise a DataError unless labels and styles are int64, one per image, with a name if there are names."""
    for what, values, names in (
        ("class", images.y, images.classes),
        ("style", images.domain, images.domains),
    ):
        if values is None:
            continue
        if values.dtype != torch.int64:
            raise DataError(f"{where}: {what} numbers must be int64, not {values.dtype}")
        to_labels(values.numpy(), len(images), where)
        if names and len(values) and int(values.max()) >= len(names):
            raise DataError(
                f"{where}: {what} {int(values.max())}, but only {len(names)} names (0..{len(names) - 1})"
            )


def to_channels(x: Tensor, channels: int) -> Tensor:
    """Convert gray to more channels by repetition, color to gray by ITU-R 601 luma (rounded like Pillow)."""
    if channels in (0, x.shape[3]):
        return x
    if x.shape[3] == 1:
        return x.repeat(1, 1, 1, channels)
    if (x.shape[3], channels) != (3, 1):
        raise DataError(
            f"data.channels={channels}: images of {x.shape[3]} channels cannot be converted; set it to 0"
        )
    gray = torch.empty((*x.shape[:3], 1), dtype=torch.uint8)
    for part in _parts(x):
        red, green, blue = (plane.to(torch.int32) for plane in x[part].unbind(dim=3))
        luma = red * 19595 + green * 38470 + blue * 7471 + 32768  # 0.299, 0.587, 0.114 in 1/65536, and a half
        gray[part] = luma.bitwise_right_shift(16).unsqueeze(3).to(torch.uint8)
    return gray


def middle_square(x: Tensor) -> Tensor:
    """Crop each image to its largest central square."""
    side = min(x.shape[1:3])
    top, left = (x.shape[1] - side) // 2, (x.shape[2] - side) // 2
    return x[:, top : top + side, left : left + side]


def resize(x: Tensor, size: int, progress: Progress | None = None) -> Tensor:
    """Resize images to `size`×`size`, antialiased, without keeping the aspect ratio."""
    if size in (0, x.shape[1]) and size in (0, x.shape[2]):
        return x
    resized = torch.empty((len(x), size, size, x.shape[3]), dtype=torch.uint8)
    for part in _parts(x):
        planes = x[part].permute(0, 3, 1, 2).float()
        scaled = F.interpolate(planes, (size, size), mode="bilinear", antialias=True, align_corners=False)
        resized[part] = scaled.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
        if progress is not None:
            progress(min(part.stop, len(x)), len(x), f"resizing to {size}×{size}")
    return resized


def _loader(config: DataConfig, seed: int = 0) -> Callable[..., tuple[Images, Images | None]]:
    """Return the loader of a data set; names joined by + are styles of one set."""
    if "+" in config.name:
        from fedssl.data import styles

        return partial(styles.load, seed=seed)
    loader: Callable[..., tuple[Images, Images | None]] = DATASETS.get(config.name)
    draws = "seed" in signature(loader).parameters  # images that are made, and not read
    return partial(loader, seed=seed) if draws else loader


def _split_test(images: Images, fraction: float) -> tuple[Images, Images | None]:
    """Split off a stratified test set, independent of the run's seed; no stratum loses its last image."""
    strata, counts = _strata(_stratify(images))
    rng = numpy_rng(0, "data", "test split")
    take = np.minimum(_allocate(counts, max(1, round(fraction * len(images))), rng), counts - 1)
    train, test = _draw(strata, take, rng)
    if not len(test):
        warning = f"{images.name}: {len(images)} images are too few for a test split"
        return replace(images, warnings=(*images.warnings, warning)), None
    # Warnings about the whole data set are kept once, with the training images.
    return images.subset(train), replace(images.subset(test), warnings=())


def limit_images(images: Kind, limit: int, seed: int) -> Kind:
    """Draw a stratified subset of `limit` images (0: all), with an equal share of each domain."""
    if limit > len(images):
        raise DataError(f"data.limit={limit}, but {images.name} has only {len(images)} training images")
    if limit in (0, len(images)):
        return images
    keys = _stratify(images)
    strata, counts = _strata(keys)
    rng = numpy_rng(seed, "data", "limit")
    style = np.unique(keys) // MOST_CLASSES  # of each stratum
    sizes = [int(counts[style == each].sum()) for each in np.unique(style)]
    shares = share_equally(sizes, limit, images.name)
    take = [
        _allocate(counts[style == each], share, rng)
        for each, share in zip(np.unique(style), shares, strict=True)
    ]
    drawn = images.subset(_draw(strata, np.concatenate(take), rng)[1])
    return cast(Kind, drawn)


def share_equally(counts: Sequence[int], total: int, name: str) -> list[int]:
    """Divide `total` (0: everything) equally; groups that are too small are taken whole."""
    if total > sum(counts):
        raise DataError(f"data.limit={total}, but {name} has only {sum(counts)} training images")
    left, shares = total or sum(counts), [0] * len(counts)
    for place, index in enumerate(sorted(range(len(counts)), key=lambda index: counts[index])):
        shares[index] = min(counts[index], left // (len(counts) - place))
        left -= shares[index]
    return shares


def _finish(images: Images, config: DataConfig, split: str, progress: Progress | None) -> ImageSet:
    if isinstance(images, Listing):
        images = decode(images, config.memory_mb, progress)
    check_pixels(images.x, f"{images.name} {split}")
    x = middle_square(images.x) if config.resize == "crop" else images.x
    if config.channels == 1:  # the order with fewer pixels to resize
        x = resize(to_channels(x, 1), config.size, progress)
    else:
        x = to_channels(resize(x, config.size, progress), config.channels)
    return replace(images, x=x.contiguous())


def _name_labels(images: ImageSet, other: ImageSet) -> ImageSet:
    """Use numbers as the names of classes and styles that have none."""

    def names(mine: Tensor | None, theirs: Tensor | None, given: tuple[str, ...]) -> tuple[str, ...]:
        if mine is None:
            return ()
        highest = max(int(values.max()) for values in (mine, theirs) if values is not None)
        return given or tuple(str(number) for number in range(highest + 1))

    return replace(
        images,
        classes=names(images.y, other.y, images.classes),
        domains=names(images.domain, other.domain, images.domains),
    )


def _stratify(images: Images) -> NDArray[np.int64]:
    """A number for each combination of class and style, as far as these are known."""
    strata = np.zeros(len(images), dtype=np.int64)
    if images.y is not None:
        strata += images.y.numpy()
    if images.domain is not None:
        strata += images.domain.numpy() * MOST_CLASSES
    return strata


def _strata(keys: NDArray[np.int64]) -> tuple[Indices, Indices]:
    """Each image's stratum, numbered without gaps, and the size of each stratum."""
    _, strata, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return strata.astype(np.int64), counts.astype(np.int64)


def _allocate(counts: Indices, total: int, rng: np.random.Generator) -> Indices:
    """Divide `total` in proportion to `counts`, by largest remainder; ties are broken at random."""
    share, remainder = np.divmod(counts * total, counts.sum())
    lots = rng.permutation(len(counts))
    order = lots[np.argsort(-remainder[lots], kind="stable")]
    share[order[: total - share.sum()]] += 1
    return share


def _draw(strata: Indices, take: Indices, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Sorted indices (left, drawn), with `take[s]` images drawn at random from stratum s."""
    order = rng.permutation(len(strata))
    order = order[np.argsort(strata[order], kind="stable")]
    counts = np.bincount(strata, minlength=len(take))
    rank = np.arange(len(strata)) - np.repeat(np.cumsum(counts) - counts, counts)
    drawn = rank < np.repeat(take, counts)
    return np.sort(order[~drawn]), np.sort(order[drawn])


def _parts(x: Tensor) -> list[slice]:
    step = max(1, STEP_BYTES // max(1, x[0].numel()))
    return [slice(start, start + step) for start in range(0, len(x), step)]


def _shape(x: Tensor) -> str:
    return "×".join(str(side) for side in x.shape[1:])
