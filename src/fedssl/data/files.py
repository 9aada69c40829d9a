"""Images in separate files: their sizes, and their sites, labels and splits."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedssl.data.cache import Listing, Shape, file_stamp
from fedssl.data.decoding import image_channels, image_size, read_image
from fedssl.data.options import Window
from fedssl.data.reading import readers

if TYPE_CHECKING:
    from fedssl.data.options import DataConfig
    from fedssl.progress import Progress

MAX_SIDE = 224  # of images without data.size


@dataclass(frozen=True)
class Table:
    """Image files and their metadata.

    Attributes:
        paths: the files.
        labels: the name of each image's class; None if classes are unknown.
        sites: the name of each image's site (or style, or writer); None if unknown.
        test: whether each image belongs to the test split; None if there is no such split.
        mirrored: whether mirroring an image preserves its class.
    """

    paths: Sequence[Path]
    labels: Sequence[str] | None = None
    sites: Sequence[str] | None = None
    test: Sequence[bool] | None = None
    mirrored: bool = True


def listings(
    table: Table,
    root: Path,
    config: DataConfig,
    notes: Sequence[str] = (),
    progress: Progress | None = None,
) -> tuple[Listing, Listing | None]:
    """List the training and test images of a table, to be decoded later.

    Args:
        table: the images.
        root: messages show paths relative to it.
        config: the options of data.
        notes: warnings to keep with the images.
        progress: called with the sizes that are read.
    """
    warnings = list(notes)
    files = Files(table.paths, root, config.resize == "crop", config.window)
    classes, y = number_names(table.labels) if table.labels is not None else ((), None)
    domains, domain = number_names(table.sites) if table.sites is not None else ((), None)
    count = len(table.paths)
    shape = target_shape(files, count, config, warnings, progress)
    name = printable(root.resolve().name)
    rows = np.arange(count)
    whole = Listing(files, rows, shape, y, classes, domain, domains, name, mirrored=table.mirrored)
    test = np.zeros(count, dtype=bool) if table.test is None else np.asarray(table.test, dtype=bool)
    train = replace(whole.subset(np.flatnonzero(~test)), warnings=tuple(warnings))
    return train, whole.subset(np.flatnonzero(test)) if test.any() else None


@dataclass(frozen=True)
class Files:
    """Images in separate files; `square` crops them to their largest central square."""

    paths: Sequence[Path]
    root: Path
    square: bool = False
    window: Window = "auto"

    def name(self, number: int) -> str:
        return printable(os.path.relpath(self.paths[number], self.root))

    def stamp(self, number: int) -> str:
        try:
            window = "" if self.window == "auto" else f"\0{self.window}"
            return f"{file_stamp(self.paths[number])}\0{self.square}{window}"
        except OSError:
            return f"{self.paths[number]}\0gone"

    def size(self, number: int) -> tuple[int, int]:
        return image_size(self.paths[number])

    def read(self, number: int, shape: Shape) -> NDArray[np.uint8]:
        return read_image(self.paths[number], shape, self.square, self.window)

    def channels(self) -> int:
        """The number of channels of the first readable file."""
        for path in self.paths:
            try:
                return image_channels(path)
            except MemoryError:
                raise
            except Exception:  # named with the reason when it is decoded
                continue
        return 3


class Sized(Protocol):
    """A source with image sizes that can be read without decoding."""

    def size(self, number: int) -> tuple[int, int]: ...

    def channels(self) -> int: ...


def target_shape(
    source: Sized, count: int, config: DataConfig, notes: list[str], progress: Progress | None
) -> Shape:
    """Height, width and channels to decode to; a note is added if images are resized."""
    channels = config.channels or source.channels()
    if config.size:
        return config.size, config.size, channels

    def size(number: int) -> tuple[int, int] | None:
        try:
            height, width = source.size(number)
            return (min(height, width),) * 2 if config.resize == "crop" else (height, width)
        except MemoryError:
            raise
        except Exception:  # named with the reason when it is decoded
            return None

    sizes: Counter[tuple[int, int] | None] = Counter()
    step = 4096
    with readers() as several:
        for start in range(0, count, step):
            stop = min(start + step, count)
            sizes.update(several.read(size, range(start, stop)))
            if progress is not None:
                progress(stop, count, "reading image sizes")
    known = {size: times for size, times in sizes.items() if size is not None}
    if not known:
        return 1, 1, channels  # nothing can be read: decoding raises an error with names and reasons
    (height, width), *others = sorted(known)
    if not others and max(height, width) <= MAX_SIDE:
        return height, width, channels
    sides = np.repeat(np.array(list(known)), list(known.values()), axis=0)
    side = min(MAX_SIDE, max(1, round(float(np.median(sides)))))
    least, most = ("{}×{}".format(*extreme) for extreme in (sides.min(axis=0), sides.max(axis=0)))
    span = f"{len(known)} sizes ({least} to {most})" if others else least
    notes.append(
        f"images of {span} are resized to {side}×{side} (their median side, at most {MAX_SIDE}); set "
        "data.size for another size"
    )
    return side, side, channels


def printable(name: str) -> str:
    """A file name with undecodable bytes replaced."""
    return os.fsencode(name).decode(errors="replace")


def number_names(names: Sequence[str]) -> tuple[tuple[str, ...], Tensor]:
    """The distinct names in order, and the number of each image's name among them."""
    distinct, numbers = np.unique(np.array(names, dtype=object), return_inverse=True)
    return tuple(printable(name) for name in distinct), torch.from_numpy(numbers.astype(np.int64))
