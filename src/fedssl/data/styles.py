"""Several data sets with the same classes as styles of one: `data.name=mnist+svhn+usps` (FedStyle's Digit).

Each name is a data set (see `fedssl list datasets`), or NAME_train.npz and NAME_test.npz in `data.root`,
which take precedence. Images are resized to the largest size, and converted to color if any data set has
color, unless `data.size` and `data.channels` are set. `data.limit` is shared equally between the styles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedssl.data import DATASETS, sets
from fedssl.data.images import ImageSet
from fedssl.data.torchvision import DIGITS
from fedssl.errors import ConfigError, DataError, did_you_mean

if TYPE_CHECKING:
    from fedssl.data.options import DataConfig
    from fedssl.progress import Progress

ROOTED = ("npz", "folder", "huggingface")  # these need their own data.root


def load(config: DataConfig, progress: Progress | None = None, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """MNIST, SVHN and USPS as styles of one data set; other data sets can be joined by + as well."""
    names = _checked(config.name.split("+"), config)
    trains, tests = {}, {}
    for name in names:
        trains[name], tests[name] = _load(name, config, seed, progress)
    classes = _classes(trains)
    shares = sets.share_equally([len(train) for train in trains.values()], config.limit, config.name)
    few = [
        sets.limit_images(train, share, seed) for train, share in zip(trains.values(), shares, strict=True)
    ]
    everything = [*few, *tests.values()]
    size = config.size or max(side for images in everything for side in images.size)
    channels = int(config.channels) or max(images.channels for images in everything)

    def joined(parts: Sequence[ImageSet]) -> ImageSet:
        pixels = [sets.to_channels(sets.resize(part.x, size, progress), channels) for part in parts]
        return ImageSet(
            x=torch.cat(pixels),
            y=torch.cat([part.y for part in parts if part.y is not None]),
            classes=classes,
            domain=torch.cat([torch.full((len(part),), style) for style, part in enumerate(parts)]),
            domains=tuple(names),
            name=config.name,
            warnings=tuple(warning for part in parts for warning in part.warnings),
            mirrored=all(part.mirrored for part in parts),
        )

    return joined(few), joined(list(tests.values()))


def _checked(names: list[str], config: DataConfig) -> list[str]:
    for name in names:
        if name in ROOTED:
            raise ConfigError(f"data.name={config.name}: {name} needs its own data.root")
        if names.count(name) > 1:
            raise ConfigError(f"data.name={config.name}: {name} is given twice")
        if _file(name, config) is None and name not in DATASETS:
            where = f"no {name}_train.npz in {config.root}" if config.root else "data.root is empty"
            hint = did_you_mean(name, DATASETS)
            raise ConfigError(f"data.name={config.name}: unknown data set {name!r}: {hint} ({where})")
    return names


def _load(name: str, config: DataConfig, seed: int, progress: Progress | None) -> tuple[ImageSet, ImageSet]:
    """Load one style at its original size."""
    file = _file(name, config)
    as_it_is = {"limit": 0, "size": 0, "channels": 0}
    source = {"name": name} if file is None else {"name": "npz", "root": str(file)}
    train, test = sets.load(config.model_copy(update={**as_it_is, **source}), seed, progress)
    if train.y is None or test is None or test.y is None:
        raise DataError(f"{config.name}: {name} has no labels or no labeled test split; styles need both")
    mirrored = train.mirrored and name not in DIGITS
    return replace(train, mirrored=mirrored), test


def _file(name: str, config: DataConfig) -> Path | None:
    file = Path(config.root).expanduser() / f"{name}_train.npz" if config.root else None
    return file if file is not None and file.is_file() else None


def _classes(trains: dict[str, ImageSet]) -> tuple[str, ...]:
    """The names of the classes, which all styles must share; numbers match any names."""
    first, *others = trains
    names = trains[first].classes
    for other in others:
        theirs = trains[other].classes
        if len(theirs) != len(names):
            raise DataError(
                f"{first} has {len(names)} classes and {other} {len(theirs)}: styles need the same classes"
            )
        numbers = tuple(str(number) for number in range(len(names)))
        if names == numbers:
            names = theirs
        elif theirs not in (names, numbers):
            mine, yours = next(pair for pair in zip(names, theirs, strict=True) if pair[0] != pair[1])
            raise DataError(
                f"class {names.index(mine)} is {mine!r} in {first} and {yours!r} in {other}: "
                "styles need the same classes in the same order"
            )
    return names
